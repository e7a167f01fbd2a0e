"""Which task holds what: variables on the ps tasks, everything else on the worker that builds the graph.

    with placement.scope(context):
        ...                                # variables on /job:ps, the rest on this worker, without user device scopes

- Model variables of any type (trainable or not, int64, string, partitioned) and mutable tables go to the ps tasks, with their
  slots: each new one to the ps that holds the fewest bytes. `replica_device_setter` of TensorFlow does the rest of that part.
- With `--colocate_ps` the first worker's process gets the first `--first_ps_bytes` by itself. What one process holds takes the
  others one message each way, and its own worker and the synchronous update none at all, where parts on all take several, one after
  the other: on one host small models train 1.3 to 1.5 times faster so. Between hosts its link would carry every worker's pulls and
  pushes, N - 1 times the variables' size each way, where with even parts each link carries its part both ways at once.
- Local variables (metrics, epochs counters) and static tables, iterators and input belong to one worker. The stock setter
  puts local variables on the ps, where workers would share them by name: `scope` pins them to the worker.
- A device scope of the user's wins over all of these.
- With `--update=allreduce` everything is on the worker.
- With `--partition=auto`, large variables are split first, and each part is placed by itself (`splitting`).
"""

import contextlib
import re
from typing import Any, NamedTuple

from ps_train import task_context
from ps_train.compat import tf, tf1
from ps_train.splitting import AUTO, SPLIT_PARTS, SPLITTABLE, Splitter
from ps_train.tables import Held
from ps_train.wording import LOPSIDED, as_bytes, imbalance

GATHERED_BYTES = 4 * 2**20  # small enough for nobody to care whose memory it takes
FAR_BYTES = 64 * 1024  # so much takes 1 Gbit/s as long as the messages that it saves
LARGE_BYTES = 10_000_000  # what is in the way of evenly filled ps tasks is worth a word if it has as many
_PART = re.compile(r"/part_\d+(_\d+)?$")
STRING_BYTES = 8  # counted for an element whose size nobody knows


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
        ps_strategy = ps_strategy or _strategy(context)
    return tf1.train.replica_device_setter(
        ps_tasks=ps_tasks, ps_device=ps_device, worker_device=worker_device or "/job:worker",
        merge_devices=merge_devices, cluster=cluster, ps_ops=ps_ops, ps_strategy=ps_strategy,
    )  # fmt: skip


class LeastLoaded:
    """The ps with the fewest bytes for each new variable, of several the one with the fewest variables; a `ps_strategy`.

    Every worker makes the same variables in the same order, and so comes to the same placement. What is counted are the
    variables themselves: their slots go with them, in proportion. (The strategy of this kind that TensorFlow had in contrib,
    GreedyLoadBalancingStrategy, is gone.)

    Args:
      indices: task indices of the ps tasks, which may have gaps.
      first_bytes: the first of them is chosen until it holds so many, but for parts of partitioned variables.
    """

    def __init__(self, indices, first_bytes=0):
        self._loads = {index: (0, 0) for index in indices}
        self._first, self._first_bytes = min(indices), first_bytes

    def __call__(self, op):
        """The index of the ps for `op`, if no device scope of the user's names one."""
        index = tf.DeviceSpec.from_string(op.device).task
        if index not in self._loads:
            index = min(self._loads, key=self._loads.__getitem__)
            is_part = _PART.search(op.name) is not None  # of a partitioned variable, which is to be spread
            if self._loads[self._first][0] < self._first_bytes and not is_part:
                index = self._first
        held, count = self._loads[index]
        self._loads[index] = (held + _op_bytes(op), count + 1)
        return index


def _strategy(context):
    return LeastLoaded([task.index for task in context.cluster.ps_tasks], context.first_ps_bytes)


def first_ps_limit(setting, cluster):
    """The flag `--first_ps_bytes` in bytes, for a cluster."""
    if setting != "auto":
        return int(setting)
    if not cluster.is_colocated:
        return 0
    if cluster.num_on_host_of(cluster.chief_task) == len(cluster.tasks):
        return GATHERED_BYTES
    return FAR_BYTES // (cluster.num_workers - 1)


def _op_bytes(op):
    """Bytes of the variable that an op makes; 0 for a table, or a shape that is not known."""
    try:
        return _bytes_of(tf.TensorShape(op.get_attr("shape")), op.get_attr("dtype"))
    except ValueError:
        return 0


def _bytes_of(shape, dtype):
    size = tf.as_dtype(dtype).size or STRING_BYTES
    return (shape.num_elements() or 0) * size if shape.is_fully_defined() else 0


class Share(NamedTuple):
    """What one ps holds.

    Attributes:
      ps: name of its task.
      num_bytes: of its variables, slots included.
      num_variables: slots included.
      largest: name of the variable that takes the most room, with its slots.
      largest_bytes: of that one and its slots.
    """

    ps: str
    num_bytes: int
    num_variables: int
    largest: str
    largest_bytes: int


def held(cluster, variables):
    """Which ps holds what.

    >>> cluster = ps_train.Cluster.from_hosts("p0:1,p1:1", "w0:1")
    >>> with tf1.Graph().as_default(), tf1.device("/job:ps/task:1"):
    ...     v = tf1.get_variable("v", [100, 10])
    >>> [(row.ps, row.name, row.shape, row.total_bytes) for row in held(cluster, [v])]
    [('ps:1', 'v', (100, 10), 4000)]

    Returns:
      list of tables.Held, of the variables that are on any ps, in their order; slots are counted with theirs.
    """
    names = {str(task) for task in cluster.ps_tasks}
    rows: dict[tuple[str, str], Held] = {}
    for variable in variables:  # slots are made after their variable, as NAME/SLOT
        device = tf.DeviceSpec.from_string(variable.device or "")
        ps, name = f"{device.job}:{device.task}", variable.op.name
        if ps not in names:
            continue
        primary = (ps, name.rpartition("/")[0])
        size = _bytes_of(variable.shape, variable.dtype.base_dtype)
        if primary in rows:
            row = rows[primary]
            rows[primary] = row._replace(num_slots=row.num_slots + 1, slot_bytes=row.slot_bytes + size)
        else:
            rows[ps, name] = _row(ps, variable, size)
    return list(rows.values())


def _row(ps, variable, size):
    info = variable._get_save_slice_info()
    shape = tuple(variable.shape.as_list()) if variable.shape.rank is not None else (None,)
    dtype = variable.dtype.base_dtype.name
    if info is None:
        return Held(ps, variable.op.name, shape, dtype, size)
    part, whole = tuple(info.var_offset), tuple(info.full_shape)
    return Held(ps, info.full_name, shape, dtype, size, part=part, whole=whole)


def shares(cluster, rows):
    """A Share for each ps of the cluster, in its order, of the rows of `held`."""
    found = []
    for ps in map(str, cluster.ps_tasks):
        own = [row for row in rows if row.ps == ps]
        largest_bytes, largest = max(((row.total_bytes, row.name) for row in own), default=(0, ""))
        num_variables = sum(1 + row.num_slots for row in own)
        found.append(Share(ps, sum(row.total_bytes for row in own), num_variables, largest, largest_bytes))
    return found


def advice(found):
    """What would even out lopsided shares of the default graph's variables, in words, or ""."""
    fullest = max(found, key=lambda share: share.num_bytes)
    mean = sum(share.num_bytes for share in found) / len(found)
    if imbalance(share.num_bytes for share in found) < LOPSIDED or fullest.largest_bytes <= max(
        mean, LARGE_BYTES
    ):
        return ""
    halves = {v.op.name for v in tf1.global_variables() if v.dtype.base_dtype == tf.float16}
    split = {_PART.sub("", name) for name in tf1.get_collection(SPLIT_PARTS)}
    if fullest.largest in split | halves:
        return ""  # no restore reads parts of a float16 variable
    by_hand = f"tf.compat.v1.get_variable(..., partitioner=tf.compat.v1.fixed_size_partitioner({len(found)}))"
    how = "--partition=auto, or " if fullest.largest in tf1.get_collection(SPLITTABLE) else ""
    return f"{fullest.ps} has {fullest.largest}, which is more than its part. Split it: {how}{by_hand}"


def describe_splits(variables):
    """A line for each large variable in parts, of those of one training: which rows are where.

    >>> cluster = ps_train.Cluster.from_hosts("p0:1,p1:1", "w0:1")
    >>> context = task_context.TaskContext(ps_train.TaskId("worker", 0), cluster, partition="auto")
    >>> with tf1.Graph().as_default(), scope(context):
    ...     v = tf1.get_variable("v", [500_000, 10])
    ...     describe_splits(tf1.global_variables())
    ['v [500000, 10], 20 MB: rows 0-249999 on ps:0, 250000-499999 on ps:1']
    """
    parts: dict[str, list[Any]] = {}
    for variable in variables:
        info = variable._get_save_slice_info()
        if info is not None and variable.trainable:
            parts.setdefault(info.full_name, []).append((info, variable))
    lines = []
    for name, members in parts.items():
        shape = tf.TensorShape(members[0][0].full_shape)
        if any(sum(map(bool, info.var_offset[1:])) for info, _ in members):
            continue
        where = []
        for info, variable in members:
            device, start = tf.DeviceSpec.from_string(variable.device or ""), info.var_offset[0]
            where.append(f"{start}-{start + info.var_shape[0] - 1} on {device.job}:{device.task}")
        size = as_bytes(_bytes_of(shape, members[0][1].dtype.base_dtype))
        lines.append(f"{name} {shape.as_list()}, {size}: rows {', '.join(where)}")
    return lines


@contextlib.contextmanager
def scope(context):
    """Device scope for building a task's graph.

    Args:
      context: the TaskContext, or None for a single process without a cluster (then no device is set).
    """
    if context is None:
        yield
        return
    if context.is_all_reduced:
        with tf1.device(context.worker_device):
            yield
        return
    setter = _Setter(
        tf1.train.replica_device_setter(
            ps_tasks=context.cluster.num_ps,
            worker_device=context.worker_device,
            ps_strategy=_strategy(context),
        )
    )
    splitter = Splitter(context.cluster.num_ps, context.partition == AUTO, setter)
    with (
        tf1.device(setter),
        tf1.variable_creator_scope(_local_creator(context.worker_device)),
        tf1.variable_scope(tf1.get_variable_scope(), custom_getter=splitter, auxiliary_name_scope=False),
    ):
        yield


class _Setter:
    """A device function that can say what the scopes within it ask for."""

    def __init__(self, setter):
        self._setter = setter
        self._asked = None
        self._placed = set()

    def __call__(self, op):
        self._asked = op.device
        if op.type == "VarHandleOp" and _names_a_task(op.device):
            self._placed.add(op.name)
        return self._setter(op)

    def is_placed(self, name):
        """Whether a device scope of the user's named the task of this variable."""
        return name in self._placed

    def is_overruled(self):
        """Whether a device scope or a colocation of the user's names the task of what would be made now, or none is set."""
        self._asked = None
        with tf.init_scope(), tf1.name_scope(None):
            probe = tf.no_op("ps_train/place")
        is_colocated = probe.colocation_groups() != [f"loc:@{probe.name}".encode()]
        return is_colocated or self._asked is None or _names_a_task(self._asked)


def _names_a_task(device):
    return tf.DeviceSpec.from_string(device).task is not None


def _local_creator(worker_device):
    def create(next_creator, **kwargs):
        collections = kwargs.get("collections") or ()
        if tf1.GraphKeys.LOCAL_VARIABLES not in collections or tf1.GraphKeys.GLOBAL_VARIABLES in collections:
            return next_creator(**kwargs)
        with tf1.device(worker_device):
            return next_creator(**kwargs)

    return create
