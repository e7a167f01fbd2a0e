"""The runs of an experiment, one after the other: each a local cluster of its own, or a job that `launch` starts on hosts.

    with locked("runs/e", secs=30.0), SignalInbox() as inbox:
        outcome = Experiment(runs, start_run, screen).run(inbox)

1. Runs come seed by seed, and within a seed point by point: what else the machine does in an hour meets all points alike.
2. One that has a result of the same settings is passed over. What another one has left in its folder is removed.
3. The process of a run ends when this one does, SIGKILL included, and its tasks with it. They hold the lock until then, so
   that the next call waits for them.
4. A run that fails is recorded, and the next one starts. A signal ends the run in order, and with it the experiment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ps_train import checkpoints, process
from ps_train.errors import EXIT_DONE, REPEAT_SECS, UsageError
from ps_train.experiment import machine
from ps_train.experiment.results import DONE, FAILED, RECORD_FILE, RUNNING, Record, gather, read_record
from ps_train.experiment.runs import Run
from ps_train.failures import describe_end
from ps_train.process import SignalInbox, TaskProcess
from ps_train.progress import Screen
from ps_train.whole_files import write_json
from ps_train.wording import as_rate

OUTPUT_FILE = "output.txt"
TICK_SECS = 1.0
_HEADLINE = re.compile(r"^ps_train: (.* failed \(status \d+\): .*)$", re.MULTILINE)


@contextlib.contextmanager
def locked(out: str, secs: float, say: Callable[[str], None]) -> Iterator[int]:
    """Keeps other experiments, and what a killed one has left running, out of a directory; gives the file that does.

    Raises:
      UsageError: they do not end within `secs`.
    """
    import fcntl  # not on Windows

    with open(os.path.join(out, ".lock"), "a") as file:
        deadline, is_told = time.monotonic() + secs, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"--out={out} is in use: processes of another experiment run there. Wait for it, or choose another --out."
                    ) from None
                if not is_told:
                    say(f"waiting up to {secs:.0f} s for what still runs in {out}")
                    is_told = True
                time.sleep(0.1)
        yield file.fileno()


def start_run(run: Run, lock: int) -> TaskProcess:
    """The process of a run, which holds the lock."""
    return process.start(run.text, None, run.args, os.path.join(run.folder, OUTPUT_FILE), pass_fds=[lock])


class Outcome(NamedTuple):
    """`records` of the runs that have ended, in their order; the signal that ended the experiment, if one did."""

    records: list[Record]
    signal: int | None


class Experiment:
    """Runs what has no result yet.

    Args:
      runs: all, in order.
      start: starts one.
      screen: for a line at the start and at the end of each.
    """

    def __init__(self, runs: Sequence[Run], start: Callable[[Run], TaskProcess], screen: Screen):
        self._runs, self._start, self._screen = runs, start, screen

    def run(self, inbox: SignalInbox) -> Outcome:
        """Goes on to the last run, or a signal."""
        records: list[Record] = []
        for number, run in enumerate(self._runs, 1):
            title, record = f"run {number} of {len(self._runs)}", read_record(run.folder)
            if record.get("outcome") == DONE and record.get("digest") == run.digest:
                self._screen.say(f"{title}: {run.text}: done before")
                records.append(record)
                continue
            signals = inbox.wait(0.0)
            if signals:
                return Outcome(records, signals[0])
            self._screen.say(f"{title}: {run.text}")
            ended, signals = self._execute(run, inbox)
            if ended is None:
                name = process.signal_name(signals[0])
                self._screen.complain(f"{title}: stopped by {name}; it has no result")
            else:
                records.append(ended)
                self._screen.say(f"{title}: {describe(ended)}")
            if signals:
                return Outcome(records, signals[0])
        return Outcome(records, None)

    def _execute(self, run: Run, inbox: SignalInbox) -> tuple[Record | None, list[int]]:
        """The record of a run, None if a signal ended it; the signals that came."""
        _remove(run.folder)
        record = _first_record(run)
        write_json(os.path.join(run.folder, RECORD_FILE), record)
        before, since = machine.Use.now(), time.monotonic()
        task = self._start(run)
        signals = _follow(task, inbox)
        if signals and task.status != EXIT_DONE:
            return None, signals
        secs = time.monotonic() - since
        record |= _ending(run, task, secs) | {"others_cores": machine.Use.now().others_since(before, secs)}
        checkpoints.remove_all_but_newest(run.folder)
        write_json(os.path.join(run.folder, RECORD_FILE), record)
        return record, signals


def _remove(folder: str) -> None:
    """Takes a folder away, its record not before the rest, should this be cut off."""
    parent, name = os.path.split(folder)
    doomed = os.path.join(parent, f".old-{name}")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _follow(task: TaskProcess, inbox: SignalInbox) -> list[int]:
    """Waits for a run's end; the signals that came meanwhile, of which the first ends it in order and a later one at once."""
    signals: list[int] = []
    signalled_at = 0.0
    try:
        while task.poll() is None:
            for number in inbox.wait(TICK_SECS):
                if not signals:
                    signalled_at = time.monotonic()
                    task.send(number)
                elif time.monotonic() - signalled_at >= REPEAT_SECS:
                    task.kill()
                signals.append(number)
    finally:
        task.kill()
    return signals


def _first_record(run: Run) -> Record:
    return {
        "name": run.name,
        "outcome": RUNNING,
        "point": dict(run.point.settings),
        "seed": run.config.seed,
        "digest": run.digest,
        "settings": run.settings,
        "num_ps": 0 if run.config.has_no_ps else run.num_ps,
        "num_workers": run.num_workers,
        "is_launched": bool(run.launch),
        "command": run.command(run.args),
        "started": time.time(),
        "machine": machine.describe(),
        "before": machine.load(),
    }


def _ending(run: Run, task: TaskProcess, wall_secs: float) -> Record:
    found = gather(run.config, run.num_ps, run.num_workers)
    found["figures"]["wall_secs"] = round(wall_secs, 3)
    reason, missing = "", found.pop("missing")
    if task.status != EXIT_DONE:
        reason = _why(run, task)
    elif missing:
        reason = f"no report of {', '.join(missing)}: its part is not counted"
    elif (found["figures"]["global_step"] or 0) < (run.config.train_steps or 0):
        reason = f"it ended before step {run.config.train_steps}"
    outcome = DONE if task.status == EXIT_DONE else FAILED
    return {
        **found, "outcome": outcome, "exit_status": task.status, "reason": reason, "after": machine.load(),
    }  # fmt: skip


def _why(run: Run, task: TaskProcess) -> str:
    """The launcher's headline, or how its process ended."""
    headline = None
    with contextlib.suppress(OSError), open(task.log_path, encoding="utf-8", errors="replace") as file:
        headline = _HEADLINE.search(file.read())
    last_line = task.last_line().removeprefix("ps_train: ")
    return describe_end(headline[1] if headline else None, task.ended_by, last_line)


def describe(record: Record) -> str:
    """An ended run in a few words."""
    if record["outcome"] != DONE:
        status = "" if " (status " in record["reason"] else f" (status {record['exit_status']})"
        return f"failed{status}: {record['reason']}"
    figures = record["figures"]
    parts = [f"done in {figures['wall_secs']:.1f} s"]
    if figures["global_step"] is not None:
        parts.append(f"step {figures['global_step']}")
    for name, unit in (("steps_per_sec", "steps/s"), ("examples_per_sec", "examples/s")):
        parts += [f"{as_rate(figures[name])} {unit}"] if figures[name] is not None else []
    shown = {
        "loss": figures["loss"],
        **{f"held-out {name}": value for name, value in record["metrics"].items()},
    }
    parts += [f"{name} {value:.4g}" for name, value in shown.items() if value is not None]
    return ", ".join(parts) + (f" ({record['reason']})" if record["reason"] else "")
