"""Which task holds what: variables on the ps tasks, everything else on the worker that builds the graph.

    with placement.scope(context):
        ...                                # variables on /job:ps, the rest on this worker, without user device scopes

- Model variables of any type (trainable or not, int64, string, partitioned) and mutable tables go to the ps tasks in turn,
  with their slots; `replica_device_setter` of TensorFlow does that part.
- Local variables (metrics, epochs counters) and static tables, iterators and input belong to one worker. The stock setter
  puts local variables on the ps, where workers would share them by name: `scope` pins them to the worker.
- A device scope of the user's wins over all of these.
"""

import contextlib
import itertools

from ps_train import task_context
from ps_train.compat import tf1


def replica_device_setter(
    ps_tasks=0,
    ps_device="/job:ps",
    worker_device=None,
    merge_devices=True,
    cluster=None,
    ps_ops=None,
    ps_strategy=None,
):
    """Device function for `tf1.device`, with TensorFlow's signature.

    Arguments left out come from this process's task, and the cluster always does.

    >>> with tf1.Graph().as_default(), tf1.device(replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
    ...     devices = [tf1.get_variable(name, [3]).device for name in "abc"]
    >>> devices
    ['/job:ps/task:0', '/job:ps/task:1', '/job:ps/task:0']

    Returns:
      A function for `tf1.device(...)`. Local variables are not told apart here (a device function sees no collections);
      `scope` does both.
    """
    context = task_context.current_or_none()
    if context is not None:
        worker_device = worker_device or context.worker_device
        cluster = None
        ps_tasks = ps_tasks or context.cluster.num_ps
        ps_strategy = ps_strategy or RoundRobin([task.index for task in context.cluster.ps_tasks])
    return tf1.train.replica_device_setter(
        ps_tasks=ps_tasks, ps_device=ps_device, worker_device=worker_device or "/job:worker",
        merge_devices=merge_devices, cluster=cluster, ps_ops=ps_ops, ps_strategy=ps_strategy,
    )  # fmt: skip


class RoundRobin:
    """The next ps in turn for each new variable; a `ps_strategy` that knows clusters whose indices have gaps.

    Args:
      indices: task indices of the ps tasks.
    """

    def __init__(self, indices):
        self._turns = itertools.cycle(indices)

    def __call__(self, op):
        """The index of the ps for `op`."""
        return next(self._turns)


@contextlib.contextmanager
def scope(context):
    """Device scope for building a task's graph.

    Args:
      context: the TaskContext, or None for a single process without a cluster (then no device is set).
    """
    if context is None:
        yield
        return
    setter = tf1.train.replica_device_setter(
        ps_tasks=context.cluster.num_ps,
        worker_device=context.worker_device,
        ps_strategy=RoundRobin([task.index for task in context.cluster.ps_tasks]),
    )
    with tf1.device(setter), tf1.variable_creator_scope(_local_creator(context.worker_device)):
        yield


def _local_creator(worker_device):
    def create(next_creator, **kwargs):
        collections = kwargs.get("collections") or ()
        if tf1.GraphKeys.LOCAL_VARIABLES not in collections or tf1.GraphKeys.GLOBAL_VARIABLES in collections:
            return next_creator(**kwargs)
        with tf1.device(worker_device):
            return next_creator(**kwargs)

    return create
