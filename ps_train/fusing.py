"""One flat variable for the variables that an optimizer updates alike on one ps, and one op that updates all of them.

    fused = fuse(graph, runs, worker, fuse_bytes, wire_dtype, cold=[init_op, restore_op])    # the graph is built, not finalized
    session.run(init_op)                   # or restore_op: the variables have their values, as ever
    for op in fused.load:                  # the chief: moves these into the flat variables
        session.run(op)
    session.run(train_op)                  # works on the flat ones
    session.run(variable)                  # its piece of a flat one

A ps that holds 200 small variables runs 200 updates a step and gathers 200 reads. Here, variables of one ps whose updates are
ops of one type, elementwise, with the same scalars (learning rate, decay), become pieces of one flat variable, `[elements]`,
and so do the optimizer's slots for them. A worker gets the flat variable as it lies there, with no copy on the ps, and sends one
flat gradient, which one op applies. Each element goes through the same arithmetic as before; the update is the same bit for bit,
but for the last bit with Adagrad and Adadelta, and Ftrl with a `learning_rate_power` of its own (TensorFlow's reciprocal square
root and power are others for a tensor's last elements).

Names stay what they are: initializers and restores work on the variables themselves, from which `load` moves the values, leaving
them empty. All other reads in the graph, a Saver's too, are given pieces of the flat ones; so is what is fetched by itself, and
an initializer that is run by itself or in a group of the user's writes to its piece (`variable.load`). Left as it is is every variable that is used in any
other way: assigned to, read by rows, in loops and conditions, updated more than once or by another rule; and what is larger than
`fuse_bytes`, as splitting and joining copies it on the worker.

All workers have to come to the same pieces; `Fused.layout` tells whether they did.

Alternatives were a getter that hands out pieces in place of variables (layers of Keras make theirs without it), and the flat
variable as a cache of the others (two copies, of which one is old).
"""

import collections
import functools
import itertools
import json
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.transport import (
    ancestors,
    chunks,
    is_in_control_flow,
    is_ps,
    num_bytes,
    reroute,
    task_of,
    unpack,
)
from ps_train.wire import EXACT, joined, send

# What an element becomes depends on the same element of the gradient and of the slots, and on scalars.
RULES = ("GradientDescent", "Momentum", "Adagrad", "Adadelta", "Adam", "RMSProp", "CenteredRMSProp", "Ftrl")
ELEMENTWISE = frozenset(f"ResourceApply{rule}" for rule in RULES)


class Fused(NamedTuple):
    """What came of it.

    Attributes:
      load: ops that move the variables' values into the flat ones; each is run by itself, in their order, once the variables
        were initialized or restored.
      layout: text that is the same for two tasks whose flat variables are.
      num_variables: how many variables and slots are pieces now.
    """

    load: tuple
    layout: str
    num_variables: int


class _Update(NamedTuple):
    """One variable's update.

    Attributes:
      op: of a type in ELEMENTWISE.
      states: the variable and its slots, by the names of the op's inputs.
      scalars: tensors by the names of the op's inputs.
      gradient: tensor of the variable's shape.
    """

    op: Any
    states: dict
    scalars: dict
    gradient: Any


class _Flat(NamedTuple):
    """One flat variable; `handle` is the resource, `members` are the variables in their order."""

    handle: Any
    members: list

    @property
    def device(self):
        return self.members[0].device

    @property
    def dtype(self):
        return self.members[0].dtype.base_dtype

    @property
    def sizes(self):
        return [member.shape.num_elements() for member in self.members]

    def read(self):
        """The whole, `[elements]`."""
        with tf1.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def pieces(self, whole, indices):
        """Of a tensor of all elements, those of some members: number -> tensor of the member's shape."""
        shapes, wanted = [member.shape for member in self.members], sorted(set(indices))
        if len(wanted) == len(shapes):
            return dict(enumerate(unpack(whole, shapes)))
        starts = [0, *itertools.accumulate(self.sizes)]
        return {i: tf.reshape(whole[starts[i] : starts[i + 1]], shapes[i]) for i in wanted}


def fuse(graph, runs, worker, fuse_bytes, wire_dtype=EXACT, cold=(), kept=None):
    """Makes flat variables and has the graph use them.

    Args:
      graph: not finalized.
      runs: a list of ops and tensors for each thing that is run by itself; see `transport.pack`.
      worker: device of this worker's task, as `/job:worker/task:1`.
      fuse_bytes: the size up to which a variable becomes part of a flat one; 0: none does.
      wire_dtype: the type in which trainable variables go to a worker in `runs`.
      cold: ops that initialize and restore variables.
      kept: a Kept for the trainable variables that the first of the runs pulls, or None.

    Returns:
      Fused; None if there is nothing to fuse.
    """
    if not fuse_bytes:
        return None
    found = _Graph(graph, runs, cold)
    groups = _without_cycles(_groups(found, fuse_bytes))
    if not groups:
        return None
    moved: dict[str, Any] = {}  # name of an op or tensor -> what is fetched in its place
    with graph.as_default(), tf1.control_dependencies(None), tf1.name_scope("ps_train/fused/"):
        flats = []
        replaced: dict[Any, Any] = {}
        for number, group in enumerate(groups):
            states, update = _fuse_updates(number, group)
            flats += states
            replaced.update((one.op, update) for one in group)
        for flat in flats:
            _reroute_reads(found, flat, worker, wire_dtype, kept, moved, replaced)
        _replace_awaited(graph.get_operations(), replaced)
        load = tf.group(*map(_fill, flats)), tf.group(*map(_clear, flats))
        initializers = {op: other for flat in flats for op, other in _initializers(flat).items()}
        _replace_awaited([op for op in graph.get_operations() if op not in found.cold], initializers)
    moved.update((op.name, other) for op, other in initializers.items())
    moved.update((op.name, other) for op, other in replaced.items())
    _fetch_in_place(graph, moved)
    layout = json.dumps([[flat.handle.op.name, *(m.op.name for m in flat.members)] for flat in flats])
    return Fused(load, layout, sum(len(flat.members) for flat in flats))


class _Graph:
    """What is asked about a graph.

    Attributes:
      variables: global variables on a ps, by the op of their handle, in the order in which they were made.
      cold: ops that initialize and restore.
      stepping: ops that are part of exactly one of the runs -> its number.
      waiters: op -> the ops that wait for it.
    """

    def __init__(self, graph, runs, cold):
        self.variables = {
            variable.handle.op: variable
            for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
            if hasattr(variable, "handle") and is_ps(variable.device)
        }
        self.trainable = {v.op for v in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
        self.fetched = {fetch for run in runs for fetch in run if isinstance(fetch, tf.Operation)}
        found = [ancestors(run) for run in runs]
        counts = collections.Counter(op for ops in found for op in ops)
        self.stepping = {op: number for number, ops in enumerate(found) for op in ops if counts[op] == 1}
        self.cold = set(ancestors(op for op in cold if op is not None)) - set(counts)
        self.ordered = [op for op in graph.get_operations() if op in self.stepping]
        self.waiters: dict[Any, list[Any]] = collections.defaultdict(list)
        for op in graph.get_operations():
            for before in op.control_inputs:
                self.waiters[before].append(op)

    def reads(self, variable):
        """Ops that read a variable but to initialize or restore another."""
        return [
            op for op in variable.handle.consumers() if op.type == "ReadVariableOp" and op not in self.cold
        ]

    def is_updated_by_one(self, variable, update):
        """Whether nothing changes or reads a variable in a way that a piece cannot serve."""
        known = {"ReadVariableOp", "VarIsInitializedOp"}
        waiters = self.waiters.get(variable.initializer, ())
        if any(op in self.cold and op.type != "NoOp" for op in waiters):
            return False  # another initial value waits for this one
        return all(
            op is update or op in self.cold or (op.type in known and not is_in_control_flow(op))
            for op in variable.handle.consumers()
        )  # fmt: skip


def _groups(found, fuse_bytes):
    """Lists of updates that can be one: two or more, of no more than MAX_PACK_BYTES together."""
    groups: dict[Any, list[_Update]] = collections.defaultdict(list)
    for op in found.ordered:
        update = _as_update(found, op, fuse_bytes) if op.type in ELEMENTWISE and is_ps(op.device) else None
        if update is not None:
            groups[_kind(found, update)].append(update)
    order = {variable: number for number, variable in enumerate(found.variables)}
    parts = []
    for group in groups.values():
        group.sort(key=lambda update: order[update.states["var"].handle.op])
        parts += chunks(group, lambda update: num_bytes(update.states["var"]))
    return [part for part in parts if len(part) > 1]


def _as_update(found, op, fuse_bytes):
    """The _Update that an op makes; None if it is to be left as it is."""
    inputs = dict(zip((arg.name for arg in op.op_def.input_arg), op.inputs, strict=True))
    gradient = inputs.pop(_gradient_name(op))
    states = {name: found.variables.get(t.op) for name, t in inputs.items() if t.dtype == tf.resource}
    scalars = {name: tensor for name, tensor in inputs.items() if name not in states}
    variable = states["var"]
    if (
        op in found.fetched
        or is_in_control_flow(op)
        or any(tensor.shape.rank != 0 for tensor in scalars.values())
        or any(state is None or state.shape != variable.shape for state in states.values())
        or not variable.shape.is_fully_defined()
        or not gradient.shape.is_compatible_with(variable.shape)
        or not 0 < num_bytes(variable) <= fuse_bytes
        or not all(found.is_updated_by_one(state, op) for state in states.values())
    ):
        return None
    return _Update(op, states, scalars, gradient)


def _gradient_name(op):
    return next(arg.name for arg in op.op_def.input_arg if arg.name in ("grad", "delta"))


def _kind(found, update):
    """What updates have in common that can be made as one."""
    op = update.op
    attributes = tuple(
        (attr.name, str(op.get_attr(attr.name))) for attr in op.op_def.attr
    )  # the type among them
    devices = tuple(state.device for state in update.states.values())
    container = update.states["var"].handle.op.get_attr("container")
    is_trainable = update.states["var"].op in found.trainable
    scalars = tuple((name, _origin(found, tensor)) for name, tensor in update.scalars.items())
    # Whoever runs or awaits one of the updates, and not the step, has to get no other.
    waiters = frozenset(waiter.name for waiter in found.waiters.get(op, ()))
    return (
        found.stepping[op],
        waiters,
        op.type,
        op.device,
        attributes,
        devices,
        container,
        is_trainable,
        scalars,
    )


def _origin(found, tensor):
    """The same for two tensors that are the same number, such as two reads of one variable."""
    op = tensor.op
    if op.type == "Const":
        return "constant", op.get_attr("value").SerializeToString()
    if op.type == "ReadVariableOp" and op.inputs[0].op in found.variables and not is_in_control_flow(op):
        return "read", op.inputs[0].op.name, tuple(sorted(before.name for before in op.control_inputs))
    if op.type in ("Cast", "Identity") and not op.control_inputs:
        return op.type, tensor.dtype, _origin(found, op.inputs[0])
    return "tensor", tensor.name


def _without_cycles(groups):
    """Leaves out groups that would wait for themselves, as one's gradient comes of another's update."""
    numbers = {update.op: number for number, group in enumerate(groups) for update in group}
    waits = {}
    for number, group in enumerate(groups):
        inputs = [t for u in group for t in (u.gradient, *u.scalars.values())]
        before = [op for update in group for op in update.op.control_inputs]
        waits[number] = {numbers[op] for op in ancestors([*inputs, *before]) if op in numbers}
    kept: list[int] = []
    while ready := [number for number in waits if number not in kept and waits[number] <= set(kept)]:
        kept += ready
    return [group for number, group in enumerate(groups) if number in kept]


def _fuse_updates(number, group):
    """The flat variables of a group and the op that updates them."""
    first = group[0]
    device, total = first.op.device, sum(update.states["var"].shape.num_elements() for update in group)
    flats = {}
    with tf1.device(device):
        for name, state in first.states.items():
            handle = tf.raw_ops.VarHandleOp(
                dtype=state.dtype.base_dtype, shape=[total], name=f"{number}/{name}",
                shared_name=f"ps_train/fused/{number}/{name}", container=state.handle.op.get_attr("container"),
            )  # fmt: skip
            # By this name, whoever makes constants of variables looks for their values.
            tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=state.dtype.base_dtype, name=f"{number}/{name}/Read/ReadVariableOp"
            )
            flats[name] = _Flat(handle, [update.states[name] for update in group])
    before = {op for update in group for op in update.op.control_inputs}
    gradient = _join([update.gradient for update in group], device)
    with tf1.device(device), tf1.control_dependencies(sorted(before, key=lambda op: op.name)):
        attributes = {
            attr.name: first.op.get_attr(attr.name) for attr in first.op.op_def.attr if attr.name != "T"
        }
        handles = {name: flat.handle for name, flat in flats.items()}
        update = getattr(tf.raw_ops, first.op.type)(
            **handles,
            **first.scalars,
            **{_gradient_name(first.op): gradient},
            **attributes,
            name=f"{number}/update",
        )
    return list(flats.values()), update


def _join(tensors, device):
    """The elements of all tensors as one, joined where they are, if that is one place, else on a device."""
    whole = _whole(tensors)
    if whole is None:
        homes = {task_of(tensor.op.device) for tensor in tensors}
        home = tensors[0].op.device if len(homes) == 1 and "" not in homes else device
        with tf1.device(home):
            whole = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    return whole


def _whole(tensors):
    """The tensor of which these are all the pieces, in their order; None if there is none."""
    pieces = [t.op.inputs[0] if t.op.type == "Reshape" else t for t in tensors]
    split = pieces[0].op
    is_all = split.type == "SplitV" and [piece.name for piece in pieces] == [t.name for t in split.outputs]
    if not is_all or split.inputs[0].shape.rank != 1:
        return None
    # A control dependency may be that of the shapes alone.
    ops = {op for tensor in tensors for op in (tensor.op, *(t.op for t in tensor.op.inputs[1:]))}
    before = {other for op in (split, *ops) for other in op.control_inputs}
    return split.inputs[0] if not before or before <= set(ancestors([split.inputs[0]])) else None


def _reroute_reads(found, flat, worker, wire_dtype, kept, moved, replaced):
    """Gives pieces of a flat variable to all that reads its members."""
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    for index, variable in enumerate(flat.members):
        for read in found.reads(variable):
            before = tuple(sorted(read.control_inputs, key=lambda op: op.name))
            tasks = {task_of(op.device) for op in read.outputs[0].consumers()}
            can_travel = read in found.stepping and read not in found.waiters and len(tasks) == 1
            task = tasks.pop() if can_travel and not tasks & {"", task_of(flat.device)} else None
            groups[task, before].append((index, read))
    for (task, before), reads in groups.items():
        is_pulled = flat.members[0].op in found.trainable and task == worker
        is_kept = is_pulled and kept is not None and not before
        is_kept = is_kept and all(found.stepping[read] == 0 for _, read in reads)
        keep = functools.partial(kept.keep, device=task) if is_kept else lambda tensor: tensor
        pieces = _pull(
            flat, {index for index, _ in reads}, before, task, wire_dtype if is_pulled else EXACT, keep
        )
        for index, read in reads:
            piece = pieces[index]
            uses = {
                (op, i) for op in read.outputs[0].consumers() for i, t in enumerate(op.inputs) if t.op is read
            }
            reroute(uses, piece)
            moved[read.name], moved[read.outputs[0].name] = piece.op, piece
            if read in found.waiters:
                replaced[read] = piece.op


def _pull(flat, indices, before, task, wire, keep):
    """Pieces of a flat variable, by their numbers, on a task; None: on the ps. It is sent as a whole if most of it is wanted."""
    sizes = flat.sizes
    with tf1.control_dependencies(before), tf1.device(flat.device):
        whole = flat.read()
        if task is None:
            return flat.pieces(whole, indices)
        is_most = sum(sizes[index] for index in indices) * 2 > sum(sizes)
        pieces = {} if is_most else flat.pieces(whole, indices)
    if not is_most:
        return {index: keep(send(piece, flat.device, task, wire)) for index, piece in pieces.items()}
    whole = keep(send(whole, flat.device, task, joined(wire)))
    with tf1.device(task):
        return flat.pieces(whole, indices)


def _replace_awaited(ops, replaced):
    """Has ops wait for what came in place of what they waited for."""
    for op in ops:
        before = op.control_inputs
        if any(other in replaced for other in before) and op not in replaced:
            op._remove_all_control_inputs()
            op._add_control_inputs(list(dict.fromkeys(replaced.get(other, other) for other in before)))


def _fill(flat):
    """Op that copies the members' values."""
    with tf1.device(flat.device):
        values = [tf.reshape(member.read_value(), [-1]) for member in flat.members]
        return tf.raw_ops.AssignVariableOp(resource=flat.handle, value=tf.concat(values, 0))


def _clear(flat):
    """Op that leaves the members an empty value, so that whoever missed a read fails and gets no old one.

    Not in one run with a read: TensorFlow's optimizer takes the shape that is assigned for the one that is read.
    """
    with tf1.device(flat.device):
        # Of no shape that is known: TensorFlow refuses another than the variable's when the graph is built.
        empty = tf1.placeholder_with_default(tf.zeros([0], flat.dtype), None)
        clear = [tf.raw_ops.AssignVariableOp(resource=member.handle, value=empty) for member in flat.members]
        return tf.group(*clear)


def _initializers(flat):
    """For each member's initializer an op that does the same to its piece."""
    ops, start = {}, 0
    for member, size in zip(flat.members, flat.sizes, strict=True):
        value = member.initializer.inputs[1]
        with tf1.device(flat.device):
            ops[member.initializer] = tf.raw_ops.ResourceStridedSliceAssign(
                ref=flat.handle, begin=[start], end=[start + size], strides=[1], value=tf.reshape(value, [-1])
            )
        start += size
    return ops


def _fetch_in_place(graph, moved):
    """Has `Session.run` fetch other ops and tensors in place of these."""
    find = graph.as_graph_element

    def as_graph_element(obj, allow_tensor=True, allow_operation=True):
        element = find(obj, allow_tensor, allow_operation)
        return moved.get(element.name, element)

    graph.as_graph_element = as_graph_element
