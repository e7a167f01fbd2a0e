"""Which updates of a graph can be one: those of a ps that do the same to each element, with the same scalars.

    found = UpdateGraph(graph, runs, cold)               # who reads, updates and awaits what
    for group in alike(found, 524288, bucket_bytes):     # lists of two Updates or more
        group[0].op.type, group[0].states["var"]

`fusing` makes one of each list.
"""

import collections
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.transport import ancestors, chunks, is_in_control_flow, is_ps, num_bytes

# What an element becomes depends on the same element of the gradient and of the slots, and on scalars.
RULES = ("GradientDescent", "Momentum", "Adagrad", "Adadelta", "Adam", "RMSProp", "CenteredRMSProp", "Ftrl")
ELEMENTWISE = frozenset(f"ResourceApply{rule}" for rule in RULES)


class Update(NamedTuple):
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


class UpdateGraph:
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
        known = {
            "ReadVariableOp",
            "VarIsInitializedOp",
            "DisableCopyOnRead",
        }  # the last is of a Saver, for parts
        waiters = self.waiters.get(variable.initializer, ())
        if any(op in self.cold and op.type != "NoOp" for op in waiters):
            return False  # another initial value waits for this one
        return all(
            op is update or op in self.cold or (op.type in known and not is_in_control_flow(op))
            for op in variable.handle.consumers()
        )  # fmt: skip


def alike(found, fuse_bytes, bucket_bytes):
    """Lists of updates that can be one: two or more, of no more than `bucket_bytes` together; none waits for itself.

    Args:
      found: UpdateGraph.
      fuse_bytes: the size up to which a variable is taken.
      bucket_bytes: the size of what is joined, at most.
    """
    groups: dict[Any, list[Update]] = collections.defaultdict(list)
    for op in found.ordered:
        update = _as_update(found, op, fuse_bytes) if op.type in ELEMENTWISE and is_ps(op.device) else None
        if update is not None:
            groups[_kind(found, update)].append(update)
    order = {variable: number for number, variable in enumerate(found.variables)}
    parts = []
    for group in groups.values():
        group.sort(key=lambda update: order[update.states["var"].handle.op])
        parts += chunks(group, lambda update: num_bytes(update.states["var"]), bucket_bytes)
    return without_cycles([part for part in parts if len(part) > 1])


def _as_update(found, op, fuse_bytes):
    """The Update that an op makes; None if it is to be left as it is."""
    inputs = dict(zip((arg.name for arg in op.op_def.input_arg), op.inputs, strict=True))
    gradient = inputs.pop(gradient_name(op))
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
    return Update(op, states, scalars, gradient)


def gradient_name(op):
    """The name that an update's op has for the input that the gradient is."""
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


def without_cycles(groups):
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
