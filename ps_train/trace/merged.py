"""The parts of all workers on one clock, each message with who sent it.

    merged = merge(parts, "worker:0")
    merged.runs, merged.clocks["ps:0"].ahead, merged.num_unknown

A message was under way from the end of the op that made it to its arrival. TensorFlow leaves some arrivals out of a trace, most on a
busy machine. Such a message is seen by who used it: an op has an input of a name that only another task's op has. It has come by
when that op began; the message is marked as inferred, and its size is not known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ps_train.step_stats import ARRIVAL_NANOS, Transfer
from ps_train.trace.clocks import Clock, align
from ps_train.trace.parts import Part, Run, TracedOp

_RECEIVED = re.compile(r"(.*)_S\d+")


class Message(NamedTuple):
    """A tensor that went from task to task.

    Attributes:
      sent: None if the op that made it is not in the trace, as TensorFlow has renamed it.
      num_bytes: None: not known, as it was not noted itself but is inferred.
    """

    tensor: str
    source: str
    target: str
    sent: int | None
    arrival: int
    num_bytes: int | None


class AlignedRun(NamedTuple):
    """A Run on the one clock: its fields, with Messages for transfers."""

    owner: str
    server: str
    kind: str
    step: int
    batch: int
    begin: int
    end: int
    ops: tuple[TracedOp, ...]
    messages: tuple[Message, ...]
    begins: dict[str, int]


class Merged(NamedTuple):
    """A trace of all tasks.

    Attributes:
      runs: by their begin.
      clocks: task -> Clock.
      reference: the task whose clock it is.
    """

    runs: tuple[AlignedRun, ...]
    clocks: dict[str, Clock]
    reference: str


Sent = TypeVar("Sent", Transfer, Message)


class Named(Generic[Sent]):
    """Finds an op, or a message, by what another op calls its input."""

    def __init__(self, ops: Iterable[TracedOp], messages: Iterable[Sent]):
        self._ops: dict[tuple[str, str], list[TracedOp]] = defaultdict(list)
        self._makers: dict[str, list[TracedOp]] = defaultdict(list)
        for op in ops:
            self._ops[op.task, op.name].append(op)
            self._makers[op.name].append(op)
        self._messages: dict[tuple[str, str], Sent] = {(m.target, m.tensor): m for m in messages}

    def op(self, task: str, name: str, before: int) -> TracedOp | None:
        """The last one of that name on a task that has begun before a moment; a loop has one often."""
        return max(
            (op for op in self._ops.get((task, name), ()) if op.start <= before),
            key=lambda op: op.end,
            default=None,
        )

    def first_end(self, task: str, name: str) -> int | None:
        """When the first one of that name on a task ended."""
        return min((op.end for op in self._ops.get((task, name), ())), default=None)

    def input(self, task: str, text: str, before: int) -> TracedOp | Sent | None:
        """What an op of `task`, begun at `before`, calls by `text` in its label."""
        name = text.removeprefix("^").partition(":")[0]
        found = self.op(task, name, before)
        received = _RECEIVED.fullmatch(name)
        if found is not None or received is None:
            return found
        return self._messages.get((task, received[1])) or self.op(task, received[1], before)

    def lost(self, task: str, text: str) -> TracedOp | None:
        """The only op that can have sent what an op of `task` calls by `text`, if nothing on this task is called so."""
        name = text.removeprefix("^").partition(":")[0]
        received = _RECEIVED.fullmatch(name)
        if received is None or (task, name) in self._ops or (task, received[1]) in self._messages:
            return None
        makers = self._makers.get(received[1], [])
        return makers[0] if len(makers) == 1 and makers[0].task != task else None


def merge(parts: Sequence[Part], reference: str) -> Merged:
    """The parts on the clock of the task `reference`."""
    runs = [run for part in parts for run in part.runs]
    with_lost = [run._replace(transfers=(*run.transfers, *_lost(run))) for run in runs]
    tasks = sorted({name for run in runs for name in (run.server, *run.begins, *(op.task for op in run.ops))})
    clocks = align(_bounds(with_lost), tasks, reference)
    aligned = [_aligned(run, clocks) for run in with_lost]
    return Merged(tuple(sorted(aligned, key=lambda run: (run.begin, run.owner))), clocks, reference)


def _lost(run: Run) -> list[Transfer]:
    """Messages that were not noted, each as it was used first; their size is negative."""
    named: Named[Transfer] = Named(run.ops, run.transfers)
    found: dict[tuple[str, str], Transfer] = {}
    for op in run.ops:
        for text in op.inputs:
            maker = named.lost(op.task, text)
            if maker is not None:
                first = found.get((op.task, maker.name))
                arrival = op.start if first is None else min(op.start, first.arrival)
                found[op.task, maker.name] = Transfer(maker.name, maker.task, op.task, arrival, -1)
    return list(found.values())


def _bounds(runs: Iterable[Run]) -> dict[tuple[str, str], float]:
    """What messages, and calls that surround what they cause, say of the clocks: see `clocks`."""
    ahead: dict[tuple[str, str], float] = {}

    def note(one: str, other: str, bound: int) -> None:
        ahead[one, other] = min(bound, ahead.get((one, other), bound))

    for run in runs:
        for task, moment in run.begins.items():
            note(run.server, task, moment - run.begin)
        ends: dict[str, int] = {}
        for op in run.ops:
            ends[op.task] = max(op.end, ends.get(op.task, op.end))
        for task, moment in ends.items():
            note(task, run.server, run.end - moment)
        named: Named[Transfer] = Named(run.ops, ())
        for transfer in run.transfers:
            made = named.first_end(transfer.source, transfer.tensor)
            if made is not None:
                note(transfer.source, transfer.target, transfer.arrival + ARRIVAL_NANOS - made)
    return ahead


def _aligned(run: Run, clocks: dict[str, Clock]) -> AlignedRun:
    def at(task: str, moment: int) -> int:
        return moment - clocks[task].ahead if task in clocks else moment

    ops = tuple(TracedOp(*op[:6], *(at(op.task, moment) for moment in op[6:])) for op in run.ops)
    named: Named[Message] = Named(ops, ())
    messages = []
    for tensor, source, target, moment, size in run.transfers:
        arrival = at(target, moment)
        maker = named.op(source, tensor, arrival + ARRIVAL_NANOS)
        sent = None if maker is None else min(maker.end, arrival)
        messages.append(Message(tensor, source, target, sent, arrival, None if size < 0 else size))
    return AlignedRun(
        run.owner, run.server, run.kind, run.step, run.batch, at(run.server, run.begin), at(run.server, run.end),
        ops, tuple(messages), {task: at(task, moment) for task, moment in run.begins.items()},
    )  # fmt: skip
