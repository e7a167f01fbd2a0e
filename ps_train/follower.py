"""How far a local cluster is: read from the boards and from the reports of the tasks that have ended.

follower = Follower(cluster, config)
follower.look(time.monotonic())  # as often as you like; reads the boards when that is due
follower.note_lost(TaskId("worker", 1), 137, "ended by SIGKILL")
screen.show(follower.snapshot({TaskId("ps", 0): None, TaskId("worker", 0): 0}))
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ps_train.cluster import AT_TARGET, ENDED, Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_RETRYABLE, EXIT_SIGINT, EXIT_SIGTERM
from ps_train.local_config import read_report, report_path
from ps_train.process import signal_name
from ps_train.progress import Rate, Row, Snapshot

LOOK_SECS = 0.5
CALL_SECS = 1.0
_ENDS = {EXIT_DONE: "done", EXIT_SIGINT: "stopped", EXIT_SIGTERM: "stopped"}


class Follower:
    """Reads what the tasks say; writes only what a task that was lost cannot say any more.

    Workers write to every board, so that of ps:0 tells their progress. A ps writes to its own only, which is read until it
    says that the ps serves: it says nothing else.

    Attributes:
      records: what was seen last, key -> record.
    """

    def __init__(self, cluster: Cluster, config: TrainConfig):
        self._cluster, self._config = cluster, config
        self._boards: dict[TaskId, Any] = {}
        self._looked_at = float("-inf")
        self._rate = Rate()
        self._steps_per_sec: float | None = None
        self.records: dict[str, dict[str, Any]] = {}
        self._lost: dict[str, dict[str, Any]] = {}
        self._told: dict[TaskId, int] = {}
        self._reports: dict[TaskId, dict[str, Any]] = {}

    def look(self, now: float) -> None:
        """Reads the boards if the last time is half a second ago; one that does not answer leaves all as it was."""
        if now - self._looked_at < LOOK_SECS:
            return
        self._looked_at = now
        first, *others = self._cluster.ps_tasks
        is_read = self._exchange(first)
        for ps in others:
            if self._record(ps).get("state") != "serving" or self._told.get(ps) != len(self._lost):
                self._exchange(ps)
        step = self._step()
        if is_read and not self._is_past_training(step):
            self._steps_per_sec = self._rate.update(step, now) if step else None

    def note_lost(self, task: TaskId, status: int, reason: str) -> None:
        """A worker has ended without a word: the boards will be told, so that nobody waits for it."""
        self._lost[str(task)] = {"state": "failed", "exit_status": status, "reason": reason}

    def _exchange(self, ps: TaskId) -> bool:
        """Reads a board, writing what lost workers have not; False if it does not answer."""
        from ps_train.board import Board, BoardError

        if ps not in self._boards:
            self._boards[ps] = Board(self._cluster.address(ps), ps)
        board = self._boards[ps]
        try:
            records = board.exchange([], timeout_secs=CALL_SECS)
            untold = [
                {**records[name], **end, "beat": time.time_ns() // 1000}
                for name, end in self._lost.items()
                if name in records and records[name]["state"] not in ENDED
            ]
            if untold:
                records = board.exchange(untold, timeout_secs=CALL_SECS)
        except BoardError:
            return False
        self._told[ps] = len(self._lost)
        if ps == self._cluster.ps_tasks[0]:
            self.records |= records
        elif str(ps) in records:
            self.records[str(ps)] = records[str(ps)]
        return True

    def close(self) -> None:
        """Ends the connections."""
        for board in self._boards.values():
            board.close()

    def report(self, task: TaskId) -> dict[str, Any]:
        """What a task that has ended reported; empty if it did not. Read once: it does not change any more."""
        if task not in self._reports:
            path = report_path(self._config, task, is_chief=self._cluster.is_chief(task))
            self._reports[task] = read_report(path)
        return self._reports[task]

    def local_steps(self, task: TaskId) -> int | None:
        """Steps of a task as far as known, None for a ps and before the first."""
        return self._record(task).get("local_steps")

    def snapshot(self, statuses: Mapping[TaskId, int | None]) -> Snapshot:
        """The present state, given the tasks' exit statuses, None while they run."""
        workers = [task for task in self._cluster.training_tasks if task in statuses]
        ended = [self.report(task) for task in workers if statuses[task] is not None]
        steps = [self._step(), *(report.get("global_step") for report in ended)]
        is_ended = bool(workers) and len(ended) == len(workers)
        losses = (self._record(task).get("loss") for task in workers)
        return Snapshot(
            rows=tuple(self._row(task, status) for task, status in statuses.items()),
            step=max((step for step in steps if step is not None), default=None),
            target=self._config.train_steps,
            rate=None if is_ended else self._steps_per_sec,
            loss=next((loss for loss in losses if loss is not None), None),
            message="ended before the first step" if is_ended else "starting the tasks",
            is_ended=is_ended,
        )

    def _record(self, task: TaskId) -> dict[str, Any]:
        return self.records.get(str(task), {})

    def _step(self) -> int | None:
        steps = (self._record(task).get("step") for task in self._cluster.training_tasks)
        return max((step for step in steps if step is not None), default=None)

    def _is_past_training(self, step: int | None) -> bool:
        """Whether no step is to come: a rate would only sink."""
        records = [self._record(task) for task in self._cluster.training_tasks]
        states = [record["state"] for record in records if "state" in record]
        is_reached = (
            step is not None and self._config.train_steps is not None and step >= self._config.train_steps
        )
        return is_reached or bool(states) and all(state in ("ending", AT_TARGET, *ENDED) for state in states)

    def _row(self, task: TaskId, status: int | None) -> Row:
        record = self._record(task)
        if status is None:
            return Row(
                str(task),
                record.get("state", "starting"),
                record.get("local_steps"),
                record.get("local_rate"),
            )
        local_steps = self.report(task).get("local_steps", record.get("local_steps"))
        return Row(str(task), _end(status), None if task.job == "ps" else local_steps)


def _end(status: int) -> str:
    """A task's exit status in words."""
    if status in _ENDS:
        return _ENDS[status]
    if status > 128 and status != EXIT_RETRYABLE:
        return f"ended by {signal_name(status - 128)}"
    return f"status {status}"
