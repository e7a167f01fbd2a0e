"""What a step does on each ps between two messages, found in its graph; and locks, under which it then does it as a whole.

    parts = cut([step, loss])
    parts.sections                                  # pieces on a ps that read or change something there
    unlocks = serialize(parts, label, path_of, gates)    # --record: each of them under its ps's lock, with a line in its file

A piece is what lies on one task between two messages: an op's level is the number of messages on the longest way to it, and a
piece has the ops of a task that have one level. In most graphs a ps has two: the variables are read (level 0), and, the gradients
having come (level 2), they are updated. All messages go from lower levels to higher ones, so pieces need not wait for one another
in a circle; and what is in a piece needs nothing of other tasks once all its inputs are there. Only then is the lock of its ps
taken: whoever has one waits for nobody, and is not in the way of others for longer than the work takes. So a pull is of one version of
its ps, and a push is one place in the order of its updates, while on several ps those may be in different orders, as without locks.

Alternatives: one lock for all ps tasks (what a push on two of them can bring about would no longer come about); locks that an
update takes in model code, as `updates.stale` does (moving averages and other assignments of a model would be outside of them).

The same cut is where a replay takes a step apart: it feeds to each piece what the others gave (`replay`).
"""

import collections
import hashlib
import os
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.transport import ancestors, is_in_control_flow, is_ps, predecessors, task_of

WORKER = ""
READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp LookupTableFindV2 LookupTableSizeV2 "
    "LookupTableExportV2".split()
)
MUTEX = "ps_train/record_mutex"
_STATEFUL: dict[str, bool] = {}  # of the types of ops that were met


class Key(NamedTuple):
    """Which piece: its level, and the device of its ps, or WORKER."""

    level: int
    task: str


class Cut:
    """A step in pieces.

    Attributes:
      pieces: Key -> its ops, before those that come of them.
      sections: Keys of those on a ps with a state, in their order.
      fetches: what was cut.
    """

    def __init__(self, pieces, keys, fetches):
        self.pieces, self._keys, self.fetches = pieces, keys, fetches
        self.consumers = collections.defaultdict(list)
        for op in keys:
            for before in predecessors(op):
                self.consumers[before].append(op)
        self.sections = sorted(
            key for key, ops in pieces.items() if is_ps(key.task) and any(map(has_state, ops))
        )

    def key_of(self, op):
        """The piece of an op; None for constants and what is made of them, and handles, which belong to all."""
        return self._keys.get(op)

    def inputs(self, key):
        """Tensors of other pieces that a piece takes, in an order of their own."""
        taken = {t.name: t for op in self.pieces[key] for t in op.inputs if self._is_other(t.op, key)}
        return [taken[name] for name in sorted(taken)]

    def awaited(self, key):
        """Ops of other pieces that a piece waits for."""
        found = {b.name: b for op in self.pieces[key] for b in op.control_inputs if self._is_other(b, key)}
        return [found[name] for name in sorted(found)]

    def outputs(self, key):
        """Tensors of a piece that others take, or that were to be fetched."""
        wanted = {t.name: t for t in self.fetches if isinstance(t, tf.Tensor) and self.key_of(t.op) == key}
        for other in self.pieces:
            wanted.update((t.name, t) for t in self.inputs(other) if self.key_of(t.op) == key)
        return [wanted[name] for name in sorted(wanted)]

    def ends(self, key):
        """Ops of a piece by which all of it is done."""
        return [op for op in self.pieces[key] if not any(self.key_of(c) == key for c in self.consumers[op])]

    def _trains(self, key):
        graph = self.pieces[key][0].graph
        trained = {variable.handle.op for variable in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
        return any(
            "Apply" in op.type or any(tensor.op in trained for tensor in op.inputs)
            for op in self.pieces[key]
            if has_state(op) and op.type not in READS
        )

    def writes(self, key):
        """Whether a section changes anything on its ps."""
        return any(has_state(op) and op.type not in READS for op in self.pieces[key])

    def describe(self):
        """[[ps, whether it changes something, whether it is the update of trainable variables]] of the sections."""
        return [
            [tf.DeviceSpec.from_string(key.task).task, self.writes(key), self._trains(key)]
            for key in self.sections
        ]

    @property
    def digest(self):
        """The same for two graphs whose sections do the same to the same variables; names of other ops depend on hooks."""
        lines = []
        for key in self.sections:
            for op in filter(has_state, self.pieces[key]):
                handles = [tensor.op.name for tensor in op.inputs if tensor.dtype == tf.resource]
                lines.append(f"{key} {op.type} {handles}")
        return _hash(lines)

    @property
    def seeds(self):
        """The same for two graphs whose random ops have the same seeds."""
        found = [
            f"{op.name} {op.get_attr('seed')} {op.get_attr('seed2')}"
            for op in self._keys
            if {"seed", "seed2"} <= {attribute.name for attribute in op.op_def.attr}
        ]
        return _hash(found)

    def _is_other(self, op, key):
        return self.key_of(op) not in (None, key)


def _hash(lines):
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def cut(fetches):
    """The Cut of what leads to these ops and tensors.

    Raises:
      ModelError: they cannot be cut there, naming the op.
    """
    keys: dict[Any, Key] = {}
    constants: set[Any] = set()
    for op in _in_order(ancestors(fetches)):
        if _is_constant(op, constants):
            constants.add(op)
        if op in constants or _is_handle(op):
            continue
        task = _home(op)
        before = [keys[other] for other in _before(op) if other in keys]
        level = max((one.level + (one.task != task) for one in before), default=0)
        keys[op] = Key(level, task)
    _sink(keys)
    pieces: dict[Key, list[Any]] = collections.defaultdict(list)
    for op, key in keys.items():
        pieces[key].append(op)
    found = Cut(dict(sorted(pieces.items())), keys, list(fetches))
    for key in found.pieces:
        _check(found, key)
    return found


def _sink(keys):
    """Puts ops without a state on a ps into the piece there that takes what they give: a gate's, into that which it is for."""
    takers: dict[Any, list[Any]] = collections.defaultdict(list)
    for op in reversed(keys):
        key = keys[op]
        if is_ps(key.task) and not has_state(op):
            taking = {keys[taker] for taker in takers[op]}
            if taking and {one.task for one in taking} == {key.task}:
                keys[op] = min(taking)
        for before in predecessors(op):
            takers[before].append(op)


def _check(found, key):
    for op in found.pieces[key]:
        if is_ps(key.task) and (
            op.type in ("Variable", "VariableV2") or (has_state(op) and is_in_control_flow(op))
        ):
            raise ModelError(
                f"--record cannot follow {op.name}, a {op.type} on a ps: it takes resource variables, outside of loops and branches of "
                "the first kind. Leave --record out, or make it a resource variable of TensorFlow 2's kind."
            )
    for tensor in found.inputs(key):
        is_apart = tensor.dtype in (tf.resource, tf.variant) or tensor.op.type == "Switch"
        if is_apart or is_in_control_flow(tensor.op):
            raise ModelError(
                f"--record cannot follow {tensor.name}, a {tensor.dtype.name} that goes from one part of the step to another. Leave "
                "--record out."
            )


def has_state(op):
    """Whether an op reads or changes something that outlives the step."""
    if op.type not in _STATEFUL:
        _STATEFUL[op.type] = op.op_def.is_stateful
    return _STATEFUL[op.type] or any(tensor.dtype == tf.resource for tensor in op.inputs)


def _is_handle(op):
    return not op.inputs and bool(op.outputs) and all(tensor.dtype == tf.resource for tensor in op.outputs)


def _is_constant(op, constants):
    """Whether an op waits for nothing and is a constant, or made of these alone, which TensorFlow computes in advance."""
    if op.control_inputs or has_state(op) or not (op.inputs or op.type == "Const"):
        return False
    return all(tensor.op in constants for tensor in op.inputs)


def _home(op):
    """The device of an op's ps, or WORKER: what takes a handle is where that is, whatever a device scope says (as TensorFlow has it)."""
    handles = [tensor.op for tensor in op.inputs if tensor.dtype == tf.resource]
    if handles and not is_ps(op.device):
        return _home(handles[0])
    return task_of(op.device) if is_ps(op.device) else WORKER


def _before(op):
    """As `predecessors`, without those by which a loop goes round."""
    return [other for other in predecessors(op) if not (op.type == "Merge" and other.type == "NextIteration")]


def _in_order(ops):
    """The ops, each after those that lead to it."""
    known = set(ops)
    done: dict[Any, None] = {}
    for root in sorted(ops, key=lambda op: op.name):
        stack = [root]
        while stack:
            op = stack[-1]
            pending = [b for b in _before(op) if b in known and b not in done] if op not in done else []
            if pending:
                stack += pending
            else:
                done[stack.pop()] = None
    return list(done)


def serialize(parts, label, path_of, gates=()):
    """Puts each section of a graph that is not finalized yet under its ps's lock.

    Args:
      parts: Cut.
      label: string scalar, with which the line of each section begins.
      path_of: gives the file of a ps, by its index, in which that ps writes them.
      gates: `updates.gate.Gate`s in it: what is behind one that is shut is never done.

    Returns:
      list of ops, which are done when the locks are given back: what runs the step has to wait for them.
    """
    with label.graph.as_default(), tf1.control_dependencies(None), tf1.name_scope("ps_train/record/"):
        dead = [(gate, _behind(parts, gate)) for gate in gates]
        return [_lock(parts, number, key, label, path_of, dead) for number, key in enumerate(parts.sections)]


def _lock(parts, number, key, label, path_of, dead):
    taken, awaited = parts.inputs(key), parts.awaited(key)
    with tf1.device(f"{key.task}/device:CPU:0"):
        arrived = [_arrive(tensor, dead) for tensor in taken]
        line = tf.strings.join([label, str(number)], " ")
        ready = _done(dict.fromkeys([*arrived, *awaited]), dead, key.task)
        mutex = tf.raw_ops.MutexV2(shared_name=MUTEX)
        with tf1.control_dependencies([*ready, line]):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf1.control_dependencies([lock]):
            written = write_line(line, path_of, key.task)
        work = [op for op in parts.pieces[key] if has_state(op)]
        for op in work:
            op._add_control_input(written)
        with tf1.control_dependencies([written, *_done(work, dead, key.task)]):
            return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


def _arrive(tensor, dead):
    """An op that is done when a tensor has come."""
    op = tf.identity(tensor).op
    for _, found in dead:
        found.update([op] if tensor.op in found else [])
    return op


def write_line(line, path_of, task):
    """Op that adds a line to the file of a ps, on its host."""
    path = path_of(tf.DeviceSpec.from_string(task).task)
    return tf.raw_ops.PrintV2(input=line, output_stream=f"file://{os.fspath(path)}", end="\n")


def _behind(parts, gate):
    """The ops that are not done if a gate is shut."""
    switches = [op for op in gate.is_open.consumers() if op.type == "Switch" and op.inputs[1] is gate.is_open]
    pending = [op for switch in switches for op in parts.consumers[switch]]
    found = set()
    while pending:
        op = pending.pop()
        if op not in found and op.type != "Merge":
            found.add(op)
            pending += parts.consumers[op]
    return found


def _done(ops, dead, task):
    """Ops that are done when these are, or are never going to be."""
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    for op in ops:
        groups[tuple(number for number, (_, found) in enumerate(dead) if op in found)].append(op)
    done = []
    for gates, members in groups.items():
        waited = members if not gates else [tf.group(*members)]
        for number in gates:
            waited = [dead[number][0].finish(waited[0], task)]
        done += waited
    return done
