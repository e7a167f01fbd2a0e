"""A rehearsal of failures: a local cluster of fresh processes, in which tasks are killed and stopped, and a verdict.

    status = run_rehearsal(config, num_ps=2, num_workers=3, faults=[parse_fault("kill", "ps:1@200")])

1. Each task is started as on a host of its own: `python -m ps_train --job_name=...` in a new process.
2. Ten times a second the global step is read on the ps that holds it: the boards lag by up to a second, in which a fast
   model makes hundreds of steps, and a step that was made before a fault would pass for the first one after it.
3. A fault is done as soon as its step has been reached and its task runs. What was killed is started again with the same
   flags; what was stopped goes on, even if this process is killed meanwhile (`Freeze`).
4. When every task has ended, or for long nothing has happened, `faults.judge` says what to think of it.

The end of everything is as the launcher's: SIGINT, SIGTERM or SIGHUP end the tasks in order and a second one kills them;
if this process is killed itself, the tasks end, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from ps_train import checkpoints, command_lines, net, process
from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, EXIT_SIGINT, REPEAT_SECS
from ps_train.failures import describe_end
from ps_train.faults import SIGNALS, Fault, Recording, Strike, find_recovery, judge
from ps_train.follower import Follower
from ps_train.launcher import PS_LINGER_SECS, TICK_SECS, TOO_EARLY, starting
from ps_train.local_config import log_path, make_directories, read_report, report_path
from ps_train.picture import Row
from ps_train.process import SignalInbox, TaskProcess
from ps_train.progress import Screen
from ps_train.whole_files import write_report
from ps_train.wording import counted

READ_SECS = 0.5
STUCK_SECS = 30.0  # beyond the bounds that the tasks themselves have
_RESTORED = re.compile(r" restored (\S.*)$| variables are (initialized)$")


def run_rehearsal(config: TrainConfig, num_ps: int, num_workers: int, faults: Sequence[Fault]) -> int:
    """Rehearses; the exit status: 0 for PASS, 1 for FAIL, 128 + n if signal n ended it.

    Args:
      config: the settings, with train_steps, train_dir and log_dir.
      num_ps, num_workers: size.
      faults: what to do, by rising step.

    Raises:
      UsageError: a directory cannot be made, a file not be written, a process not be started.
    """
    screen = Screen()
    rehearsal = None
    try:
        make_directories(config)
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        with net.reserve_ports(num_ps + num_workers) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            cluster = Cluster.from_hosts(ps=addresses[:num_ps], worker=addresses[num_ps:])
            rehearsal = Rehearsal(config, cluster, faults, screen)
            return rehearsal.run()
    except KeyboardInterrupt:
        screen.complain(TOO_EARLY.format("SIGINT"))
        return EXIT_SIGINT
    finally:
        if rehearsal is not None:
            rehearsal.kill()
        screen.close()


class Freeze:
    """A stopped process, which goes on at `thaw`, or when this process is gone: a shell waits for the end of a pipe."""

    def __init__(self, pid: int):
        wait_and_continue = 'read line; kill -CONT "$0"'
        self._keeper = subprocess.Popen(
            ["sh", "-c", wait_and_continue, str(pid)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets the process go on; returns when it does."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


class StepReader:
    """Reads the global step on the ps that holds it, always the first: it is the first variable of every graph."""

    def __init__(self, cluster: Cluster):
        self._ps = cluster.ps_tasks[0]
        self._address = cluster.address(self._ps)
        self._session: Any = None

    def read(self) -> int | None:
        """The step, or None if there is none yet or no answer."""
        from ps_train.board import BoardError, ControlSession

        if self._session is None:
            self._session = ControlSession(self._address, self._ps, _step_nodes())
        try:
            return int(self._session.run({}, ["step:0"], timeout_secs=READ_SECS)[0])
        except BoardError:  # or the variable is not initialized
            return None

    def close(self) -> None:
        """Ends the connection."""
        if self._session is not None:
            self._session.close()


def _step_nodes() -> list[Any]:
    from ps_train.messages import DType, Node, Shape

    variable = {"dtype": DType.INT64, "shape": Shape(()), "shared_name": b"global_step"}
    return [
        Node("global_step", "VarHandleOp", attrs=variable),
        Node("step", "ReadVariableOp", ["global_step"], {"dtype": DType.INT64}),
    ]


class Member:
    """A task of the rehearsal: its process now, and what is under way with it.

    Attributes:
      process: the newest one.
      restart_secs: when it is to be started again; None: not at all.
      thaw_secs: when it goes on.
      is_struck: its process has been killed by a fault, or is about to end for one.
    """

    def __init__(self, running: TaskProcess):
        self.process = running
        self.restart_secs: float | None = None
        self.thaw_secs: float | None = None
        self.freeze: Freeze | None = None
        self.is_struck = False

    @property
    def is_up(self) -> bool:
        """Whether its process runs, and is neither stopped nor about to end for a fault."""
        return self.process.poll() is None and self.freeze is None and not self.is_struck

    @property
    def is_over(self) -> bool:
        """Whether it has ended and is not started again."""
        return self.process.poll() is not None and self.restart_secs is None

    def thaw(self) -> None:
        """Lets it go on if it is stopped."""
        if self.freeze is not None:
            self.freeze.thaw()
        self.freeze = self.thaw_secs = None


class Rehearsal:
    """The cluster and its faults, from start to verdict."""

    def __init__(self, config: TrainConfig, cluster: Cluster, faults: Sequence[Fault], screen: Screen):
        self._config, self._cluster, self._faults, self._screen = config, cluster, faults, screen
        self._report_file = config.report_file
        self._task_config = dataclasses.replace(config, report_file=None, evaluate=None)
        self._follower = Follower(cluster, self._task_config)
        self._reader = StepReader(cluster)
        self._members: dict[TaskId, Member] = {}
        self._recording = Recording([None] * len(faults))
        self._started = self._eventful_at = time.monotonic()
        self._step: int | None = None
        self._highest = self._num_over = 0
        self._signal: int | None = None
        self._asked_at: float | None = None  # for the end of all tasks
        self._asked_ps: set[TaskId] = set()

    def run(self) -> int:
        """Follows the tasks to their end; the exit status."""
        self._screen.say(self._describe())
        for task in self._cluster.tasks:
            self._members[task] = Member(self._start_task(task))
        with SignalInbox() as inbox:
            while not all(member.is_over for member in self._members.values()):
                self._tick(inbox)
            self._look()
            self._show(is_urgent=True)
            self._follower.close()
            self._reader.close()
        if self._signal is not None:
            self._screen.complain(f"Stopped by {process.signal_name(self._signal)}.")
            return 128 + self._signal
        return self._conclude()

    def kill(self) -> None:
        """Ends whatever still runs, at once."""
        for member in self._members.values():
            member.restart_secs = None
            member.process.kill()
            member.thaw()

    def _describe(self) -> str:
        config, num_ps = self._config, self._cluster.num_ps
        size = f"{num_ps} ps and {counted(self._cluster.num_workers, 'worker')}"
        named = ", ".join(str(fault) for fault in self._faults)
        return f"Rehearsing on {size}, {config.update}, to step {config.train_steps}: {named}"

    # The tasks.

    def _start_task(self, task: TaskId) -> TaskProcess:
        path = report_path(self._task_config, task)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)  # that of its process before
        config = dataclasses.replace(self._task_config, report_file=path)
        args = command_lines.of_a_task(task, self._cluster, config)
        log = log_path(config, task)
        linger_secs = PS_LINGER_SECS if task.job == "ps" else 0.0
        with starting(task, log):
            return process.start(str(task), None, args, log, linger_secs=linger_secs)

    def _tick(self, inbox: SignalInbox) -> None:
        for number in inbox.wait(TICK_SECS):
            self._on_signal(number)
        self._look()
        self._move_on()
        if self._asked_at is None:
            self._strike_due()
        else:
            self._end_others()
        down = [task for task, member in self._members.items() if member.process.poll() is not None]
        self._follower.look(time.monotonic(), down)
        self._show()
        self._check_stuck()

    @property
    def _secs(self) -> float:
        return time.monotonic() - self._started

    def _look(self) -> None:
        """Takes in what the chief says about the model, and the global step."""
        self._read_chief()
        first = self._members[self._cluster.ps_tasks[0]]
        step = self._reader.read() if first.is_up else None
        if step is not None and step != self._step:
            self._recording.steps.append((self._secs, step))
            self._eventful_at = time.monotonic()
            self._step, self._highest = step, max(step, self._highest)

    def _read_chief(self) -> None:
        for line in self._members[self._cluster.chief_task].process.new_lines():
            match = _RESTORED.search(line)
            if match:
                step = checkpoints.checkpoint_step(match[1]) or 0
                self._recording.restores.append((self._secs, step))

    def _move_on(self) -> None:
        """Starts again what was killed, lets go on what was stopped, each when its time has come."""
        num_over = sum(member.is_over for member in self._members.values())
        if num_over != self._num_over:
            self._num_over, self._eventful_at = num_over, time.monotonic()
        for task, member in self._members.items():
            if member.thaw_secs is not None and self._secs >= member.thaw_secs:
                member.thaw()
                self._tell(f"{task} goes on (SIGCONT)")
            if member.process.poll() is None or member.restart_secs is None:
                continue
            if self._has_failed():
                member.restart_secs = None
            elif self._secs >= member.restart_secs:
                self._read_chief()
                member.process, member.restart_secs, member.is_struck = self._start_task(task), None, False
                self._tell(f"{task} is started again")

    def _has_failed(self) -> bool:
        """Whether a task has ended by itself, and not well: nobody is started again into that."""
        return any(
            member.process.poll() not in (None, EXIT_DONE) and not member.is_struck
            for member in self._members.values()
        )

    # The faults.

    def _strike_due(self) -> None:
        for number, fault in enumerate(self._faults):
            if self._recording.strikes[number] is None and self._highest >= fault.step:
                if self._members[fault.task].is_up and self._may_follow(number):
                    self._strike(number, fault)

    def _may_follow(self, number: int) -> bool:
        """Whether the job has recovered from the fault before, if this one waits for that."""
        if not self._faults[number].waits or number == 0:
            return True
        before = self._recording.strikes[number - 1]
        if before is None:
            return False
        return find_recovery(self._faults[number - 1], before, self._recording)[0] is not None

    def _strike(self, number: int, fault: Fault) -> None:
        member = self._members[fault.task]
        saved = checkpoints.checkpoint_step(checkpoints.latest_checkpoint(self._config.train_dir) or "") or 0
        step = self._step or 0
        strike = Strike(self._secs, step, saved)
        assert member.process.pid is not None
        if fault.kind == "stop":
            member.freeze = Freeze(member.process.pid)
            member.thaw_secs = self._secs + (fault.secs or 0.0)
        else:
            member.is_struck = True
            member.process.send(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
            member.restart_secs = None if fault.secs is None else self._secs + fault.secs
        self._recording.strikes[number] = strike
        how = "to be left dead" if fault.secs is None else f"for {fault.secs:g} s"
        self._tell(f"step {step}: {SIGNALS[fault.kind]} to {fault.task}, {how}")

    def _tell(self, text: str) -> None:
        self._eventful_at = time.monotonic()
        self._screen.complain(text, goes_on=True)

    # The end.

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._signal, self._asked_at = number, now
            for task, member in self._members.items():
                member.restart_secs = None
                member.thaw()
                if task.job != "ps":
                    member.process.send(signal.SIGTERM if number == signal.SIGHUP else number)
        elif now - self._asked_at >= REPEAT_SECS:
            self.kill()

    def _end_others(self) -> None:
        """After a signal: the ps tasks end when the workers have, and all of them in time."""
        assert self._asked_at is not None
        if time.monotonic() - self._asked_at > self._config.shutdown_timeout_secs:
            self.kill()
        if all(self._members[task].is_over for task in self._cluster.training_tasks):
            for ps in self._cluster.ps_tasks:
                if ps not in self._asked_ps:
                    self._asked_ps.add(ps)
                    self._members[ps].process.terminate()

    def _check_stuck(self) -> None:
        """Ends a job in which nothing happens for longer than its tasks' own bounds allow."""
        if any(member.thaw_secs or member.restart_secs for member in self._members.values()):
            self._eventful_at = time.monotonic()
        config = self._config
        bound = 2 * config.peer_timeout_secs + config.shutdown_timeout_secs + STUCK_SECS
        if self._step is None:
            bound += config.startup_timeout_secs
        if time.monotonic() - self._eventful_at > bound:
            running = ", ".join(str(task) for task, member in self._members.items() if not member.is_over)
            self._recording.cut_short = (
                f"no step and no end of a task for {bound:g} s; still running: {running}"
            )
            self.kill()

    def _show(self, is_urgent: bool = False) -> None:
        statuses = {
            task: member.process.poll() if member.is_over else None for task, member in self._members.items()
        }
        snapshot = self._follower.snapshot(statuses)
        rows = tuple(self._row(row) for row in snapshot.rows)
        if self._step is not None:
            snapshot = snapshot._replace(step=self._step)
        self._screen.show(snapshot._replace(rows=rows), is_urgent)

    def _row(self, row: Row) -> Row:
        member = self._members[TaskId.from_string(row.name)]
        if member.freeze is not None:
            return Row(row.name, "stopped")
        return Row(row.name, "down") if member.is_struck and not member.is_over else row

    def _conclude(self) -> int:
        """Says the verdict and writes it."""
        recording = self._recording
        for task, member in self._members.items():
            running = member.process
            recording.statuses[task] = EXIT_PERMANENT if running.status is None else running.status
            reported = read_report(report_path(self._task_config, task)).get("reason")
            recording.reasons[task] = describe_end(reported, running.ended_by, running.last_line())
        checkpoint = checkpoints.latest_checkpoint(self._config.train_dir)
        recording.final_step = checkpoints.checkpoint_step(checkpoint) if checkpoint else None
        verdict = judge(self._faults, recording, self._config, self._cluster.num_workers)
        self._screen.say("\n".join([*verdict.lines(), f"Logs: {self._config.log_dir}"]))
        if self._report_file is not None:
            write_report(self._report_file, {
                **verdict.as_dict(),
                "final_step": recording.final_step,
                "statuses": {str(task): status for task, status in recording.statuses.items()},
                "secs": round(self._secs, 3),
                "train_dir": self._config.train_dir,
                "log_dir": self._config.log_dir,
            })  # fmt: skip
        return EXIT_DONE if verdict.is_pass else EXIT_PERMANENT
