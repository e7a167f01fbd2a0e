"""What a step sends between this worker and each ps, by its graph as it is built: nothing runs.

    rows = traffic(graph, [(1, [train_op, loss])], context, setting)           # of tables.Line, once the transport is laid

TensorFlow sends a tensor once to each device that takes it, whoever takes it there, and for an op that others wait for an
empty tensor; of several of one device that an op waits for, one. Constants that several devices take it copies, and what is
fetched goes to the worker. `step_trace` has what really went over the line in a step that was traced; a test compares the two.

What leads to a step and is not run in it, as the branch of a condition that is not taken, is counted here. A synchronous
update, which is the chief's and no part of a worker's step, is not.
"""

import collections
import functools
import operator
from typing import Any, NamedTuple

from ps_train.choices import BUCKET_BYTES
from ps_train.compat import tf
from ps_train.step_trace import SCALAR_BYTES
from ps_train.tables import OTHER_WORKERS, Line
from ps_train.transport import ancestors, num_bytes, predecessors, task_of

FUSED, PACKED = "ps_train/fused/", "ps_train/pack_"
MAX_COMPARED = (
    8  # ops that one waits for; an optimizer's update waits for all, and nothing is to be gained there
)
_PASSING = ("Cast", "Identity")


class _Message(NamedTuple):
    """A tensor that goes from one task to another, or None for an op that is waited for."""

    source: str
    target: str
    tensor: Any
    takers: tuple


def traffic(graph, runs, context, setting):
    """A Line for each ps that a step sends to or gets from.

    Args:
      graph: of this worker.
      runs: (how often in a step, what is run then: a list of ops and tensors).
      context: TaskContext.
      setting: autotune.Setting that the graph is wired for.

    Returns:
      list of tables.Line.
    """
    if context.is_all_reduced:
        return _ring(graph, context)
    worker = context.worker_device
    lines: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    dtypes: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    marks: dict[str, list[str]] = collections.defaultdict(list)
    for count, fetches in runs:
        for message in _messages(fetches, worker):
            if worker not in (message.source, message.target):
                continue
            is_pull = message.target == worker
            ps = message.source if is_pull else message.target
            way, size = ("pull" if is_pull else "push"), _size(message.tensor)
            lines[ps][f"{way}_messages"] += count
            lines[ps]["unsized_messages"] += count * (size is None)
            lines[ps][f"{way}ed_bytes"] += count * (size or 0)
            if size is None or size > SCALAR_BYTES:
                dtypes[ps][message.tensor.dtype.base_dtype.name] += count * (size or 1)
                marks[ps] += [f"{way} {mark}" for mark in _marks(message)]
    return [
        Line(
            _name(ps), **lines[ps], dtypes=tuple(name for name, _ in dtypes[ps].most_common()),
            how=_how(marks[ps], lines[ps], context, setting),
        )
        for ps in sorted(lines, key=lambda ps: int(ps.rpartition(":")[2]))
    ]  # fmt: skip


class _Homes:
    """The device that each op runs on, in one spelling; with its worker's where there is none.

    Whoever takes a variable's handle is where the variable is, whatever its own device says.
    """

    def __init__(self, worker):
        self._worker, self._known = worker, {}

    def device(self, op):
        """As `/job:ps/task:0/device:CPU:0`."""
        if op not in self._known:
            holder = next((tensor.op for tensor in op.inputs if tensor.dtype.base_dtype == tf.resource), op)
            self._known[op] = self._own(op) if holder is op else self.device(holder)
        return self._known[op]

    def _own(self, op):
        spec = tf.DeviceSpec.from_string(op.device or "")
        return f"{task_of(op.device) or self._worker}/device:{spec.device_type or 'CPU'}:{spec.device_index or 0}"

    def task(self, op):
        """As `/job:ps/task:0`."""
        return self.device(op).partition("/device:")[0]


def _messages(fetches, worker):
    """All that goes between tasks when these are run."""
    ops, homes = ancestors(fetches), _Homes(worker)
    waits = _Waits(homes, ops)
    uses: dict[Any, set] = collections.defaultdict(set)  # op -> devices where it is taken
    for op in ops:
        for tensor in op.inputs:
            uses[tensor.op].add(homes.device(op))
    awaited = {before for op in ops for before in op.control_inputs}
    takers: dict[Any, list[Any]] = collections.defaultdict(list)
    for op in ops:
        home, device = homes.task(op), homes.device(op)
        for tensor in op.inputs:
            is_copied = tensor.op.type == "Const" and len(uses[tensor.op]) > 1 and tensor.op not in awaited
            if homes.task(tensor.op) != home and not is_copied:
                takers[tensor.ref(), device].append(op)
        for others in waits.of(op):
            key = others[0] if len(others) == 1 else (op, *others)  # several are joined there
            takers[key, device].append((others[0], op))
    for fetch in fetches:
        if isinstance(fetch, tf.Tensor) and homes.task(fetch.op) != worker:
            takers[fetch.ref(), "fetched"].append(None)
    for (key, device), ops_there in takers.items():
        target = worker if device == "fetched" else device.partition("/device:")[0]
        if isinstance(ops_there[0], tuple):
            yield _Message(homes.task(ops_there[0][0]), target, None, ())
        else:
            tensor = key.deref()
            yield _Message(homes.task(tensor.op), target, tensor, tuple(filter(None, ops_there)))


class _Waits:
    """What an op waits for on other tasks, without what TensorFlow leaves out, as something else implies it."""

    def __init__(self, homes, ops):
        self._homes = homes
        compared = {before for op in ops if _is_compared(op) for before in op.control_inputs}
        for op in list(compared):
            while op.type == "NoOp" and len(op.control_inputs) == 1:
                op = op.control_inputs[0]
                compared.add(op)
        self._bits = {op: 1 << number for number, op in enumerate(compared)}
        self._masks = _ancestors_among(self._bits, ops)
        self._awaited: dict[Any, list] = {}

    def of(self, op):
        """Lists of ops of one device each; a constant does not wait, but who takes it."""
        if op.type == "Const" or self._is_passed(op):
            return
        home = self._homes.task(op)
        for waiting in (op, *(tensor.op for tensor in op.inputs if tensor.op.type == "Const")):
            found: dict[str, list] = collections.defaultdict(list)
            for before in self._awaited_by(waiting):
                if self._homes.task(before) != home:
                    found[self._homes.device(before)].append(before)
            yield from found.values()

    def _awaited_by(self, op):
        """Without what others of them wait for; in the place of an op that does nothing but wait for one, that one."""
        if op not in self._awaited:
            self._awaited[op] = []  # of a loop
            found = list(dict.fromkeys(map(self._behind, op.control_inputs)))
            if _is_compared(op):
                before = functools.reduce(operator.or_, (self._masks[one] for one in found), 0)
                found = [one for one in found if not before & self._bits[one]]
            self._awaited[op] = found
        return self._awaited[op]

    def _is_passed(self, op):
        return op.type == "NoOp" and len(self._awaited_by(op)) == 1

    def _behind(self, op):
        return self._awaited_by(op)[0] if self._is_passed(op) else op


def _is_compared(op):
    return 1 < len(op.control_inputs) <= MAX_COMPARED


def _ancestors_among(bits, ops):
    """Op -> the bits of all that it comes after; each op is looked at once. Of a loop's ops, some may be missing."""
    masks: dict[Any, int] = {}
    begun = set()
    for last in ops:
        pending = [last]
        while pending:
            op = pending[-1]
            if op not in begun:
                begun.add(op)
                pending += [before for before in predecessors(op) if before not in begun]
                continue
            pending.pop()
            if op not in masks:
                masks[op] = 0
                for before in predecessors(op):
                    masks[op] |= masks.get(before, 0) | bits.get(before, 0)
    return masks


def _size(tensor):
    """Bytes of a message; None if they differ from step to step."""
    if tensor is None:
        return 0
    return num_bytes(tensor) if tensor.shape.is_fully_defined() else None


def _marks(message):
    """What it is made of."""
    maker = message.tensor.op
    names = [maker.name, *(op.name for op in message.takers)]
    if any(name.startswith(FUSED) for name in names):
        yield "fused"
    while maker.type in _PASSING:
        maker = maker.inputs[0].op
    if any(name.startswith(PACKED) for name in names) or maker.type == "ConcatV2":
        yield "packed"


def _how(marks, line, context, setting):
    words = [word for word in ("fused", "packed") if any(mark.endswith(word) for mark in marks)]
    counts = collections.Counter(mark.split()[0] for mark in marks)
    if context.bucket_bytes < BUCKET_BYTES and max(counts.values(), default=0) > 1:
        words.append(f"buckets of {context.bucket_bytes} B")
    if setting.prefetch and line["pulled_bytes"]:
        words.append("prefetch")
    if context.topk < 1:
        words.append(f"topk {context.topk:g}")
    if context.step_batches > 1:
        words.append(f"once in {context.step_batches} batches")
    return tuple(words)


def _ring(graph, context):
    """Of all-reduced gradients, one row: in a ring of n each worker sends 2 (n - 1) pieces of an nth of each sum, and gets as many."""
    n, sums = (
        context.cluster.num_workers,
        [op for op in graph.get_operations() if op.type == "CollectiveReduce"],
    )
    if not sums:
        return []
    sizes = [num_bytes(op.outputs[0]) for op in sums]
    way = sum(2 * (n - 1) * size // n for size in sizes)
    messages = 2 * (n - 1) * len(sums)
    large = dict.fromkeys(
        op.outputs[0].dtype.name for op, size in zip(sums, sizes, strict=True) if size > SCALAR_BYTES
    )
    how = (f"ring of {n}", f"{len(sums)} sums")
    return [Line(OTHER_WORKERS, messages, way, messages, way, dtypes=tuple(large), how=how)]


def _name(task):
    spec = tf.DeviceSpec.from_string(task)
    return f"{spec.job}:{spec.task}"
