"""Launched tasks, from start to status: shows their lines, ends them in order, says who was to blame.

    job = Job(wanted, place, finishers={...}, make_policy=ScriptPolicy, rest_secs=5, shutdown_secs=30)
    with SignalInbox() as inbox:
        status = run_job(job, Screen(), inbox, max_restarts=0)

1. All tasks are started, no more than MAX_STARTING at once on one host: sshd turns away those beyond.
2. Each line is shown, led by the task's name. On a terminal a job of ps_train's own has the picture of a local cluster below
   them, in place of the lines that tell only how far a task is. A host that is not ready after WAIT_SECS is told of.
3. The end is the first of
   - every finisher has ended with 0: the others (ps tasks, mostly) have `rest_secs` to end by themselves;
   - a task has failed, as the policy sees it: it is the headline, and its status the job's; the others are ended. A status that
     is worth a restart is given one, `max_restarts` times, with all tasks: a collective never heals;
   - SIGINT, SIGTERM or SIGHUP: status 128 + its number; the others are ended; a second one kills them.
   `job_end` has the order in which the others are ended, and until when. Where a kill does not come through to a host, the
   connection is cut (`tethered`). A signal between two starts, or before the first, ends the job, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ps_train.cluster import TaskId
from ps_train.errors import EXIT_DONE, is_worth_a_restart
from ps_train.failures import ROOT_CAUSE_SECS, End, describe_end, last_words, plain
from ps_train.follower import Follower
from ps_train.job_end import JobEnd, JobPolicy, Orders
from ps_train.line_logs import LineLogs
from ps_train.picture import Snapshot
from ps_train.process import SignalInbox, signal_name
from ps_train.progress import Screen
from ps_train.tethered import KILL_SECS, Remote, TetheredTask, Wanted
from ps_train.wording import counted

TICK_SECS = 0.1
BEATS = 5  # in the time after which a tether takes its launcher for lost
MAX_STARTING = 8
WAIT_SECS = 10.0  # without a word of a host


class Job(NamedTuple):
    """What to launch.

    Attributes:
      tasks: all of them.
      place: where those on other hosts run.
      finishers: the job is over when these have ended.
      make_policy: for each start of the job.
      rest_secs: for the others to end by themselves then.
      escalate_secs: from a SIGINT to a SIGTERM; None: never.
      shutdown_secs: from the first signal to a kill.
      log_dir: a file for each task's lines, too.
      is_rest_free: how the others end after the finishers is nobody's failure: a script's servers lose their peers then.
      make_follower: for each start of a job whose progress can be followed.
      message: shown on a terminal while another one runs.
    """

    tasks: Sequence[Wanted]
    place: Remote
    finishers: Collection[TaskId]
    make_policy: Callable[[], JobPolicy]
    rest_secs: float
    shutdown_secs: float
    escalate_secs: float | None = None
    log_dir: str | None = None
    is_rest_free: bool = False
    make_follower: Callable[[], Follower] | None = None
    message: str = ""


class Outcome(NamedTuple):
    """How it went: `is_stopped` by a signal to this process."""

    status: int
    is_stopped: bool = False


def run_job(job: Job, screen: Screen, inbox: SignalInbox, max_restarts: int = 0) -> int:
    """Runs until all tasks have ended; the exit status."""
    with LineLogs(job.log_dir, [wanted.task for wanted in job.tasks], screen.complain) as logs:
        for attempt in range(max_restarts + 1):
            restarts = f"restart {attempt} of {max_restarts}" if attempt else ""
            launched = LaunchedJob(job, screen, inbox, logs, restarts)
            try:
                outcome = launched.run()
            finally:
                launched.close()
            if outcome.is_stopped or not is_worth_a_restart(outcome.status):
                break
            if attempt < max_restarts:
                screen.complain(f"All tasks are started again: restart {attempt + 1} of {max_restarts}.")
    return outcome.status


class LaunchedJob:
    """One start of the tasks, to its end."""

    def __init__(self, job: Job, screen: Screen, inbox: SignalInbox, logs: LineLogs, restarts: str = ""):
        self._job, self._screen, self._inbox, self._logs = job, screen, inbox, logs
        self._restarts = restarts
        self._follower = job.make_follower() if job.make_follower is not None and screen.is_live else None
        self._has_picture = screen.is_live and bool(self._follower or job.message)
        self._policy = job.make_policy()
        self._running: dict[TaskId, TetheredTask] = {}
        self._waiting = list(job.tasks)
        self._slow_hosts: set[str] = set()
        self._ending = JobEnd(
            self._policy, job.finishers, job.rest_secs, job.shutdown_secs, self._log_of,
            job.escalate_secs, job.is_rest_free,
        )  # fmt: skip
        self._beaten_at = 0.0

    def run(self) -> Outcome:
        """Follows the tasks to their end."""
        while self._waiting or len(self._policy.ends) < len(self._running):
            for number in self._inbox.wait(TICK_SECS if self._running else 0.0):
                self._send(self._ending.hear(number, self._tasks, time.monotonic()))
            self._start_some()
            for running in self._running.values():
                self._look_at(running, time.monotonic())
            self._steer(time.monotonic())
            self._show()
        self._steer(time.monotonic() + ROOT_CAUSE_SECS)  # the last ones may have failed
        self._show(is_urgent=True)
        if self._ending.signal is not None:
            self._screen.complain(f"Stopped by {signal_name(self._ending.signal)}.")
        return Outcome(self._ending.status, is_stopped=self._ending.signal is not None)

    def close(self) -> None:
        """Ends whatever still runs, at once."""
        for running in self._running.values():
            running.kill()
        if self._follower is not None:
            self._follower.close()
        deadline = time.monotonic() + KILL_SECS
        for running in self._running.values():
            running.close(deadline)

    @property
    def _tasks(self) -> list[TaskId]:
        return [*self._running, *(wanted.task for wanted in self._waiting)]

    def _start_some(self) -> None:
        starting = [
            each.wanted.host for each in self._running.values() if not each.is_ready and each.exit is None
        ]
        for wanted in list(self._waiting):
            if wanted.host is None or starting.count(wanted.host) < MAX_STARTING:
                starting.append(wanted.host)
                self._waiting.remove(wanted)
                self._running[wanted.task] = TetheredTask(wanted, self._job.place)

    def _look_at(self, running: TetheredTask, now: float) -> None:
        task, host = running.wanted.task, running.wanted.host
        if task in self._policy.ends:
            return
        if host is not None and host not in self._slow_hosts and running.waited_secs(now) > WAIT_SECS:
            self._slow_hosts.add(host)
            bound = f"no longer than {self._job.place.ssh.connect_secs:g} s (--startup_timeout_secs)"
            self._complain(f"Waiting for ssh to start {task} on {host}, {bound}.")
        for line in running.take_lines():
            self._logs.write(task, line)
            if self._follower is None or not self._follower.hear(task, line, now):
                text = line if is_led_by(line, task) else f"{task} {line}"
                self._screen.say(text, goes_on=self._has_picture)
        if running.exit is not None:
            self._note_end(running)

    def _note_end(self, running: TetheredTask) -> None:
        task, exit = running.wanted.task, running.exit
        assert exit is not None
        last = plain(last_words(list(running.last_lines)), task)
        reason = describe_end(exit.reason, exit.signal, last)
        is_free = self._ending.is_resting and self._job.is_rest_free
        status = EXIT_DONE if is_free else exit.status
        end = End(task, status, reason, self._log_of(task), exit.signal, exit.is_cut_off)
        if self._policy.note(end, is_ending=self._ending.is_asked):
            if self._follower is not None:
                self._follower.note_lost(task, end.status, reason)
            self._complain(f"{task} is lost: {reason}. The job goes on without it.")

    def _complain(self, text: str) -> None:
        self._screen.complain(text, goes_on=self._has_picture)

    def _show(self, is_urgent: bool = False) -> None:
        if not self._has_picture:
            return
        if self._follower is None:
            self._screen.show(Snapshot(message=self._job.message))
            return
        ends = self._policy.ends
        self._follower.look(time.monotonic(), ends)
        statuses = {task: ends[task].status if task in ends else None for task in self._tasks}
        self._screen.show(self._follower.snapshot(statuses)._replace(restarts=self._restarts), is_urgent)

    def _log_of(self, task: TaskId) -> str:
        return self._logs.name(task) or f"the lines of {task} above"

    def _steer(self, now: float) -> None:
        if now - self._beaten_at >= self._job.place.ssh.silence_secs / BEATS:
            self._beaten_at = now
            for running in self._running.values():
                running.beat()
        had_failed = self._ending.failure is not None
        orders = self._ending.steer(self._tasks, now)
        if self._ending.failure is not None and not had_failed:
            self._complain(str(self._ending.failure))
        self._send(orders)

    def _send(self, orders: Orders) -> None:
        if self._ending.is_asked:
            self._waiting.clear()
        for task, number in orders:
            if task in self._running:
                self._running[task].send(number)


def is_led_by(line: str, task: TaskId) -> bool:
    """Whether a line has its task's name already.

    >>> is_led_by("10:11:12 worker:1 step 7", TaskId("worker", 1)), is_led_by("step 7", TaskId("worker", 1))
    (True, False)
    """
    return re.match(rf"(\d\d:\d\d:\d\d )?{task}\b", line) is not None


def done(job: Job) -> str:
    """What is said of a job that has ended well."""
    hosts = {wanted.host for wanted in job.tasks}
    return f"Done (status 0): {counted(len(job.tasks), 'task')} on {counted(len(hosts), 'host')}."
