"""How tensors travel between a worker and the ps tasks: small ones of one ps in one message each way, and in fewer bytes.

    pack(graph, runs, worker, pack_bytes, bucket_bytes, wire_dtype)  # once the graph is built

TensorFlow sends each variable to the worker, and each gradient back, in a message of its own, which costs about 0.1 ms on
loopback and more on a network, whatever its size. So, for each ps and type:

- small variables are read together on the ps, concatenated, sent as one tensor and split on the worker; whatever in the step
  took a read of its own is given its piece instead. A large variable is read and sent once, however often the step reads it
  (TensorFlow sends it for each use, such as a layer and its regularizer). The same goes for what one ps reads of another, such
  as the powers of Adam's betas for each update;
- small gradients are concatenated on the worker, sent as one tensor and split on the ps, where each is applied as before.

Nothing is rounded, added or reordered: a packed step makes bit for bit the same update. What is larger than `pack_bytes` goes
by itself, as copying it twice costs more than its message. Reads that have to wait for something (control dependencies) go with
such as wait for the same. Left alone are reads in loops and conditions, reads that something waits for or takes on the ps, too,
sparse reads and gradients, gradients that come of another's update, and shapes that are not known.

What is joined is a bucket of at most `bucket_bytes`, a word of PyTorch's DistributedDataParallel. A bucket waits for all that is
in it: on a slow link, one of several is on its way while another's gradients are computed. Each costs a message and an update,
though, which on a fast link is more than that gains.

With another `wire_dtype`, trainable variables are rounded to it on the ps and made their own type again on the worker (`wire`;
for gradients, `updates.parcels`): half or a quarter of the bytes travel. Variables, their slots and all arithmetic of the update
stay as they are; what is not trainable, as moving averages and counters, is never rounded.

The graph is changed after it is built, and not while `model_fn` runs, so that any code that reads variables is served: layers
of Keras, `get_variable`, regularizers; and after it is kept beside the checkpoints, as there every head of a model has to run
without the variables of the others. Alternatives were a getter that hands out packed reads (it has to know all variables
before the first is read). What is small and updated alike does not come here: it is part of a flat variable (`fusing`).
"""

import collections
import functools
import math
from typing import Any

from ps_train.compat import tf, tf1
from ps_train.wire import EXACT, is_lossy, joined, send

PUSHED = ("Identity", "Cast")  # synchronous updates', and those of a gradient that was rounded
_PS = "/job:ps/"


def map_gradient(function, gradient):
    """Applies a function of tensors to a gradient; to the values of a sparse one."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def pack(graph, runs, worker, pack_bytes, bucket_bytes, wire_dtype=EXACT, kept=None):
    """Has the small variables of a ps travel as one in a step, and its small gradients, and each of the others once.

    Args:
      graph: not finalized.
      runs: a list of ops and tensors for each thing that is run by itself, as the step, and the chief's synchronous update.
        What leads to none or to several of them is left as it is.
      worker: device of this worker's task, as `/job:worker/task:1`.
      pack_bytes: the size up to which a tensor is small; 0: none is packed.
      bucket_bytes: the size of what travels together, at most; see `chunks`.
      wire_dtype: the type in which trainable variables go to a worker.
      kept: a Kept for the trainable variables that the first of the runs pulls, or None.
    """
    if not pack_bytes and wire_dtype == EXACT and kept is None:
        return
    parts = [ancestors(run) for run in runs]
    counts = collections.Counter(op for found in parts for op in found)
    with graph.as_default(), tf1.control_dependencies(None):
        for number, found in enumerate(parts):
            own = [op for op in found if counts[op] == 1]
            _pack_reads(graph, own, worker, pack_bytes, bucket_bytes, wire_dtype, None if number else kept)
            _pack_pushes(own, worker, pack_bytes, bucket_bytes)


def _pack_reads(graph, ops, worker, pack_bytes, bucket_bytes, wire_dtype, kept):
    trainable = {variable.op for variable in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    for variable, task, before, uses in _remote_reads(graph, ops):
        is_pulled = variable.op in trainable and task == worker
        wire = wire_dtype if is_pulled else EXACT
        is_kept = is_pulled and kept is not None and not before and variable.shape.is_fully_defined()
        kind = variable.dtype.base_dtype if _is_small(variable, pack_bytes) else variable.op
        groups[variable.device, task, before, wire, kind, is_kept].append((variable, uses))
    for (device, task, before, wire, _, is_kept), members in groups.items():
        for part in chunks(members, lambda member: num_bytes(member[0]), bucket_bytes):
            with tf1.device(device), tf1.control_dependencies(before):
                values = [variable.read_value() for variable, _ in part]
            keep = functools.partial(kept.keep, device=task) if is_kept else None
            pieces = _send(values, device, task, "pack_reads", wire, keep)
            for piece, (_, uses) in zip(pieces, part, strict=True):
                reroute(uses, piece)


def _pack_pushes(ops, worker, pack_bytes, bucket_bytes):
    """Gradients come from a worker's task and are taken by an optimizer's op, or on the way there by one of PUSHED."""
    groups: dict[Any, Any] = collections.defaultdict(lambda: collections.defaultdict(list))
    for op in ops:
        is_there = is_ps(op.device) and task_of(op.device) != worker
        if not is_there or not (op.type in PUSHED or "Apply" in op.type) or is_in_control_flow(op):
            continue
        for index, tensor in enumerate(op.inputs):
            is_pushed = task_of(tensor.op.device) == worker and tensor.op.type != "Const"  # they are copied
            if is_pushed and _is_small(tensor, pack_bytes) and not is_in_control_flow(tensor.op):
                groups[tensor.op.device, op.device, tensor.dtype][tensor.ref()].append((op, index))
    for (source, target, _), uses_of in groups.items():
        takers = {op for uses in uses_of.values() for op, _ in uses}
        if takers & set(ancestors(tensor.deref() for tensor in uses_of)):
            continue  # one of the tensors comes of another's: together they would wait for themselves
        for part in chunks(list(uses_of), lambda tensor: num_bytes(tensor.deref()), bucket_bytes):
            tensors = [tensor.deref() for tensor in part]
            for tensor, piece in zip(part, _send(tensors, source, target, "pack_pushes"), strict=True):
                reroute(uses_of[tensor], piece)


def reroute(uses, tensor):
    """Gives a tensor to each (op, index of its input) in place of what it took."""
    for op, index in uses:
        op._update_input(index, tensor)


def _remote_reads(graph, ops):
    """What of these ops takes a variable of another task.

    Returns:
      list of (variable, the ops' device, tuple of the ops that the read has to wait for, [(op there, index of its input)]).
    """
    variables = {
        variable.handle.op: variable
        for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if hasattr(variable, "handle") and is_ps(variable.device)
    }
    awaited = {before for op in graph.get_operations() for before in op.control_inputs}
    uses: dict[Any, list[Any]] = collections.defaultdict(list)  # of each read
    for op in ops:
        for index, tensor in enumerate(op.inputs):
            if _is_read(tensor.op, variables):
                uses[tensor.op].append((op, index))
    found: dict[Any, list[Any]] = collections.defaultdict(list)
    for read, takers in uses.items():
        variable = variables[read.inputs[0].op]
        task, *others = {task_of(op.device) for op in read.outputs[0].consumers()}
        # What waits for this very read, or takes it on the ps, may be an update of the variable, which must not come first.
        if read not in awaited and not others and task not in ("", task_of(variable.device)):
            before = tuple(sorted(read.control_inputs, key=lambda op: op.name))
            found[variable.op, task, before] += takers
    return [(variables[handle], task, before, takers) for (handle, task, before), takers in found.items()]


def chunks(members, size_of, bucket_bytes):
    """Lists of neighbours of no more than `bucket_bytes` together, or of one."""
    parts: list[list[Any]] = []
    room = 0
    for member in members:
        room -= size_of(member)
        if not parts or room < 0:
            parts.append([])
            room = bucket_bytes - size_of(member)
        parts[-1].append(member)
    return parts


def _send(tensors, source, target, name, wire_dtype=EXACT, keep=None):
    """The tensors, which are on the device `source`, on the device `target`, having travelled as one in the form `wire_dtype`.

    `keep` is a function of what arrives, for what is to be used in its place.
    """
    is_one = len(tensors) == 1
    if is_one and not is_lossy(tensors[0], wire_dtype) and keep is None:
        return tensors
    with tf1.name_scope(None, f"ps_train/{name}"):
        with tf1.device(source):
            flat = tensors[0] if is_one else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
            wire_dtype = wire_dtype if is_one else joined(wire_dtype)
        flat = send(flat, source, target, wire_dtype)
        flat = flat if keep is None else keep(flat)
        with tf1.device(target):
            return [flat] if is_one else unpack(flat, [tensor.shape for tensor in tensors])


def unpack(flat, shapes):
    """Tensors of these shapes, of the elements of a flat one in their order."""
    pieces = tf.split(flat, [shape.num_elements() for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _is_small(tensor, pack_bytes):
    dtype = tensor.dtype.base_dtype
    is_known = tensor.shape.is_fully_defined() and (dtype.is_floating or dtype.is_integer)
    return bool(pack_bytes) and is_known and num_bytes(tensor) <= pack_bytes


def num_bytes(tensor):
    """Bytes of a tensor or variable; 0 if its shape is not known, or it holds strings."""
    dtype, shape = tensor.dtype.base_dtype, tensor.shape
    return math.prod(shape.as_list()) * dtype.size if shape.is_fully_defined() else 0


def is_ps(device):
    """Whether a device is a ps task's."""
    return task_of(device).startswith(_PS)


def task_of(device):
    """`/job:ps/task:0` of a device, "" if it names no task."""
    spec = tf.DeviceSpec.from_string(device or "")
    return "" if spec.job is None or spec.task is None else f"/job:{spec.job}/task:{spec.task}"


def _is_read(op, variables):
    """Whether an op reads one of these variables, once in a step."""
    return op.type == "ReadVariableOp" and op.inputs[0].op in variables and not is_in_control_flow(op)


def is_in_control_flow(op):
    """Whether an op is part of a loop or condition of the first kind; those of the second are functions."""
    return op._get_control_flow_context() is not None


def predecessors(op):
    """The ops whose outputs an op takes, and those that it waits for."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def ancestors(fetches):
    """The ops that lead to these ops and tensors, themselves included."""
    pending = [fetch if isinstance(fetch, tf.Operation) else fetch.op for fetch in fetches]
    found = dict.fromkeys(pending)
    while pending:
        op = pending.pop()
        for other in predecessors(op):
            if other not in found:
                found[other] = None
                pending.append(other)
    return list(found)
