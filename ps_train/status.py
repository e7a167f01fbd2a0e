"""How a running job is, seen from outside: read from the boards, which it does not notice. Imports no TensorFlow.

    sights = look([(TaskId("ps", 0), "10.0.0.1:2222")])      # takes a second
    status = summarize(sights)
    print(as_text(status))                                   # or json.dumps(as_dict(status))

1. Each ps is asked in a thread of its own, with a deadline, so that one that does not answer holds nothing up.
2. It is asked twice, a second apart: a task lives if its record has changed meanwhile. Clocks of hosts are not compared; for
   how long a task has been silent is what the ps tasks say, which look all the time.
3. In sync, the ledger is read twice, too: who owes a gradient is told only if the round has not moved.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ps_train.board import NO_ANSWER, NOT_TENSORFLOW, REFUSED, UNRESOLVED, Board, BoardError
from ps_train.cluster import ENDED, Cluster, TaskId
from ps_train.staleness import Histogram
from ps_train.stall import describe_round
from ps_train.updates.standing import LedgerReader, Standing
from ps_train.wording import describe_shares

CALL_SECS = 2.0
LOOK_SECS = 1.0
SLOW = 0.5  # of the median rate
MIN_PASSED_STEPS = (
    3  # at the last rate, so that it has become another one: records are written twice a second
)
NOT_SEEN = "not seen"

Record = dict[str, Any]


@dataclass
class Sight:
    """What one ps has answered.

    Attributes:
      first, second: key -> record, of its board, about `LOOK_SECS` apart.
      rounds: sync: the standings that were read with each of the two.
      reason: why it did not answer, in words.
      note: what else could not be read.
    """

    task: TaskId
    address: str
    first: dict[str, Record] = field(default_factory=dict)
    second: dict[str, Record] = field(default_factory=dict)
    rounds: list[list[Standing]] = field(default_factory=list)
    reason: str = ""
    note: str = ""


class TaskStatus(NamedTuple):
    """One task; what is not known is None.

    Attributes:
      local_rate: local steps a second.
      staleness: async: updates of others between the read of the variables and its own update, on average over the last second.
      is_silent: whether its record did not change while it was looked at; `silent_secs`: for how long, as a ps saw it.
      remarks: what is the matter with it, each in a few words.
    """

    task: str
    state: str
    address: str | None = None
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    local_steps: int | None = None
    local_rate: float | None = None
    loss: float | None = None
    staleness: float | None = None
    is_silent: bool = False
    silent_secs: float | None = None
    remarks: tuple[str, ...] = ()


class RoundStatus(NamedTuple):
    """The open round of a synchronous optimizer: `num_done` rounds were completed while it was looked at."""

    num_done: int
    standing: Standing


class Status(NamedTuple):
    """The job.

    Attributes:
      step, train_steps: the model's step and its target.
      rate: global steps a second.
      update: "async" or "sync"; `quorum`: gradients per update in sync.
      shares: (ps, bytes, variables) of the model that each ps holds.
      job_end: why the job is over, or None.
      notes: what does not fit together, or could not be read.
    """

    tasks: tuple[TaskStatus, ...]
    step: int | None = None
    train_steps: int | None = None
    rate: float | None = None
    update: str | None = None
    quorum: int | None = None
    rounds: tuple[RoundStatus, ...] = ()
    shares: tuple[tuple[str, int, int], ...] = ()
    job_end: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_answered(self) -> bool:
        """Whether any ps answers."""
        return any(task.task.startswith("ps:") and task.state != NO_ANSWER for task in self.tasks)


# Looking.


def look(ps: Sequence[tuple[TaskId, str]], sleep: Callable[[float], None] = time.sleep) -> list[Sight]:
    """Asks all ps tasks at the same time, twice.

    Args:
      ps: task and `host:port` of each.
      sleep: between the two; for tests.
    """
    sights = [Sight(task, address) for task, address in ps]
    threads = [threading.Thread(target=_look_at, args=(sight, sleep), daemon=True) for sight in sights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sights


def _look_at(sight: Sight, sleep: Callable[[float], None]) -> None:
    board, reader = Board(sight.address, sight.task), None
    try:
        sight.first = board.exchange([], CALL_SECS)
        reader = _make_reader(sight)
        _read_rounds(sight, reader)
        sleep(LOOK_SECS)
        sight.second = board.exchange([], CALL_SECS)
        _read_rounds(sight, reader)
    except BoardError as error:
        sight.reason = str(error)
    except Exception as error:  # thread boundary
        sight.reason = f"internal error: {error!r}"
    finally:
        board.close()
        if reader is not None:
            reader.close()


def _make_reader(sight: Sight) -> LedgerReader | None:
    """What reads the ledgers, if they are on this ps, the first one of the cluster."""
    described = sight.first.get("training", {}).get("ledgers")
    cluster = _cluster_of(sight)
    if not described or cluster is None or cluster.ps_tasks[0] != sight.task:
        return None
    return LedgerReader(sight.address, sight.task, described, [str(task) for task in cluster.training_tasks])


def _read_rounds(sight: Sight, reader: LedgerReader | None) -> None:
    if reader is None or sight.note:
        return
    try:
        sight.rounds.append(reader.read(CALL_SECS))
    except BoardError as error:
        sight.note = f"the rounds' ledger on {sight.task} cannot be read: {error}"


def _cluster_of(sight: Sight) -> Cluster | None:
    """The cluster that a ps was started with, as its own record tells."""
    record = sight.first.get(str(sight.task), {})
    return Cluster.from_record(record) if "cluster" in record else None


# Understanding.


def summarize(sights: Sequence[Sight], given: Cluster | None = None) -> Status:
    """The status of the job.

    Args:
      sights: what `look` saw.
      given: the cluster as the caller knows it, if it does.
    """
    living = [sight for sight in sights if not sight.reason]
    records = _newest(sight.second for sight in living)
    known = next((cluster for cluster in map(_cluster_of, living) if cluster is not None), None)
    training = records.get("training", {})
    rounds = _rounds(living)
    step = _step(records)
    names = _names(known or given, records)
    workers = [_worker(name, living, records, known or given) for name in names]
    if training.get("update") == "sync":
        workers = [worker._replace(staleness=None) for worker in workers]
        workers = [_with_debts(worker, rounds, step) for worker in workers]
    else:
        workers = [_with_slowness(worker, workers) for worker in workers]
    job = records.get("job", {})
    differences = given.differences(known, "given here", "in the job") if given and known else []
    return Status(
        tasks=(*map(_ps, sights), *workers),
        step=step,
        train_steps=training.get("train_steps"),
        rate=_rate(workers, records, step or 0, _step(_newest(sight.first for sight in living)) or 0),
        update=training.get("update"),
        quorum=training.get("quorum"),
        rounds=rounds,
        shares=tuple(tuple(share) for share in training.get("shares", ())),
        job_end=job.get("reason", "") if job.get("is_over") else None,
        notes=(*differences, *(sight.note for sight in living if sight.note)),
    )


def _newest(boards: Iterable[Mapping[str, Record]]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for board in boards:
        for key, record in board.items():
            if record.get("beat", 0) > found.get(key, {}).get("beat", -1):
                found[key] = record
    return found


def _step(records: Mapping[str, Record]) -> int | None:
    """The model's step, which is the newest that any task has seen."""
    steps = (record.get("step") for key, record in records.items() if key.startswith(("chief:", "worker:")))
    return max((step for step in steps if step is not None), default=None)


def _names(cluster: Cluster | None, records: Mapping[str, Record]) -> list[str]:
    if cluster is not None:
        return [str(task) for task in cluster.training_tasks]
    return sorted(key for key in records if key.startswith(("chief:", "worker:")))


def _ps(sight: Sight) -> TaskStatus:
    name = str(sight.task)
    if sight.reason:
        return TaskStatus(name, NO_ANSWER, sight.address, remarks=(sight.reason,))
    record = sight.second.get(name, {})
    is_silent = _is_silent(name, [sight])
    return TaskStatus(
        name, record.get("state", "starting"), sight.address, record.get("host"), record.get("pid"), is_silent=is_silent,
        remarks=("answers, but its own record does not change",) if is_silent else (),
    )  # fmt: skip


def _is_silent(name: str, living: Sequence[Sight]) -> bool:
    """Whether no board saw a new record of the task."""
    return not any(
        name in sight.second and sight.second[name].get("beat") != sight.first.get(name, {}).get("beat")
        for sight in living
    )


def _worker(
    name: str, living: Sequence[Sight], records: Mapping[str, Record], cluster: Cluster | None
) -> TaskStatus:
    address = cluster.address(TaskId.from_string(name)) if cluster is not None else None
    record = records.get(name)
    if record is None:
        return TaskStatus(name, NOT_SEEN, address)
    state, remarks, silent_secs = record["state"], [], None
    is_silent = state not in ENDED and _is_silent(name, living)
    if is_silent:
        seen = (sight.second.get(str(sight.task), {}).get("silent", {}).get(name) for sight in living)
        silent_secs = min((secs for secs in seen if secs is not None), default=None)
        remarks.append(f"silent for {_secs(silent_secs)}")
    elif state in ENDED:
        remarks.append(record.get("reason") or state)
    elif record.get("stall"):
        remarks.append(record["stall"])
    if record.get("dropped"):
        remarks.append(f"{record['dropped']} of its gradients came too late and were dropped")
    local_rate = record.get("local_rate")
    is_at_work = state == "training" and not is_silent
    before = _newest(sight.first for sight in living).get(name, {})
    if local_rate and record.get("local_steps") == before.get("local_steps") and _is_soon(local_rate):
        local_rate = 0.0  # it was measured before the worker began to wait for something
    return TaskStatus(
        name, state, address, record.get("host"), record.get("pid"), record.get("step"), record.get("local_steps"),
        local_rate if is_at_work else None, record.get("loss"),
        _staleness(record, before, local_rate) if is_at_work else None,
        is_silent, silent_secs, tuple(remarks),
    )  # fmt: skip


def _staleness(record: Record, before: Record, local_rate: float | None) -> float | None:
    """Of the gradients of the last second, or if there are none, of all; of a script, which does not count it, by the rates."""
    if "staleness" not in record:
        rate = record.get("rate")
        return max(rate / local_rate - 1, 0.0) if rate and local_rate else None
    seen = Histogram.from_list(record["staleness"])
    is_same = record.get("run") == before.get("run")
    seen_before = Histogram.from_list(before.get("staleness") if is_same else None)
    return seen.mean if seen.number == seen_before.number else seen.since(seen_before).mean


def _rounds(living: Sequence[Sight]) -> tuple[RoundStatus, ...]:
    """From the ps that holds the ledgers, if it could be read twice."""
    for sight in living:
        if len(sight.rounds) == 2:
            before, after = sight.rounds
            return tuple(
                RoundStatus(new.round - old.round, new) for old, new in zip(before, after, strict=True)
            )
    return ()


def _with_debts(worker: TaskStatus, rounds: Sequence[RoundStatus], step: int | None) -> TaskStatus:
    owes = any(not status.num_done and worker.task in status.standing.owing for status in rounds)
    if not owes or worker.state in ENDED:
        return worker
    return worker._replace(remarks=(*worker.remarks, f"owes its gradient for step {(step or 0) + 1}"))


def _with_slowness(worker: TaskStatus, workers: Sequence[TaskStatus]) -> TaskStatus:
    others = [other.local_rate for other in workers if other.task != worker.task and other.local_rate]
    if worker.is_silent or not worker.local_rate or not others:
        return worker
    median = statistics.median(others)
    if worker.local_rate >= SLOW * median:
        return worker
    remark = f"slow: {worker.local_rate:.1f} steps/s, where others do {median:.1f}"
    return worker._replace(remarks=(*worker.remarks, remark))


def _rate(
    workers: Sequence[TaskStatus], records: Mapping[str, Record], step: int, step_before: int
) -> float | None:
    """Global steps a second, as the tasks that train measured them; 0 if there are none any more."""
    training = [worker for worker in workers if worker.state == "training" and not worker.is_silent]
    rates = [records[worker.task].get("rate") for worker in training if not records[worker.task].get("stall")]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return 0.0 if training and not rates else None
    rate = statistics.median(known)
    return 0.0 if step == step_before and _is_soon(rate) else rate


def _is_soon(rate: float) -> bool:
    """Whether steps at this rate would have been seen between the two looks."""
    return rate * LOOK_SECS > MIN_PASSED_STEPS


# Telling.


def as_dict(status: Status) -> dict[str, Any]:
    """The status for JSON."""
    return {
        **status._asdict(),
        "tasks": [task._asdict() for task in status.tasks],
        "rounds": [
            {"num_done": one.num_done, **one.standing._asdict(), "owing": one.standing.owing}
            for one in status.rounds
        ],
        "is_answered": status.is_answered,
    }


_COLUMNS = ("task", "state", "host", "pid", "step", "local", "steps/s", "loss", "staleness", "heard of")
_RIGHT = _COLUMNS[3:9]


def as_text(status: Status) -> str:
    """The status as a table, a line for each remark, and what is known of the model and the job."""
    rows = [_COLUMNS, *map(_cells, status.tasks)]
    kept = [i for i, name in enumerate(_COLUMNS) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in kept}
    lines = [
        "  ".join(row[i].rjust(widths[i]) if _COLUMNS[i] in _RIGHT else row[i].ljust(widths[i]) for i in kept).rstrip()
        for row in rows
    ]  # fmt: skip
    lines += [f"{task.task}: {'; '.join(task.remarks)}" for task in status.tasks if task.remarks]
    if status.step is not None:
        lines.append(f"model: {_model(status)}")
    if len(status.shares) > 1:
        lines.append(f"placement: {describe_shares(status.shares)}")
    for one in status.rounds:
        happens = (
            f"{one.num_done} completed in the last second" if one.num_done else describe_round(one.standing)
        )
        lines.append(f"rounds: {happens}")
    if status.job_end is not None:
        lines.append(f"the job is over: {status.job_end}")
    return "\n".join([*lines, *status.notes])


def why_unanswered(status: Status) -> str:
    """A line for when no ps has answered."""
    ps = [task for task in status.tasks if task.state == NO_ANSWER]
    if any(remark not in (REFUSED, UNRESOLVED, NOT_TENSORFLOW) for task in ps for remark in task.remarks):
        return (
            "No ps answers, and not all of them are gone: those are stopped, too busy, or cut off by the network. Look on "
            "their hosts; or check --ps_hosts."
        )
    return "No ps answers. The job has ended, or was not started yet; or check --ps_hosts."


def _cells(task: TaskStatus) -> tuple[str, ...]:
    heard = ""
    if task.state not in (NOT_SEEN, NO_ANSWER, *ENDED):
        heard = f"{_secs(task.silent_secs)} ago" if task.is_silent else "now"
    numbers = [_shown(task.local_rate, ".1f"), _shown(task.loss, ".4g"), _shown(task.staleness, ".1f")]
    return (
        task.task, task.state, task.host or task.address or "", _shown(task.pid), _shown(task.step),
        _shown(task.local_steps), *numbers, heard,
    )  # fmt: skip


def _model(status: Status) -> str:
    target = f"/{status.train_steps}" if status.train_steps else ""
    parts = [f"step {status.step}{target}"]
    if status.rate is not None:
        parts.append(f"{status.rate:.1f} steps/s")
    if status.update == "sync":
        parts.append(f"sync, {status.quorum} gradients an update")
    elif status.update:
        parts.append(status.update)
    return ", ".join(parts)


def _shown(value: Any, form: str = "") -> str:
    return "" if value is None else format(value, form)


def _secs(secs: float | None) -> str:
    return f"more than {LOOK_SECS:g} s" if secs is None else f"{secs:.0f} s"
