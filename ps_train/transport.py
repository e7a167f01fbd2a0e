"""How tensors travel between a worker and the ps tasks: many small ones of one ps in one message each way.

    grads_and_vars = pack_gradients(grads_and_vars, worker_device, pack_bytes)     # before the update rule takes them
    pack_reads(graph, fetches, pack_bytes)                                         # once the graph is built

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
sparse reads and gradients, and shapes that are not known.

The graph is changed after it is built, and not while `model_fn` runs, so that any code that reads variables is served: layers
of Keras, `get_variable`, regularizers. Alternatives were a getter that hands out packed reads (it has to know all variables
before the first is read), and one flat variable for each ps (other names in checkpoints and fingerprints; less work for the ps).
"""

import collections
import math
from typing import Any

from ps_train.compat import tf, tf1


def pack_gradients(grads_and_vars, worker_device, pack_bytes):
    """Sends the small gradients of each ps as one.

    Args:
      grads_and_vars: list of (gradient, variable); a gradient may be None, a tensor or IndexedSlices.
      worker_device: where they are concatenated.
      pack_bytes: the size up to which a gradient is small; 0: nothing is packed.

    Returns:
      list of (gradient, variable) in the same order; a packed gradient is a tensor on its variable's ps.
    """
    packed = list(grads_and_vars)
    groups: dict[Any, list[int]] = collections.defaultdict(list)
    for position, (gradient, variable) in enumerate(packed):
        if isinstance(gradient, tf.Tensor) and _is_small(gradient, pack_bytes) and _task_of(variable.device):
            groups[variable.device, gradient.dtype].append(position)
    for (device, _), positions in groups.items():
        pieces = _send(
            [packed[position][0] for position in positions], worker_device, device, "pack_gradients"
        )
        for position, piece in zip(positions, pieces, strict=True):
            packed[position] = (piece, packed[position][1])
    return packed


def pack_reads(graph, fetches, pack_bytes):
    """Has a task read the small variables of a ps as one in a step, and each of the others once.

    Args:
      graph: not finalized.
      fetches: ops and tensors of the step; what does not lead to them is left as it is.
      pack_bytes: the size up to which a variable is small; 0: the graph is left as it is.
    """
    if not pack_bytes:
        return
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    for variable, task, before, uses in _remote_reads(graph, fetches):
        is_small = _is_small(variable, pack_bytes)
        kind = variable.dtype.base_dtype if is_small else variable.op
        groups[variable.device, task, before, kind].append((variable, uses))
    with graph.as_default(), tf1.control_dependencies(None):
        for (device, task, before, _), members in groups.items():
            with tf1.device(device), tf1.control_dependencies(before):
                values = [variable.read_value() for variable, _ in members]
            pieces = _send(values, device, task, "pack_reads")
            for piece, (_, uses) in zip(pieces, members, strict=True):
                for op, index in uses:
                    op._update_input(index, piece)


def _remote_reads(graph, fetches):
    """What another task than a variable's own takes of it.

    Returns:
      list of (variable, that task's device, tuple of the ops that the read has to wait for, [(op there, index of its input)]).
    """
    variables = {
        variable.handle.op: variable
        for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if hasattr(variable, "handle") and _task_of(variable.device).startswith("/job:ps/")
    }
    uses: dict[Any, list[Any]] = collections.defaultdict(list)  # of each read
    awaited = set()
    for op in _ancestors(fetches):
        awaited.update(op.control_inputs)
        for index, tensor in enumerate(op.inputs):
            if _is_read(tensor.op, variables):
                uses[tensor.op].append((op, index))
    found = collections.defaultdict(list)
    for read, takers in uses.items():
        variable = variables[read.inputs[0].op]
        tasks = {_task_of(op.device) for op, _ in takers}
        # What waits for this very read, or takes it on the ps, may be an update of the variable, which must not come first.
        if read not in awaited and len(tasks) == 1 and not tasks & {"", _task_of(variable.device)}:
            before = tuple(sorted(read.control_inputs, key=lambda op: op.name))
            found[(variable.op, *tasks, before)] += takers
    return [(variables[handle], task, before, takers) for (handle, task, before), takers in found.items()]


def _send(tensors, source, target, name):
    """The tensors, which are on the device `source`, on the device `target`, having travelled as one."""
    if len(tensors) < 2:
        return tensors
    with tf1.name_scope(None, f"ps_train/{name}"):
        with tf1.device(source):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        with tf1.device(target):
            pieces = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
            return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def _is_small(tensor, pack_bytes):
    dtype = tensor.dtype.base_dtype
    if not tensor.shape.is_fully_defined() or not (dtype.is_floating or dtype.is_integer):
        return False
    return math.prod(tensor.shape.as_list()) * dtype.size <= pack_bytes


def _task_of(device):
    """`/job:ps/task:0` of a device, "" if it names no task."""
    spec = tf.DeviceSpec.from_string(device or "")
    return "" if spec.job is None or spec.task is None else f"/job:{spec.job}/task:{spec.task}"


def _is_read(op, variables):
    """Whether an op reads one of these variables, once in a step."""
    return (
        op.type == "ReadVariableOp"
        and op.inputs[0].op in variables
        and op._get_control_flow_context() is None
    )


def _ancestors(fetches):
    """The ops that lead to these ops and tensors, themselves included."""
    pending = [fetch if isinstance(fetch, tf.Operation) else fetch.op for fetch in fetches]
    found = dict.fromkeys(pending)
    while pending:
        op = pending.pop()
        for other in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if other not in found:
                found[other] = None
                pending.append(other)
    return list(found)
