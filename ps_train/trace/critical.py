"""The critical path of a step: what its end waited for, link by link, back to its begin.

    links = critical_path(step_runs, merged.runs)        # Links that follow one another without a gap, from begin to end
    for group in grouped(links): ...

From the last thing that happened in the step the way goes back: from an op to that of its inputs which came last, from a message to
the op that made it, or to the begin of the part of the graph that was to take it, if that was later; from there to the call. An op that
takes from a queue, as a synchronous worker's token, has waited for whoever put it there: the way goes on in the run of that one,
the chief's update, and from there to the worker whose gradient came last. What lies between two of them, as the wait for a thread, is
a link itself. So the links' lengths add up to the step's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.step_trace import PULL, PUSH, SCALAR_BYTES, WAIT
from ps_train.timeline import OTHER, Span
from ps_train.trace.merged import AlignedRun, Message, Named
from ps_train.trace.parts import UPDATE_RUN, TracedOp

GAP, CALL = "gap", "call"
MIN_GAP = 0.03  # of the step, from which on a gap is named by itself
_TAKES, _GIVES = "QueueDequeue", "QueueEnqueue"


class Link(NamedTuple):
    """One link.

    Attributes:
      kind: of `step_trace.PARTS`; GAP, before what `name` names; CALL: outside of what TensorFlow notes.
      task: where.
      name: of the op or tensor.
      owner: in whose run it was.
      begin, end: nanoseconds.
    """

    kind: str
    task: str
    name: str
    owner: str
    begin: int
    end: int


class Group(NamedTuple):
    """Links of one kind that follow one another on one task: `name` of the longest, and how many others."""

    kind: str
    task: str
    name: str
    owner: str
    nanos: int
    num_more: int


def way_of(source: str, target: str, run: AlignedRun) -> str:
    """PULL, PUSH, or OTHER between two ps tasks."""
    return PULL if target == run.server else PUSH if source == run.server else OTHER


def has_weight(message: Message) -> bool:
    """Whether a message is more than a scalar, as far as is known."""
    return message.num_bytes is None or message.num_bytes > SCALAR_BYTES


def span_of(message: Message, run: AlignedRun) -> Span:
    """A message as a part of its step, for the step's row and for its path, in nanoseconds.

    It is its way's, but OTHER if it is a scalar or nobody knows when it was sent. It was under way from when it was sent, or from when
    its target began with the step, if that was later.
    """
    begin = run.begins.get(message.target, message.arrival)
    if message.sent is None:
        return Span(OTHER, begin, message.arrival)
    kind = way_of(message.source, message.target, run) if has_weight(message) else OTHER
    return Span(kind, max(message.sent, run.begins.get(message.target, message.sent)), message.arrival)


class _Indexed:
    """A run's ops and messages, findable."""

    def __init__(self, run: AlignedRun):
        self.run, self.named = run, Named(run.ops, run.messages)

    def last(self, until: int) -> TracedOp | Message | None:
        """What ended last, by `until`."""
        things: list[TracedOp | Message] = [*self.run.ops, *self.run.messages]
        return max((t for t in things if end_of(t) <= until), key=end_of, default=None)

    def before(self, thing: TracedOp | Message) -> TracedOp | Message | None:
        """What it has waited for in this run; None: its task's part to begin."""
        if isinstance(thing, TracedOp):
            named = [self.named.input(thing.task, text, thing.start) for text in thing.inputs]
            found = [each for each in named if each is not None and each is not thing]
            return max(found or self._done_on(thing.task, thing.ready), key=_known_end, default=None)
        if thing.sent is None or thing.sent < self.run.begins.get(thing.target, thing.sent):
            return None
        return self.named.op(thing.source, thing.tensor, thing.sent)

    def _done_on(self, task: str, moment: int) -> list[TracedOp | Message]:
        """What had happened on a task: a constant that TensorFlow has folded does not say what it waits for."""
        done: list[TracedOp | Message] = [op for op in self.run.ops if op.task == task and op.end <= moment]
        return [*done, *(m for m in self.run.messages if m.target == task and m.arrival <= moment)]

    def queue_of(self, op: TracedOp) -> tuple[str, str]:
        """(task, queue) of an op that takes or gives."""
        return op.task, op.inputs[0] if op.inputs else op.name


def end_of(thing: TracedOp | Message) -> int:
    """When it ended, or arrived."""
    return thing.end if isinstance(thing, TracedOp) else thing.arrival


def _known_end(thing: TracedOp | Message) -> int:
    """When it ended; of an inferred message, which is taken to arrive when it is used, only when it was sent is known."""
    if isinstance(thing, Message) and thing.num_bytes is None and thing.sent is not None:
        return thing.sent
    return end_of(thing)


class _Givers:
    """Who puts into queues: found for one who has taken."""

    def __init__(self, runs: Sequence[_Indexed]):
        self._by_queue: dict[tuple[str, str], list[tuple[_Indexed, TracedOp]]] = defaultdict(list)
        for indexed in runs:
            for op in indexed.run.ops:
                if op.type.startswith(_GIVES):
                    self._by_queue[indexed.queue_of(op)].append((indexed, op))

    def find(self, taker: _Indexed, op: TracedOp) -> tuple[_Indexed, TracedOp] | None:
        """The run and op that `op` has waited for, if it is in the trace: the last that began before `op` ended, and ended in it."""
        if not op.type.startswith(_TAKES):
            return None
        found = [
            (indexed, giver)
            for indexed, giver in self._by_queue[taker.queue_of(op)]
            if giver.start <= op.end and giver.end > op.start and indexed is not taker
        ]
        return max(found, key=lambda pair: pair[1].start, default=None)


class PathFinder:
    """Finds paths in a trace.

    Args:
      runs: all of it.
    """

    def __init__(self, runs: Sequence[AlignedRun]):
        self._indexed = {id(run): _Indexed(run) for run in runs}
        self._givers = _Givers(list(self._indexed.values()))

    def path(self, step: Sequence[AlignedRun]) -> list[Link]:
        """The Links of a step, in the order of time.

        Args:
          step: its runs, of which it has several with several batches.
        """
        links: list[Link] = []
        for number, run in enumerate(reversed(step), 1):
            links += self._walk(self._indexed[id(run)])
            if number < len(step):
                before = step[-number - 1]
                links.append(Link(CALL, run.server, "between two batches", run.owner, before.end, run.begin))
        return [link for link in reversed(links) if link.end > link.begin]

    def _walk(self, at: _Indexed) -> list[Link]:
        """From the end of a run to its begin, by way of others; the last link first."""
        links: list[Link] = []
        cut, moment = at.run.begin, at.run.end

        def to(begin: int, kind: str, task: str, name: str) -> None:
            nonlocal moment
            begin = max(min(begin, moment), cut)
            links.append(Link(kind, task, name, at.run.owner, begin, moment))
            moment = begin

        thing = at.last(moment)
        first = moment if thing is None else end_of(thing)
        to(first, CALL, at.run.server, "end of the call")
        seen = set()
        while thing is not None and moment > cut and (id(at), thing) not in seen:
            seen.add((id(at), thing))
            given = self._givers.find(at, thing) if isinstance(thing, TracedOp) else None
            if given is not None:
                assert isinstance(thing, TracedOp)
                to(given[1].end, WAIT, thing.task, thing.name)
                at, thing = given
                continue
            before = at.before(thing)
            task = thing.task if isinstance(thing, TracedOp) else thing.target
            begun = end_of(before) if before is not None else at.run.begins.get(task, moment)
            if isinstance(thing, TracedOp):
                to(thing.start, thing.kind, task, thing.name)
                to(begun, GAP, task, thing.name)
            else:
                kind = span_of(thing, at.run).kind
                to(begun, kind, thing.source if kind == PULL else thing.target, thing.tensor)
            thing = before
            if before is None:
                to(at.run.begin, CALL, task, "begin of the call")
        if moment > cut:
            to(cut, CALL, at.run.server, f"before {_what(at.run)} began")
        return links


def _what(run: AlignedRun) -> str:
    return f"{run.owner}'s {'update' if run.kind == UPDATE_RUN else 'step'}"


def grouped(links: Sequence[Link]) -> list[Group]:
    """Links of one kind on one task together, short gaps with what comes after them."""
    total = sum(link.end - link.begin for link in links)
    groups: list[list[Link]] = []
    pending: list[Link] = []
    for link in links:
        if link.kind == GAP and link.end - link.begin < MIN_GAP * total:
            pending.append(link)
            continue
        if groups and _key(groups[-1][-1]) == _key(link):
            groups[-1] += [*pending, link]
        else:
            groups.append([*pending, link])
        pending = []
    if pending and groups:
        groups[-1] += pending
    return [_group(group) for group in groups]


def _key(link: Link) -> tuple[str, str, str]:
    return link.kind, link.task, link.owner


def _group(links: list[Link]) -> Group:
    named = [link for link in links if link.kind != GAP] or links
    longest = max(named, key=lambda link: link.end - link.begin)
    nanos = sum(link.end - link.begin for link in links)
    return Group(longest.kind, longest.task, longest.name, longest.owner, nanos, len(named) - 1)
