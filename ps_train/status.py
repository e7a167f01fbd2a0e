"""How a running job is, seen from outside: what is made of what the boards say.

watcher = sight.Watcher([(TaskId("ps", 0), "10.0.0.1:2222")])
status = summarize(watcher.look())
print(status_text.as_text(status))                       # or as_json(as_dict(status))
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.board import NO_ANSWER, NOT_TENSORFLOW, REFUSED, UNRESOLVED, newest
from ps_train.cluster import ENDED, Cluster, TaskId
from ps_train.sight import LOOK_SECS, Look, Record, Sight
from ps_train.staleness import Histogram
from ps_train.tables import PLACEMENT, TRAFFIC, Held, Line, read_placement, read_traffic
from ps_train.updates.standing import Standing
from ps_train.wording import as_rate, named

SLOW = 0.5  # of the median rate
MIN_PASSED_STEPS = (
    3  # at the last rate, so that it has become another one: records are written twice a second
)
MAX_NAMED = 4
NOT_SEEN = "not seen"
_GONE = (REFUSED, UNRESOLVED, NOT_TENSORFLOW)


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

    @property
    def is_unanswered(self) -> bool:
        """Whether it is a ps that does not answer."""
        return self.task.startswith("ps:") and self.state == NO_ANSWER

    @property
    def is_gone(self) -> bool:
        """Whether it is a ps that is not there at all; one that is stopped, or cut off, does not answer, either."""
        return self.is_unanswered and all(remark in _GONE for remark in self.remarks)


class RoundStatus(NamedTuple):
    """The open round of a synchronous optimizer: `num_done` rounds were completed while it was looked at."""

    num_done: int
    standing: Standing


class Status(NamedTuple):
    """The job.

    Attributes:
      step, train_steps: the model's step and its target.
      rate: global steps a second.
      update: "async" or "sync"; `quorum`: gradients per update in sync, of the workers that are there now.
      shares: (ps, bytes, variables) of the model that each ps holds.
      placement: which variables these are.
      transport: worker -> what a step of it sends; of one whose step is not known, as a script's may be, nothing.
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
    placement: tuple[Held, ...] = ()
    transport: Mapping[str, tuple[Line, ...]] = {}
    job_end: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_answered(self) -> bool:
        """Whether any ps answers."""
        return any(
            task.task.startswith("ps:") and task.state not in (NO_ANSWER, NOT_SEEN) for task in self.tasks
        )

    @property
    def is_gone(self) -> bool:
        """Whether no ps is there at all."""
        return all(task.is_gone for task in self.tasks if task.task.startswith("ps:"))


def aged(last: Status, now: Status) -> Status:
    """The last status that a ps has answered, without what may have changed by now: rates, rounds, and that tasks are at work.

    Args:
      last: of which steps and losses stay, and what lasts as long as the job.
      now: the newest, in which perhaps none has answered.
    """
    workers = [
        task._replace(
            state=task.state if task.state in ENDED else NOT_SEEN, local_rate=None, staleness=None, is_silent=False,
            silent_secs=None, remarks=task.remarks if task.state in ENDED else (),
        )
        for task in last.tasks
        if not task.task.startswith("ps:")
    ]  # fmt: skip
    ps = [
        task if task.is_unanswered else task._replace(state=NOT_SEEN, is_silent=False, remarks=())
        for task in now.tasks
        if task.task.startswith("ps:")
    ]
    return last._replace(tasks=(*ps, *workers), rate=None, rounds=())


def summarize(look: Look, given: Cluster | None = None) -> Status:
    """The status of the job.

    Args:
      look: what was seen.
      given: the cluster as the caller knows it, if it does.
    """
    living = [sight for sight in look.sights if not sight.reason]
    records = newest(sight.second for sight in living)
    known = next((sight.cluster for sight in living if sight.cluster is not None), None)
    training = records.get("training", {})
    rounds = _rounds(living)
    step = _step(records)
    ps = tuple(map(_ps, look.sights))
    names = _names(known or given, records)
    workers = [_worker(name, living, records, known or given) for name in names]
    if training.get("update") == "sync":
        workers = [worker._replace(staleness=None) for worker in workers]
    else:
        workers = [_with_slowness(worker, workers) for worker in workers]
    workers = [_with_wait(worker, rounds, step, unanswered(ps)) for worker in workers]
    job = records.get("job", {})
    differences = given.differences(known, "given here", "in the job") if given and known else []
    return Status(
        tasks=(*ps, *workers),
        step=step,
        train_steps=training.get("train_steps"),
        rate=_rate(workers, records, step or 0, _step(newest(sight.first for sight in living)) or 0),
        update=training.get("update"),
        quorum=_quorum(rounds, training.get("quorum")),
        rounds=rounds,
        shares=tuple(tuple(share) for share in training.get("shares", ())),
        placement=_placement(known or given, look.texts),
        transport={
            worker: read_traffic(look.texts[worker, TRAFFIC])
            for worker in names
            if (worker, TRAFFIC) in look.texts
        },
        job_end=job.get("reason", "") if job.get("is_over") else None,
        notes=(*differences, *(sight.note for sight in living if sight.note)),
    )


def _placement(cluster: Cluster | None, texts: Mapping[tuple[str, str], str]) -> tuple[Held, ...]:
    chief = str(cluster.chief_task) if cluster is not None else ""
    return read_placement(texts.get((chief, PLACEMENT), ""))


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
        remarks.append(f"silent for {as_silence(silent_secs)}")
    elif state in ENDED:
        remarks.append(record.get("reason") or state)
    elif record.get("stall"):
        remarks.append(record["stall"])
    if record.get("dropped"):
        remarks.append(f"{record['dropped']} of its gradients came too late and were dropped")
    local_rate = record.get("local_rate")
    is_at_work = state == "training" and not is_silent
    before = newest(sight.first for sight in living).get(name, {})
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


def as_silence(secs: float | None) -> str:
    """For how long a task has been silent, in words."""
    return f"more than {LOOK_SECS:g} s" if secs is None else f"{secs:.0f} s"


def _rounds(living: Sequence[Sight]) -> tuple[RoundStatus, ...]:
    """From the ps that holds the ledgers, if it could be read twice."""
    for sight in living:
        if len(sight.rounds) == 2:
            before, after = sight.rounds
            return tuple(
                RoundStatus(new.round - old.round, new) for old, new in zip(before, after, strict=True)
            )
    return ()


def _quorum(rounds: Sequence[RoundStatus], asked: int | None) -> int | None:
    """Fewer than asked for when workers were lost or have ended; as asked where the ledger is not read, or nobody is left."""
    return min((one.standing.needed for one in rounds if one.standing.needed), default=asked)


def unanswered(tasks: Iterable[TaskStatus]) -> list[str]:
    """Names of the ps tasks that do not answer."""
    return [task.task for task in tasks if task.is_unanswered]


def waiting_for(ps: Sequence[str]) -> str:
    """That these ps tasks are what is waited for; empty if there are none.

    >>> waiting_for(["ps:1"])
    'waiting for ps:1, which does not answer'
    >>> waiting_for([f"ps:{index}" for index in range(5)])
    'waiting for 5 ps tasks, which do not answer'
    """
    if not ps:
        return ""
    return (
        f"waiting for {named(ps, 'ps task', MAX_NAMED)}, which {'does' if len(ps) == 1 else 'do'} not answer"
    )


def _with_wait(
    worker: TaskStatus, rounds: Sequence[RoundStatus], step: int | None, silent_ps: Sequence[str]
) -> TaskStatus:
    """What it owes to a round that stands still, or whom it waits for, unless its own record says that.

    Where a ps does not answer no gradient arrives, and owing one is nobody's fault.
    """
    standings = [status.standing for status in rounds if not status.num_done]
    owing = list(dict.fromkeys(name for standing in standings for name in standing.owing))
    has_given = any(worker.task in standing.arrived for standing in standings)
    owes = worker.task in owing and worker.state not in ENDED
    is_still, of_step = worker.local_rate == 0.0, f"for step {(step or 0) + 1}"
    remark = ""
    if silent_ps:
        is_held = is_still or (owes and not worker.is_silent)
        if is_held and not any("does not answer" in said for said in worker.remarks):
            remark = waiting_for(silent_ps)
    elif owes:
        remark = f"owes its gradient {of_step}"
    elif is_still and has_given and owing and not any("waiting for" in said for said in worker.remarks):
        have = "has not given its gradient" if len(owing) == 1 else "have not given their gradients"
        remark = f"waiting for {named(owing, 'worker', MAX_NAMED)}, which {have} {of_step}"
    return worker._replace(remarks=(*worker.remarks, remark)) if remark else worker


def _with_slowness(worker: TaskStatus, workers: Sequence[TaskStatus]) -> TaskStatus:
    others = [other.local_rate for other in workers if other.task != worker.task and other.local_rate]
    if worker.is_silent or not worker.local_rate or not others:
        return worker
    median = statistics.median(others)
    if worker.local_rate >= SLOW * median:
        return worker
    remark = f"slow: {as_rate(worker.local_rate)} steps/s, where others do {as_rate(median)}"
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


def as_dict(status: Status) -> dict[str, Any]:
    """The status for JSON."""
    return {
        **status._asdict(),
        "tasks": [task._asdict() for task in status.tasks],
        "rounds": [
            {"num_done": one.num_done, **one.standing._asdict(), "owing": one.standing.owing}
            for one in status.rounds
        ],
        "placement": [{**row._asdict(), "total_bytes": row.total_bytes} for row in status.placement],
        "transport": {
            worker: [line._asdict() for line in lines] for worker, lines in status.transport.items()
        },
        "is_answered": status.is_answered,
    }
