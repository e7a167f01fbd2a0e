"""How far a launched job is, whatever has launched it: from the boards, the tasks' lines, and the reports of those that have ended.

    follower = Follower(cluster, config)
    follower.look(time.monotonic())                   # as often as you like; has the boards read when that is due
    follower.hear(TaskId("worker", 1), "... step 12/100, loss 0.5", now)      # a line of its log
    follower.note_lost(TaskId("worker", 1), 137, "ended by SIGKILL")
    screen.show(follower.snapshot({TaskId("ps", 0): None, TaskId("worker", 0): 0}))

1. Each board is read in a thread of its own (`board_watch`), so that a ps that is frozen, or that this host does not reach,
   delays nobody. What the boards say is as it is in `ps_train status`.
2. What no board has told is taken from the tasks' own lines: a step every --log_every_secs, and the last one.
3. Ages are measured by this process's clock, from the moment at which it saw a record change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ps_train.board import newest
from ps_train.board_watch import BoardWatch
from ps_train.cluster import OVER, Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_RETRYABLE, EXIT_SIGINT, EXIT_SIGTERM
from ps_train.evaluation_watch import EVALUATION
from ps_train.local_config import read_report, report_path
from ps_train.pace import Pace, Seen
from ps_train.picture import LOST, Rate, Row, Snapshot
from ps_train.process import signal_name
from ps_train.wording import counted

LOOK_SECS = 0.5
HEARD_SECS = 3.0  # a line is newer than a record that has not changed for so long before it
_ENDS = {EXIT_DONE: "done", EXIT_SIGINT: "stopped", EXIT_SIGTERM: "stopped"}
_STEP = re.compile(r"step (\d+)(?:/\d+)?(?:, loss (\S+?))?(?:, (\S+) steps/s \((\S+) of them here\))?$")
_LAST = re.compile(r"global step (\d+): ")


class Follower:
    """Puts together what is known of the tasks; writes only what one that was lost cannot say any more.

    Args:
      cluster, config: of the job.
      is_local: the tasks are this host's: their reports are files here, and the boards are told of those that are lost.
      start: runs a function in a thread; for tests.

    Attributes:
      records: what was seen last, key -> record.
    """

    def __init__(
        self, cluster: Cluster, config: TrainConfig, is_local: bool = True,
        start: Callable[[Callable[[], None]], None] | None = None,
    ):  # fmt: skip
        self._cluster, self._config, self._is_local = cluster, config, is_local
        first, *others = cluster.ps_tasks
        names = [str(task) for task in cluster.training_tasks]
        self._watches = {first: BoardWatch(first, cluster.address(first), names, start)}
        self._watches |= {ps: BoardWatch(ps, cluster.address(ps), start=start) for ps in others}
        self._looked_at = float("-inf")
        self._rate, self._pace = Rate(), Pace(cluster, config.update)
        self._steps_per_sec: float | None = None
        self._idle_secs: float | None = None
        self._heard: dict[str, tuple[float, dict[str, Any]]] = {}
        self._runs: dict[str, list[str]] = {}
        self._lost: set[TaskId] = set()
        self._reports: dict[TaskId, dict[str, Any]] = {}
        self.records: dict[str, dict[str, Any]] = {}

    def look(self, now: float, ended: Collection[TaskId] = ()) -> None:
        """Takes in what the boards have said, and has them read anew if the last time is half a second ago.

        Args:
          now: seconds.
          ended: tasks without a process.
        """
        if now - self._looked_at >= LOOK_SECS:
            self._looked_at = now
            for ps, watch in self._watches.items():
                if self._cluster.host(ps) not in ended:
                    watch.look(now)
        self._take_in(now)

    def _take_in(self, now: float) -> None:
        self.records = newest([self.records, *(watch.records for watch in self._watches.values())])
        for key, record in self.records.items():
            self._note_run(key, record)
        seen = {str(task): self._seen(task) for task in self._cluster.training_tasks}
        answered = {ps: watch.answered_at for ps, watch in self._watches.items()}
        self._pace.look(seen, answered, list(self._watches[self._cluster.ps_tasks[0]].rounds), now)
        step, self._idle_secs = self._step(), None
        if step and not self._is_past_training(step):
            self._steps_per_sec = self._rate.update(step, now)
            self._idle_secs = self._rate.idle_secs(now)

    def _note_run(self, key: str, record: Mapping[str, Any]) -> None:
        runs = self._runs.setdefault(key, [])
        if record.get("run") and record["run"] not in runs:
            runs.append(record["run"])

    def hear(self, task: TaskId, line: str, now: float) -> bool:
        """Takes in a line of a task's log; whether it tells nothing but how far the task is."""
        text = re.sub(rf"^(\d\d:\d\d:\d\d )?{task} ", "", line)
        said: dict[str, Any] = {}
        step, last = _STEP.match(text), _LAST.match(text)
        if step:
            said = {"state": "training", "step": int(step[1])}
            said |= {"loss": float(step[2])} if step[2] else {}
            said |= {"local_rate": float(step[4])} if step[4] else {}
        elif last:
            said, now = {"state": "left", "step": int(last[1])}, float("inf")  # no step is newer
        elif task.job == "ps" and text.startswith("listening "):
            said = {"state": "serving"}
        if said:
            _, before = self._heard.get(str(task), (0.0, {}))
            self._heard[str(task)] = now, before | said
        return step is not None

    def note_lost(self, task: TaskId, status: int, reason: str) -> None:
        """The job goes on without a worker, which may have ended without a word: the boards will be told, if it is a local one."""
        self._lost.add(task)
        for watch in self._watches.values() if self._is_local else ():
            watch.tell({str(task): {"state": "failed", "exit_status": status, "reason": reason}})

    def close(self) -> None:
        """Ends the connections."""
        for watch in self._watches.values():
            watch.close()

    def report(self, task: TaskId) -> dict[str, Any]:
        """What a task that has ended reported; empty if it did not. Read once: it does not change any more."""
        if not self._is_local:
            return {}
        if task not in self._reports:
            path = report_path(self._config, task, is_chief=self._cluster.is_chief(task))
            self._reports[task] = read_report(path)
        return self._reports[task]

    def local_steps(self, task: TaskId) -> int | None:
        """Steps of a task as far as known, None for a ps and before the first."""
        return self._record(task).get("local_steps")

    def last_step(self) -> int | None:
        """The newest that a worker has seen, at the job's end; one that was lost before does not count: the model may have gone back since."""
        found = []
        for task in self._cluster.training_tasks:
            if task not in self._lost:
                reported = self.report(task).get("global_step")
                found.append(self._record(task).get("step") if reported is None else reported)
        return max((step for step in found if step is not None), default=None)

    def snapshot(self, statuses: Mapping[TaskId, int | None]) -> Snapshot:
        """The state at the last look, given the tasks' exit statuses, None while they run."""
        workers = [task for task in self._cluster.training_tasks if task in statuses]
        ended = [self.report(task) for task in workers if statuses[task] is not None]
        steps = [self._step(), *(report.get("global_step") for report in ended)]
        is_ended = bool(workers) and len(ended) == len(workers)
        evaluated = self._record(self._cluster.chief_task).get(EVALUATION)
        return Snapshot(
            rows=tuple(self._row(task, status) for task, status in statuses.items()),
            step=max((step for step in steps if step is not None), default=None),
            target=self._config.train_steps,
            rate=None if is_ended else self._steps_per_sec,
            loss=self._loss(statuses),
            message="ended before the first step" if is_ended else "starting the tasks",
            is_ended=is_ended,
            idle_secs=None if is_ended else self._idle_secs,
            evaluation=f"evaluation of {evaluated}" if evaluated else "",
        )

    def _loss(self, statuses: Mapping[TaskId, int | None]) -> float | None:
        """The chief's, or that of the first worker that has one."""
        for task in self._cluster.training_tasks:
            reported = self.report(task).get("loss") if statuses.get(task) is not None else None
            loss = self._record(task).get("loss") if reported is None else reported
            if loss is not None:
                return loss
        return None

    def _seen(self, task: TaskId) -> Seen:
        """A training task's record, and since when it is as it is."""
        name = str(task)
        changed_at = max(
            (w.changed_at[name] for w in self._watches.values() if name in w.changed_at), default=None
        )
        heard_at, heard = self._heard.get(name, (float("-inf"), {}))
        record = self.records.get(name, {})
        if heard_at - HEARD_SECS <= (float("-inf") if changed_at is None else changed_at):
            return Seen(record, changed_at)
        newest = {**record, **heard}
        if heard_at == float("inf") and record:
            newest["state"] = record["state"]
        return Seen(newest, None)

    def _record(self, task: TaskId) -> Mapping[str, Any]:
        return self._seen(task).record

    def _step(self) -> int | None:
        """The newest that a record or a last line has."""
        tasks = self._cluster.training_tasks
        steps = [self._record(task).get("step") for task in tasks]
        return max((step for step in steps if step is not None), default=None)

    def _is_past_training(self, step: int | None) -> bool:
        """Whether no step is to come: a rate would only sink."""
        records = [self._record(task) for task in self._cluster.training_tasks]
        states = [record["state"] for record in records if "state" in record]
        is_reached = (
            step is not None and self._config.train_steps is not None and step >= self._config.train_steps
        )
        return is_reached or bool(states) and all(state in OVER for state in states)

    def _row(self, task: TaskId, status: int | None) -> Row:
        record = self._record(task)
        if status is not None:
            # A record from before the end has too few for one that has done all its steps; of one that fell, they are the best known.
            is_last = record.get("state") != "training" or status != EXIT_DONE
            known = record.get("local_steps") if is_last else None
            local_steps = self.report(task).get("local_steps", known)
            return Row(str(task), self._end(task, status), None if task.job == "ps" else local_steps)
        row = self._pace.row(task, record)
        num_restarts = len(self._runs.get(str(task), ())) - 1
        if num_restarts > 0:
            told = f"started again {counted(num_restarts, 'time')}"
            row = row._replace(remark="; ".join(part for part in (row.remark, told) if part))
        return row

    def _end(self, task: TaskId, status: int) -> str:
        """A task's exit status in words."""
        if status in _ENDS:
            return _ENDS[status]
        if status > 128 and status != EXIT_RETRYABLE:
            return f"ended by {signal_name(status - 128)}"
        return LOST if task in self._lost else f"status {status}"
