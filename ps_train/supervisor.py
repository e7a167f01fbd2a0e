"""Launched tasks, from start to status: shows their lines, ends them in order, says who was to blame.

    job = Job(wanted, place, finishers={...}, make_policy=ScriptPolicy, rest_secs=5, shutdown_secs=30)
    status = run_job(job, Screen(), max_restarts=0)

1. All tasks are started, no more than MAX_STARTING at once on one host: sshd turns away those beyond.
2. Each line is shown, led by the task's name.
3. The end is the first of
   - every finisher has ended with 0: the others (ps tasks, mostly) have `rest_secs` to end by themselves, and get a SIGTERM then;
   - a task has failed, as the policy sees it: it is the headline, and its status the job's; the others are ended. A status that
     is worth a restart is given one, `max_restarts` times, with all tasks: a collective never heals;
   - SIGINT, SIGTERM or SIGHUP: status 128 + its number; the others are ended; a second one kills them.
   To end the others: the finishers get the signal first, so that a chief can save, and then the rest a SIGTERM. Scripts get a
   SIGTERM after `escalate_secs`, if they do not hear a SIGINT. What still runs `shutdown_secs` later is killed.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from ps_train.cluster import TaskId
from ps_train.errors import EXIT_DONE, REPEAT_SECS, is_worth_a_restart
from ps_train.failures import ROOT_CAUSE_SECS, End, Failure, describe_end, last_words, plain
from ps_train.line_logs import LineLogs
from ps_train.process import SignalInbox, signal_name
from ps_train.progress import Screen
from ps_train.tethered import Remote, TetheredTask, Wanted
from ps_train.wording import counted

TICK_SECS = 0.1
BEATS = 5  # in the time after which a tether takes its launcher for lost
MAX_STARTING = 8


class JobPolicy(Protocol):
    """Decides what a task's end means: `failures.Policy`, or ScriptPolicy."""

    ends: dict[TaskId, End]
    lost: dict[TaskId, End]

    def note(self, end: End, is_ending: bool = False) -> bool:
        """Takes in a task's end; whether the job goes on without it."""

    def find_failure(self, now: float) -> Failure | None:
        """The task to blame, once that is known."""


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


class Outcome(NamedTuple):
    """How it went: `is_stopped` by a signal to this process."""

    status: int
    is_stopped: bool = False


def run_job(job: Job, screen: Screen, max_restarts: int = 0) -> int:
    """Runs until all tasks have ended; the exit status."""
    with LineLogs(job.log_dir, [wanted.task for wanted in job.tasks], screen.complain) as logs:
        for attempt in range(max_restarts + 1):
            launched = LaunchedJob(job, screen, logs)
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

    def __init__(self, job: Job, screen: Screen, logs: LineLogs):
        self._job, self._screen, self._logs = job, screen, logs
        self._policy = job.make_policy()
        self._running: dict[TaskId, TetheredTask] = {}
        self._waiting = list(job.tasks)
        self._signal: int | None = None
        self._failure: Failure | None = None
        self._asked_at: float | None = None
        self._done_at: float | None = None  # all finishers have ended with 0
        self._told: set[TaskId] = set()  # to end, beyond the first signal
        self._beaten_at = 0.0

    def run(self) -> Outcome:
        """Follows the tasks to their end."""
        with SignalInbox() as inbox:
            while self._waiting or len(self._policy.ends) < len(self._running):
                self._start_some()
                for number in inbox.wait(TICK_SECS):
                    self._on_signal(number, time.monotonic())
                for running in self._running.values():
                    self._look_at(running)
                self._steer(time.monotonic())
            if self._failure is None and self._signal is None:
                self._steer(time.monotonic() + ROOT_CAUSE_SECS)  # the last ones failed
        if self._signal is not None:
            self._screen.complain(f"Stopped by {signal_name(self._signal)}.")
            return Outcome(128 + self._signal, is_stopped=True)
        if self._failure is not None:
            return Outcome(self._failure.status)
        return Outcome(EXIT_DONE)

    def close(self) -> None:
        """Ends whatever still runs, at once."""
        for running in self._running.values():
            running.kill()
        for running in self._running.values():
            running.close()

    def _start_some(self) -> None:
        starting = [
            each.wanted.host for each in self._running.values() if not each.is_ready and each.exit is None
        ]
        for wanted in list(self._waiting):
            if wanted.host is None or starting.count(wanted.host) < MAX_STARTING:
                starting.append(wanted.host)
                self._waiting.remove(wanted)
                self._running[wanted.task] = TetheredTask(wanted, self._job.place)

    def _look_at(self, running: TetheredTask) -> None:
        task = running.wanted.task
        if task in self._policy.ends:
            return
        for line in running.take_lines():
            self._logs.write(task, line)
            self._screen.say(line if is_led_by(line, task) else f"{task} {line}")
        if running.exit is not None:
            self._note_end(running)

    def _note_end(self, running: TetheredTask) -> None:
        task, exit = running.wanted.task, running.exit
        assert exit is not None
        last = plain(last_words(list(running.last_lines)), task)
        reason = describe_end(exit.reason, exit.signal, last)
        log = self._logs.name(task) or f"the lines of {task} above"
        is_free = self._done_at is not None and (task in self._told or self._job.is_rest_free)
        status = EXIT_DONE if is_free else exit.status
        end = End(task, status, reason, log, exit.signal, exit.is_cut_off)
        if self._policy.note(end, is_ending=self._asked_at is not None):
            self._screen.complain(f"{task} is lost: {reason}. The job goes on without it.")

    def _on_signal(self, number: int, now: float) -> None:
        if self._signal is None and self._failure is None:
            self._signal = number
            self._end(signal.SIGTERM if number == signal.SIGHUP else number, now)
        elif self._asked_at is not None and now - self._asked_at >= REPEAT_SECS:
            self._signal = self._signal or number
            self._kill()

    def _end(self, number: int, now: float) -> None:
        """Asks the finishers to end; `_steer` goes on with the others."""
        self._asked_at = now
        self._waiting.clear()
        for task, running in self._running.items():
            if task in self._job.finishers:
                running.send(number)

    def _kill(self) -> None:
        for running in self._running.values():
            running.kill()

    def _steer(self, now: float) -> None:
        if now - self._beaten_at >= self._job.place.ssh.silence_secs / BEATS:
            self._beaten_at = now
            for running in self._running.values():
                running.beat()
        if self._asked_at is None:
            failure = self._policy.find_failure(now)
            if failure is not None:
                self._failure = failure
                self._screen.complain(str(failure))
                self._end(signal.SIGTERM, now)
        is_over = not self._waiting and all(task in self._policy.ends for task in self._finishers_started())
        if self._asked_at is not None:
            self._go_on_ending(now - self._asked_at, is_over)
        elif is_over and all(self._ended_well(task) for task in self._finishers_started()):
            self._end_the_rest(now)

    def _ended_well(self, task: TaskId) -> bool:
        return task in self._policy.lost or self._policy.ends[task].status == EXIT_DONE

    def _finishers_started(self) -> list[TaskId]:
        return [task for task in self._running if task in self._job.finishers]

    def _go_on_ending(self, secs: float, is_over: bool) -> None:
        if is_over:
            self._terminate(self._running)
        elif self._job.escalate_secs is not None and secs > self._job.escalate_secs:
            self._terminate(self._finishers_started())
        if secs > self._job.shutdown_secs:
            self._kill()

    def _end_the_rest(self, now: float) -> None:
        """The finishers have ended with 0, or are lost: whoever else does not end by itself is ended."""
        if self._done_at is None:
            self._done_at = now
        if now - self._done_at > self._job.rest_secs:
            self._terminate(self._running)
        if now - self._done_at > self._job.rest_secs + self._job.shutdown_secs:
            self._kill()

    def _terminate(self, tasks: Collection[TaskId]) -> None:
        for task in tasks:
            if task not in self._told and task not in self._policy.ends:  # a second one would end it at once
                self._told.add(task)
                self._running[task].send(signal.SIGTERM)


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
