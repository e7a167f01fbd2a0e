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
all hear of it. When a worker is lost, the others end (`worker.judge`); TensorFlow's collectives do not go on with a new process.

The ring is TensorFlow's `CollectiveReduce`, over gRPC (on GPUs NCCL): Sergeev and Del Balso, "Horovod: fast and easy distributed deep
learning in TensorFlow", 2018, have the scheme. Sparse gradients are made dense. Keys of collectives are positions in the graph, which
is the same on all workers.
"""

from typing import Any, NamedTuple

from ps_train import task_context
from ps_train.compat import tf, tf1
from ps_train.updates import DISTRIBUTED
from ps_train.updates.gate import Gate
from ps_train.updates.parcels import in_order, send_gradients
from ps_train.updates.wrapped import WrappedOptimizer

AGREEMENTS = "ps_train/agreements"
COLLECTIVES = "ps_train/collectives"
GROUP_KEY = 1
BROADCAST_KEYS = 1_000_000  # above those of all steps
BROADCAST_TYPES = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


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

    Variables of other types, as strings, are left out: they have their own initial values.
    """
    sent = [v for v in variables if v.dtype.base_dtype in BROADCAST_TYPES and v.shape.is_fully_defined()]
    if context.cluster.num_workers == 1:
        return tf.no_op()
    ops: list[Any] = []
    for number, variable in enumerate(sent):
        settings = {
            "group_size": context.cluster.num_workers, "group_key": GROUP_KEY,
            "instance_key": BROADCAST_KEYS + number, "shape": variable.shape,
        }  # fmt: skip
        with tf1.device(_cpu(context)), tf1.control_dependencies(ops[-1:]):
            if context.is_chief:
                ops.append(tf.raw_ops.CollectiveBcastSend(input=variable.read_value(), **settings).op)
            else:
                value = tf.raw_ops.CollectiveBcastRecv(T=variable.dtype.base_dtype, **settings)
                ops.append(variable.assign(value, read_value=False))
    return tf.group(*ops)


def leader_device(cluster):
    """What TensorFlow's server config calls the task that numbers the collectives."""
    return f"/job:ps/replica:0/task:{cluster.ps_tasks[0].index}"


def _cpu(context):
    return context.worker_device + "/device:CPU:0"
