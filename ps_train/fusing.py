"""One flat variable for the variables that an optimizer updates alike on one ps, and one op that updates all of them.

    fused = fuse(graph, runs, worker, fuse_bytes, bucket_bytes, cold=[init_op, restore_op])  # the graph is built, not finalized
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
import json
from typing import Any, NamedTuple

from ps_train.alike import UpdateGraph, alike, gradient_name
from ps_train.compat import tf, tf1
from ps_train.flat_variable import FlatVariable
from ps_train.transport import (
    ancestors,
    reroute,
    task_of,
)
from ps_train.wire import EXACT, joined, send


class Fused(NamedTuple):
    """What came of it.

    Attributes:
      load: ops that move the variables' values into the flat ones; each is run by itself, in their order, once the variables
        were initialized or restored.
      layout: JSON, for each flat variable a list of its name and its pieces'; the same for two tasks whose flat variables are.
    """

    load: tuple
    layout: str


def fuse(graph, runs, worker, fuse_bytes, bucket_bytes, wire_dtype=EXACT, cold=(), kept=None):
    """Makes flat variables and has the graph use them.

    Args:
      graph: not finalized.
      runs: a list of ops and tensors for each thing that is run by itself; see `transport.pack`.
      worker: device of this worker's task, as `/job:worker/task:1`.
      fuse_bytes: the size up to which a variable becomes part of a flat one; 0: none does.
      bucket_bytes: the size of a flat variable, at most.
      wire_dtype: the type in which trainable variables go to a worker in `runs`.
      cold: ops that initialize and restore variables.
      kept: a Kept for the trainable variables that the first of the runs pulls, or None.

    Returns:
      Fused; None if there is nothing to fuse.
    """
    if not fuse_bytes:
        return None
    found = UpdateGraph(graph, runs, cold)
    groups = alike(found, fuse_bytes, bucket_bytes)
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
        load = tf.group(*(flat.fill() for flat in flats)), tf.group(*(flat.clear() for flat in flats))
        initializers = {op: other for flat in flats for op, other in flat.initializers().items()}
        _replace_awaited([op for op in graph.get_operations() if op not in found.cold], initializers)
    moved.update((op.name, other) for op, other in initializers.items())
    moved.update((op.name, other) for op, other in replaced.items())
    _fetch_in_place(graph, moved)
    layout = json.dumps([[flat.handle.op.name, *(m.op.name for m in flat.members)] for flat in flats])
    return Fused(load, layout)


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
            flats[name] = FlatVariable(handle, [update.states[name] for update in group])
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
            **{gradient_name(first.op): gradient},
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


def _fetch_in_place(graph, moved):
    """Has `Session.run` fetch other ops and tensors in place of these."""
    find = graph.as_graph_element

    def as_graph_element(obj, allow_tensor=True, allow_operation=True):
        element = find(obj, allow_tensor, allow_operation)
        return moved.get(element.name, element)

    graph.as_graph_element = as_graph_element
