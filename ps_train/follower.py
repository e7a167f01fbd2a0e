"""How far a local cluster is: read from the board of ps:0 and from the reports of the tasks that have ended.

follower = Follower(cluster, config)
follower.look(time.monotonic())  # as often as you like; reads the board when that is due
screen.show(follower.snapshot({TaskId("ps", 0): None, TaskId("worker", 0): 0}))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_SIGINT, EXIT_SIGTERM
from ps_train.local_config import read_report, report_path
from ps_train.progress import Rate, Row, Snapshot

LOOK_SECS = 0.5
CALL_SECS = 1.0
_ENDS = {EXIT_DONE: "done", EXIT_SIGINT: "stopped", EXIT_SIGTERM: "stopped"}


class Follower:
    """Reads what the tasks say; writes nothing.

    Attributes:
      records: the board as it was last seen, key -> record.
    """

    def __init__(self, cluster: Cluster, config: TrainConfig):
        self._cluster, self._config = cluster, config
        self._board: Any = None
        self._looked_at = float("-inf")
        self._rate = Rate()
        self._steps_per_sec: float | None = None
        self.records: dict[str, dict[str, Any]] = {}
        self._reports: dict[TaskId, dict[str, Any]] = {}

    def look(self, now: float) -> None:
        """Reads the board if the last time is half a second ago; one that does not answer leaves all as it was."""
        from ps_train.board import Board, BoardError

        if now - self._looked_at < LOOK_SECS:
            return
        self._looked_at = now
        ps = self._cluster.ps_tasks[0]
        self._board = self._board or Board(self._cluster.address(ps), ps)
        try:
            self.records = self._board.exchange([], timeout_secs=CALL_SECS)
        except BoardError:
            return
        step = self._step()
        self._steps_per_sec = self._rate.update(step, now) if step else None

    def close(self) -> None:
        """Ends the connection."""
        if self._board is not None:
            self._board.close()

    def report(self, task: TaskId) -> dict[str, Any]:
        """What a task that has ended reported; empty if it did not. Read once: it does not change any more."""
        if task not in self._reports:
            path = report_path(self._config, task, is_chief=self._cluster.is_chief(task))
            self._reports[task] = read_report(path)
        return self._reports[task]

    def snapshot(self, statuses: Mapping[TaskId, int | None]) -> Snapshot:
        """The present state, given the tasks' exit statuses, None while they run."""
        workers = [task for task in self._cluster.training_tasks if task in statuses]
        ended = [self.report(task) for task in workers if statuses[task] is not None]
        steps = [self._step(), *(report.get("global_step") for report in ended)]
        losses = (self._record(task).get("loss") for task in workers)
        return Snapshot(
            rows=tuple(self._row(task, status) for task, status in statuses.items()),
            step=max((step for step in steps if step is not None), default=None),
            target=self._config.train_steps,
            rate=self._steps_per_sec if len(ended) < len(workers) else None,
            loss=next((loss for loss in losses if loss is not None), None),
            message="starting the tasks",
        )

    def _record(self, task: TaskId) -> dict[str, Any]:
        return self.records.get(str(task), {})

    def _step(self) -> int | None:
        steps = (self._record(task).get("step") for task in self._cluster.training_tasks)
        return max((step for step in steps if step is not None), default=None)

    def _row(self, task: TaskId, status: int | None) -> Row:
        record = self._record(task)
        if status is None:
            state, rate = record.get("state", "starting"), record.get("local_rate")
        else:
            state, rate = _ENDS.get(status, f"status {status}"), None
        return Row(str(task), state, record.get("local_steps"), rate)
