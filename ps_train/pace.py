"""Which of a job's tasks go at the others' pace, and what is the matter with one that does not. Judges values, asks nobody.

    pace = Pace(cluster, config.update)
    pace.look(seen, answered, rounds, now)                   # as often as you like
    pace.row(TaskId("worker", 1), record)                    # Row('worker:1', 'silent', 41, None, secs=12.0)

| state | of | when |
|---|---|---|
| no answer | a ps | its board has not answered for 5 s |
| silent | a worker | its record has not changed for 5 s in which a board answered |
| not seen | a worker | no board has answered for 5 s |
| waiting for X | a worker | no step for longer than usual, and X does not answer, or is silent (all-reduce) or late (sync) |
| late | a worker | sync: it owes a gradient to a round that has been open for longer than usual |
| no step | a worker | none for longer than usual, and no other task is to blame |
| slow | a worker | async: for 5 s at less than half of the others' median rate; sync: the others wait for it more often than not |
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.board import NO_ANSWER
from ps_train.board_watch import Round
from ps_train.cluster import ENDED, Cluster, TaskId
from ps_train.picture import LATE, NO_STEP, SILENT, SLOW, WAITING, Rate, Row
from ps_train.status import NOT_SEEN
from ps_train.status import SLOW as SLOW_RATE
from ps_train.wording import named

SILENT_SECS = 5.0  # a record changes twice a second, and is read as often; on a busy host later
NO_LONGER_SLOW_RATE = 0.7
SLOW_SECS = 5.0  # the first steps of a task are no measure
MIN_ROUNDS = 20
AWAITED, NO_LONGER_AWAITED = 0.6, 0.4  # of the looks
MAX_NAMED = 2


class Seen(NamedTuple):
    """A record, and since when it is as it is; None where no board has it, but lines told it, or nothing did."""

    record: Mapping[str, Any]
    changed_at: float | None


class Pace:
    """Is told again and again what is known, and says how each task is.

    Args:
      cluster: of the job.
      update: its rule.
    """

    def __init__(self, cluster: Cluster, update: str):
        self._cluster, self._update = cluster, update
        self._rates: dict[str, Rate] = defaultdict(Rate)
        self._per_sec: dict[str, float | None] = {}
        self._idle: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self._unanswered: dict[str, float] = {}  # by the task whose process it is
        self._unseen_secs: float | None = None
        self._slow: set[str] = set()
        self._slow_since: dict[str, float] = {}
        self._late: tuple[str, ...] = ()
        self._told: set[str] = set()  # by lines alone
        self._next_step = 0

    def look(
        self, seen: Mapping[str, Seen], answered: Mapping[TaskId, float | None], rounds: Sequence[Round], now: float
    ) -> None:  # fmt: skip
        """Takes in what is known now.

        Args:
          seen: of each training task, by name.
          answered: of each ps, when its board answered last; None: never.
          rounds: sync: the last looks at the ledger, oldest first.
          now: seconds.
        """
        known = {ps: at for ps, at in answered.items() if at is not None}
        newest = max(known.values(), default=now)
        self._unseen_secs = now - newest if now - newest > SILENT_SECS else None
        overdue = {ps: now - at for ps, at in known.items() if now - at > SILENT_SECS}
        self._unanswered = {str(self._cluster.host(ps)): secs for ps, secs in overdue.items()}
        self._silent = {
            name: now - at for name, (_, at) in seen.items() if at is not None and newest - at > SILENT_SECS
        }
        self._told = {name for name, (_, changed_at) in seen.items() if changed_at is None}
        for name, one in seen.items():
            self._note_steps(name, one, now)
        self._next_step = 1 + max((record.get("step") or 0 for record, _ in seen.values()), default=0)
        training = [name for name, one in seen.items() if one.record.get("state") == "training"]
        if rounds:
            self._note_rounds(rounds, training)
        elif self._update == "async":
            self._note_slowness(training, now)

    def _note_steps(self, name: str, seen: Seen, now: float) -> None:
        record, changed_at = seen
        if changed_at is None or record.get("state") != "training" or self._unseen_secs is not None:
            self._rates.pop(name, None)
            self._idle.pop(name, None)
            self._per_sec[name] = record.get("local_rate")
            return
        rate = self._rates[name]
        measured = rate.update(record.get("local_steps") or 0, now)
        self._per_sec[name] = record.get("local_rate") if measured is None else measured
        idle = rate.idle_secs(now)
        self._idle.pop(name, None)
        if idle is not None:
            self._idle[name] = idle

    def _note_slowness(self, training: Sequence[str], now: float) -> None:
        """Async: by their own rates, which `ps_train status` judges in the same way."""
        at_work = {name: self._per_sec[name] for name in training if name not in self._silent}
        slow = set()
        for name, rate in at_work.items():
            others = [other for key, other in at_work.items() if key != name and other]
            bound = NO_LONGER_SLOW_RATE if name in self._slow else SLOW_RATE
            if rate and others and rate < bound * statistics.median(others):
                slow.add(name)
        self._slow_since = {name: self._slow_since.get(name, now) for name in slow}
        self._slow = {name for name, since in self._slow_since.items() if now - since >= SLOW_SECS}

    def _note_rounds(self, rounds: Sequence[Round], training: Sequence[str]) -> None:
        """Sync: who is late for the open round, and who is waited for in most of them."""
        last = rounds[-1]
        is_awaited = any(name in self._idle for name in last.arrived) and not self._unanswered
        self._late = last.owing if is_awaited else ()  # a gradient does not arrive where a ps does not answer
        slow = set()
        for name in training if len(rounds) >= MIN_ROUNDS else ():
            share = sum(_is_awaited(name, one) for one in rounds) / len(rounds)
            if share >= (NO_LONGER_AWAITED if name in self._slow else AWAITED):
                slow.add(name)
        self._slow = slow

    def row(self, task: TaskId, record: Mapping[str, Any]) -> Row:
        """How a task that runs was at the last look.

        Args:
          task: of the cluster.
          record: the newest of it; empty if there is none.
        """
        name, state, steps = str(task), record.get("state", "starting"), record.get("local_steps")
        if task.job == "ps":
            secs = self._unanswered.get(name)
            return Row(name, state) if secs is None else Row(name, NO_ANSWER, secs=secs)
        row = Row(name, state, steps, self._per_sec.get(name, record.get("local_rate")))
        if not record or state in ENDED or name in self._told:
            return row
        if self._unseen_secs is not None:
            is_frozen = name in self._unanswered  # its process is a ps, too
            secs = self._unanswered.get(name, self._unseen_secs)
            return Row(name, SILENT if is_frozen else NOT_SEEN, steps, secs=secs)
        if name in self._silent:
            return Row(name, SILENT, steps, secs=self._silent[name], remark=self._debt(name))
        stall = record.get("stall") or ""
        if name in self._idle:
            return Row(
                name, self._why_idle(name), steps, secs=self._idle[name], remark=self._debt(name) or stall
            )
        if name in self._slow:
            by_rounds = "the others wait for it most of the time"
            by_rate = "less than half of the others' rate"
            return row._replace(state=SLOW, remark=by_rate if self._update == "async" else by_rounds)
        return row._replace(remark=stall)

    def _debt(self, name: str) -> str:
        return f"owes its gradient for step {self._next_step}" if name in self._late else ""

    def _why_idle(self, name: str) -> str:
        if name in self._late:
            return LATE
        waits = [other for other in self._unanswered if other != name]
        if not waits and self._update == "allreduce":
            waits = list(self._silent)
        waits = waits or list(self._late)
        if not waits:
            return NO_STEP
        return WAITING + named(waits, "task", MAX_NAMED)


def _is_awaited(name: str, seen: Round) -> bool:
    """Whether a worker is among the few that have not given their gradients, when others have."""
    return (
        name in seen.owing and bool(seen.arrived) and len(seen.owing) <= max(1, (seen.num_members - 1) // 2)
    )
