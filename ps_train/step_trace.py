"""Reads one traced step: where its time went on this worker, and what went over the line to and from each ps.

    metadata = tf1.RunMetadata()
    session.run(step, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=metadata)
    trace = read(metadata.step_stats, "worker:1")
    trace.parts["pull"], trace.links["ps:0"].pulled_bytes

What TensorFlow notes of a step, and what is made of it:

- each op of the step, with its start and end by the clock of its host. On this worker an op is `input` if it takes the next
  element of a dataset or queue, else `compute`; on a ps it is `wait` if it takes a token or a lock, else `update`. A worker whose
  process is a ps, too, has the ops of both: `wait` are those of the synchronous job's ledger that take a token or a lock, `update`
  those that apply gradients to variables or accumulators, and all others in the scope of such a one, an optimizer's for a variable;
- each tensor that has arrived from another task, with its bytes and, by the clock of the host that it came to, the time. It was
  under way from when the op had ended that made it: `pull` from a ps to this worker, `push` the other way. Where TensorFlow says
  that a transfer began is not used, since that mixes the clocks of both hosts. Each tensor is there once, as it is sent once;
- nothing of the chief's synchronous update, which is no part of a worker's step: it sends scalars only, and its time is in `wait`;
- scalars, such as learning rate, stamps and the global step, count as messages and bytes. Their time is `other`.

Clocks of hosts may differ. A ps's clock is taken as it is while no tensor arrives before it was sent, and else shifted to the
middle of what is possible (`timeline.clock_shift`). What goes on within one host (input, compute, update, wait) is measured by
its clock alone, the step's length by this worker's, and so is what pull and push take together; how that is divided between these
two may be wrong by as much as the clocks may be off, which is less than the time of the quickest message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ps_train.step_stats import Op, Transfer, parse
from ps_train.timeline import COMPUTE, OTHER, Span, attribute, clock_shift, covered_secs

INPUT, PULL, PUSH, UPDATE, WAIT = "input", "pull", "push", "update", "wait"
PARTS = (INPUT, COMPUTE, PULL, PUSH, UPDATE, WAIT, OTHER)
SCALAR_BYTES = 64
LEDGER_PREFIX = "ps_train_sync"  # of the names of a synchronous job's ledger, `updates.ledger`
INPUT_OPS = ("IteratorGetNext", "QueueDequeue", "ReaderRead")
UPDATING_OPS = (
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceAccumulator",
    "SparseAccumulator",
)
UPDATE_SCOPE = "update_"  # so begins the scope in which an optimizer of TensorFlow's makes the ops of one variable's update
WAITING_OPS = ("QueueDequeue", "MutexLock", "Barrier")
NANOS = 1e-9


class Traffic(NamedTuple):
    """What one step sent between this worker and a ps: bytes, messages, and seconds in which any were under way."""

    pulled_bytes: int = 0
    pushed_bytes: int = 0
    pull_messages: int = 0
    push_messages: int = 0
    pull_secs: float = 0.0
    push_secs: float = 0.0


class StepTrace(NamedTuple):
    """One step.

    Attributes:
      secs: from its first event to its last.
      parts: of PARTS -> seconds; they add up to `secs`.
      links: name of a ps -> Traffic.
    """

    secs: float
    parts: dict[str, float]
    links: dict[str, Traffic]


def read(step_stats: Any, worker: str) -> StepTrace:
    """The StepTrace of TensorFlow's `StepStats`, as this worker sees it.

    Args:
      step_stats: of a step.
      worker: the name of the worker's server, as "worker:1", or "ps:1" where it is a ps, too.
    """
    ops, transfers, _ = parse(step_stats)
    own_ends = _ends(ops[worker])
    spans = [Span(kind, op.start * NANOS, op.end * NANOS) for op, kind in with_kinds(ops, worker, worker)]
    links = {}
    for ps in sorted({task for task in ops if task.startswith("ps:") and task != worker}):
        theirs = _Theirs(ps, worker, transfers, own_ends, _ends(ops[ps]))
        spans += [
            Span(kind, op.start * NANOS + theirs.shift, op.end * NANOS + theirs.shift)
            for op, kind in with_kinds(ops, ps, worker)
        ]
        spans += theirs.spans
        links[ps] = theirs.traffic
    if not spans:
        return StepTrace(0.0, {}, {})
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    return StepTrace(end - start, attribute(spans, start, end), links)


class _Theirs:
    """One ps's side of the step: its clock's shift, the transfers as spans by this worker's clock, and their traffic."""

    def __init__(
        self,
        ps: str,
        worker: str,
        transfers: list[Transfer],
        own_ends: dict[str, float],
        ends: dict[str, float],
    ):
        pulls = [t for t in transfers if (t.source, t.target) == (ps, worker)]
        pushes = [t for t in transfers if (t.source, t.target) == (worker, ps)]
        self.shift = clock_shift(
            max(
                (own_ends[t.tensor] - t.arrival * NANOS for t in pushes if t.tensor in own_ends),
                default=float("-inf"),
            ),
            min(
                (t.arrival * NANOS - ends[t.tensor] for t in pulls if t.tensor in ends), default=float("inf")
            ),
        )
        pulled = _as_spans(PULL, pulls, ends, self.shift, 0.0)
        pushed = _as_spans(PUSH, pushes, own_ends, 0.0, self.shift)
        self.spans = [*pulled, *pushed]
        self.traffic = Traffic(
            sum(t.num_bytes for t in pulls), sum(t.num_bytes for t in pushes), len(pulls), len(pushes),
            covered_secs(pulled), covered_secs(pushed),
        )  # fmt: skip


def _as_spans(
    kind: str, transfers: list[Transfer], ends: dict[str, float], source_shift: float, target_shift: float
) -> list[Span]:
    """What was under way; a tensor whose op is not known (TensorFlow has renamed it) is left out."""
    found = []
    for tensor, _, _, arrival, num_bytes in transfers:
        if tensor in ends and num_bytes > SCALAR_BYTES:
            found.append(Span(kind, ends[tensor] + source_shift, arrival * NANOS + target_shift))
    return found


def _ends(ops: list[Op]) -> dict[str, float]:
    return {op.name: op.end * NANOS for op in ops}


def with_kinds(ops: dict[str, list[Op]], task: str, worker: str) -> list[tuple[Op, str]]:
    """What a task has run in a step, each op with the part of the step that it is.

    Args:
      ops: of each task.
      task: whose ops.
      worker: whose step it is, as in `read`.
    """
    here = ops.get(task, [])
    if task != worker:
        return [(op, _kind_there(op)) for op in here]
    updating = _update_scopes(here) if worker.startswith("ps:") else None
    return [(op, _kind_here(op, updating)) for op in here]


def _update_scopes(ops: list[Op]) -> set[str]:
    """The scopes in which optimizers change one variable each."""
    scopes = {op.name.rpartition("/")[0] for op in ops if op.type.startswith(UPDATING_OPS)}
    return {scope for scope in scopes if f"/{UPDATE_SCOPE}" in f"/{scope}"}


def _kind_here(op: Op, update_scopes: set[str] | None) -> str:
    """`update_scopes` is None on a worker that is no ps."""
    if LEDGER_PREFIX in op.name and op.type.startswith(WAITING_OPS):
        return WAIT
    if op.type.startswith(INPUT_OPS):
        return INPUT
    if update_scopes is None:
        return COMPUTE
    is_update = op.type.startswith(UPDATING_OPS) or op.name.rpartition("/")[0] in update_scopes
    return UPDATE if is_update else COMPUTE


def _kind_there(op: Op) -> str:
    return WAIT if op.type.startswith(WAITING_OPS) else UPDATE
