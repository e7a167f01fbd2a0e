"""All-reduce: no ps; each worker has all variables, and TensorFlow's collectives add up the gradients of all: `--update=allreduce`.

    optimizer = AllReduceOptimizer(tf1.train.AdamOptimizer(1e-3))       # what DistributedOptimizer makes
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())

What one step does, on every worker alike:

1. all workers agree: how many have a batch, and whether one asks to stop (`Agreement`);
2. the gradients of small variables are joined (`parcels`), each parcel is summed over the workers, in a ring, and divided by
   how many had a batch;
3. each worker applies the same mean to its own variables. If nobody had a batch, nobody does, and all end.

A worker whose data is used up goes on taking part, with its first batch and gradients of zero, until all are done: the mean is of
the others' then, as in a synchronous job with ps tasks. A collective has no way out: who asks to stop makes one more step in which
all hear of it. When a worker is lost, the others end (`ring`); TensorFlow's collectives do not go on with a new process.

The ring is TensorFlow's `CollectiveReduce`, over gRPC (on GPUs NCCL): Sergeev and Del Balso, "Horovod: fast and easy distributed deep
learning in TensorFlow", 2018, have the scheme. Sparse gradients are made dense. Keys of collectives are positions in the graph, which
is the same on all workers.
"""

from typing import Any, NamedTuple

from ps_train import task_context
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.updates import DISTRIBUTED
from ps_train.updates.gate import Gate
from ps_train.updates.parcels import in_order, send_gradients
from ps_train.updates.wrapped import WrappedOptimizer

AGREEMENTS = "ps_train/agreements"
COLLECTIVES = "ps_train/collectives"
RULES = "ps_train/allreduce_rules"
GROUP_KEY = 1
BROADCAST_KEYS = 1_000_000  # above those of all steps
_SENT_AS_IT_IS = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Types that the collective does not know, and how they are sent: each value of the one is one of the other.
_SENT_AS = {
    tf.bfloat16: tf.float32, tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32,
    tf.uint32: tf.int64, tf.uint64: tf.int64,
}  # fmt: skip
_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


class Agreed(NamedTuple):
    """What all workers know of a step, from its numbers.

    Attributes:
      num_with_data: workers that had a batch.
      num_stopping: workers that want to stop.
      num_ending: those of them that want the job to end.
    """

    num_with_data: int
    num_stopping: int
    num_ending: int


class Agreement:
    """The numbers that all workers add up in each step; in the collection AGREEMENTS.

    Args:
      context: TaskContext.
      has_data: bool scalar, whether this worker's batch is one of its data.

    Attributes:
      agreed: float32 [3], an `Agreed`.
    """

    def __init__(self, context, has_data):
        self.has_data = has_data
        with tf1.control_dependencies(None), tf1.device(_cpu(context)), tf1.name_scope("ps_train/agreement"):
            wishes: Any = tf1.Variable(
                lambda: tf.zeros([2]), trainable=False, use_resource=True, name="wishes",
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            )  # fmt: skip
            self._new_wishes = tf1.placeholder(tf.float32, [2], "new_wishes")
            self._wish = wishes.assign(self._new_wishes, read_value=False)
            mine = tf.concat([[tf.cast(has_data, tf.float32)], wishes.read_value()], 0)
            self.agreed = reduce_sum(mine, context)
            self.num_with_data = self.agreed[0]
        tf1.add_to_collection(AGREEMENTS, self)

    def wish(self, session, ends_job):
        """Has the next step tell all workers that this one wants to stop; `ends_job`: that nobody is to go on."""
        session.run(self._wish, {self._new_wishes: [1.0, float(ends_job)]})


class AllReduceOptimizer(WrappedOptimizer):
    """Applies the mean of all workers' gradients to this worker's variables."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """As the wrapped optimizer's, of gradients that were checked for NaN and Inf."""
        tf1.add_to_collection(DISTRIBUTED, self)
        context = task_context.current()
        (agreed,) = tf1.get_collection(AGREEMENTS)
        grads_and_vars = [
            (g if g is None else tf.convert_to_tensor(g), variable) for g, variable in grads_and_vars
        ]
        parcels = send_gradients(grads_and_vars, self._loss, context)
        means, before = [], [agreed.agreed.op]
        for parcel in reversed(parcels):  # the last variables' gradients are there first
            with tf1.device(_cpu(context)), tf1.control_dependencies(before):
                mine = tf.where(agreed.has_data, parcel.gradient, tf.zeros_like(parcel.gradient))
                total = reduce_sum(mine, context)
                count = tf.cast(tf.maximum(agreed.num_with_data, 1), total.dtype)
                means.append(parcel._replace(gradient=total / count))
                before = [total.op]
        with tf1.device(_cpu(context)), tf1.control_dependencies(before):
            gate = Gate(agreed.num_with_data > 0, _cpu(context))
            pieces = []
            for parcel in means:
                passed = gate.let_pass(parcel)
                pieces += passed.unpack(passed.gradient)
        applied = self._optimizer.apply_gradients(in_order(pieces, grads_and_vars), global_step, name)
        tf1.add_to_collection(RULES, applied)
        return gate.finish(applied)


def reduce_sum(tensor, context):
    """The sum over all workers; on the device in scope."""
    tf1.add_to_collection(COLLECTIVES, tensor)
    if context.cluster.num_workers == 1:
        return tf.identity(tensor)
    return tf.raw_ops.CollectiveReduce(
        input=tensor, group_size=context.cluster.num_workers, group_key=GROUP_KEY,
        instance_key=len(tf1.get_collection(COLLECTIVES)), merge_op="Add", final_op="Id", subdiv_offsets=[0],
        communication_hint="auto",
    )  # fmt: skip


def broadcast(variables, context):
    """An op that gives all workers the chief's values of these variables; each worker runs it, the chief with the others.

    Variables that hold no numbers, as strings, are left out: they have their own initial values.

    Raises:
      ModelError: a variable that is trained cannot be sent, so that each worker would train another model.
    """
    if context.cluster.num_workers == 1:
        return tf.no_op()
    sent = [v for v in variables if _sent_type(v) is not None and v.shape.is_fully_defined()]
    for variable in tf1.trainable_variables():
        if not any(variable is other for other in sent):
            raise ModelError(
                f"Variable {variable.op.name} is {variable.dtype.base_dtype.name} {variable.shape}: an all-reduce cannot give "
                "the chief's initial value to the others. Give it numbers and a full shape, or trainable=False."
            )
    ops: list[Any] = []
    for number, variable in enumerate(sent):
        shape = variable.shape.concatenate([2] if variable.dtype.base_dtype in _PARTS else [])
        settings = {
            "group_size": context.cluster.num_workers, "group_key": GROUP_KEY,
            "instance_key": BROADCAST_KEYS + number, "shape": shape,
        }  # fmt: skip
        with tf1.device(_cpu(context)), tf1.control_dependencies(ops[-1:]):
            if context.is_chief:
                ops.append(tf.raw_ops.CollectiveBcastSend(input=_as_sent(variable), **settings).op)
            else:
                value = tf.raw_ops.CollectiveBcastRecv(T=_sent_type(variable), **settings)
                ops.append(variable.assign(_as_kept(value, variable.dtype.base_dtype), read_value=False))
    return tf.group(*ops)


def _sent_type(variable):
    """The type that a variable's value travels in; None if it cannot."""
    dtype = variable.dtype.base_dtype
    return dtype if dtype in _SENT_AS_IT_IS else (_SENT_AS | _PARTS).get(dtype)


def _as_sent(variable):
    value, dtype = variable.read_value(), variable.dtype.base_dtype
    if dtype in _PARTS:
        return tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    return value if dtype in _SENT_AS_IT_IS else tf.cast(value, _sent_type(variable))


def _as_kept(value, dtype):
    if dtype in _PARTS:
        return tf.complex(value[..., 0], value[..., 1])
    return tf.cast(value, dtype)


def rule_of(graph):
    """What the updates of a graph depend on beside gradients and variables, which has to be alike on all workers.

    Returns:
      (dict: name of a constant, as of a learning rate -> its value; lines on what each collective sums, in their order).
    """
    constants, seen = {}, set()
    ops = graph.get_collection(RULES)
    while ops:
        op = ops.pop()
        if op in seen or op.type in ("CollectiveReduce", "VarHandleOp"):
            continue
        seen.add(op)
        constants.update(_scalars(op.node_def, graph))
        ops += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    numbers = {
        name: value for name, value in sorted(constants.items()) if isinstance(value, (bool, int, float))
    }
    sums = [f"{tensor.dtype.name} {tensor.shape}" for tensor in graph.get_collection(COLLECTIVES)]
    return numbers, sums


def _scalars(node, graph, prefix=""):
    """(name, value) of a node's constant, or of those in its functions, as of a branch, whose own names have numbers."""
    if node.op == "Const" and tf.TensorShape(node.attr["value"].tensor.tensor_shape).num_elements() == 1:
        yield prefix + node.name, tf.make_ndarray(node.attr["value"].tensor).item()
    for key in sorted(node.attr):
        attr = node.attr[key]
        functions = [attr.func] if attr.HasField("func") else attr.list.func
        for number, function in enumerate(functions):
            for inner in graph._get_function(function.name).cached_definition.node_def:
                yield from _scalars(inner, graph, f"{prefix}{node.name}/{key}{number or ''}/")


def is_collective(error):
    """Whether an error of TensorFlow's says that a collective was given up, as when another worker ends."""
    return (
        isinstance(error, tf.errors.OpError)
        and "ollective" in f"{error.message} {error.op and error.op.type}"
    )


def leader_device(cluster):
    """What TensorFlow's server config calls the task that numbers the collectives."""
    return f"/job:ps/replica:0/task:{cluster.ps_tasks[0].index}"


def _cpu(context):
    return context.worker_device + "/device:CPU:0"
