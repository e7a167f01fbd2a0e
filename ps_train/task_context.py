"""Which task of which cluster this process is: set once when the task's server starts, read where graphs are built.

TensorFlow's own API (`SyncReplicasOptimizer(opt, ...)`, a user's `model_fn` that wraps its optimizer) has no argument for
it, and a process is one task for its whole life.
"""

from dataclasses import dataclass

from ps_train.choices import BUCKET_BYTES
from ps_train.cluster import Cluster, TaskId
from ps_train.devices import DeviceOptions
from ps_train.errors import UsageError


@dataclass(frozen=True)
class TaskContext:
    """This process's task and what building its graph depends on.

    Attributes:
      task: e.g. worker:1.
      cluster: all hosts.
      update: 'async', 'sync' or 'allreduce'.
      replicas_to_aggregate: gradients per synchronous update; None: one of each worker.
      on_worker_loss: 'fail' or 'continue' when a worker that a synchronous job needs is lost.
      on_nan: 'stop', 'skip' or 'ignore'.
      pack_bytes, wire_dtype: the size up to which tensors travel together, and their type on the way; see `transport`.
      accumulate_steps: batches whose gradients a worker adds up before it pushes; see `updates.accumulation`.
      bucket_bytes: the size of what is updated or travels together, at most; see `transport`.
      prefetch: whether a step's variables are pulled during the one before; see `prefetch`.
      topk: the fraction of a gradient's elements, the largest, that is sent; see `updates.parcels`.
      fuse_bytes: the size up to which variables are updated together; see `fusing`.
      first_ps_bytes: what the first ps is given before the others get any, in bytes; see `placement`.
      partition: 'none' or 'auto': whether large variables are split over the ps tasks; see `splitting`.
      local_steps: batches that a worker trains a copy of its own with before it pushes; see `updates.local`.
      max_staleness: async: the most updates that a gradient may be old to be applied; None: any number; see `updates.stale`.
      scale_by_staleness: async: whether the rate is divided by the gradient's staleness.
      scale_rate: 'none', 'linear' or 'sqrt': how the rate grows with the workers; see `updates.rate`.
      max_lead: async: how many steps a worker may be ahead of the slowest; None: any number; see `updates.lead`.
      warmup_steps: async: the global step up to which the chief trains alone; see `warm_up`.
      autotune: whether other ways for tensors to travel are tried, too; see `autotune`.
      tune_process: whether the process is set up for training; see `server.start_server`.
      input: 'shard' or 'workqueue': how workers divide the data; see `work`.
      record: async: where the order of pulls and pushes is written, or None; see `recorded`.
      devices: those of the task's server; see `server`.
    """

    task: TaskId
    cluster: Cluster
    update: str = "async"
    replicas_to_aggregate: int | None = None
    on_worker_loss: str = "fail"
    on_nan: str = "stop"
    pack_bytes: int = 0
    wire_dtype: str = "float32"
    fuse_bytes: int = 0
    bucket_bytes: int = BUCKET_BYTES
    prefetch: bool = False
    accumulate_steps: int = 1
    topk: float = 1.0
    first_ps_bytes: int = 0
    partition: str = "none"
    local_steps: int = 1
    max_staleness: int | None = None
    scale_by_staleness: bool = False
    scale_rate: str = "none"
    max_lead: int | None = None
    warmup_steps: int = 0
    autotune: bool = False
    tune_process: bool = True
    input: str = "shard"
    record: str | None = None
    devices: DeviceOptions = DeviceOptions()

    @property
    def is_chief(self):
        """Whether this task is the one that initializes, saves and updates."""
        return self.cluster.is_chief(self.task)

    @property
    def replica(self):
        """This training task's number, the chief's being 0."""
        return self.cluster.shard_index(self.task)

    @property
    def quorum(self):
        """Gradients per synchronous update."""
        return self.replicas_to_aggregate or self.cluster.num_workers

    @property
    def is_all_reduced(self):
        """Whether each worker has all variables, and a lost one ends the job."""
        return self.update == "allreduce"

    @property
    def step_batches(self):
        """Batches that a worker's step takes."""
        return self.accumulate_steps * self.local_steps

    @property
    def watches_staleness(self):
        """Whether something depends on how old each gradient is."""
        return self.max_staleness is not None or self.scale_by_staleness or self.max_lead is not None

    @property
    def worker_device(self):
        """Device string of this task's CPU and GPUs' task."""
        server_task = self.cluster.server_task(self.task)
        return f"/job:{server_task.job}/task:{server_task.index}"

    @property
    def control_device(self):
        """The ps that holds what the tasks share besides the model: the first one."""
        return f"/job:ps/task:{self.cluster.ps_tasks[0].index}/device:CPU:0"


_current: list[TaskContext] = []


def set_current(context):
    """Says which task this process is; a later call replaces an earlier one."""
    _current[:] = [context]


def current():
    """This process's task. Raises UsageError if it has none."""
    if not _current:
        raise UsageError(
            "This process has not said which task of a cluster it is. Make a ps_train.Server(cluster, job_name, "
            "task_index) before the graph."
        )
    return _current[0]


def global_batch_size(batch_size):
    """How many examples one global step uses: what to count epochs and learning-rate schedules by.

    In async a global step is one worker's batch, in sync one batch of each worker (or of `replicas_to_aggregate`), and with
    `--accumulate_steps`, `--local_steps` or `--towers` as many batches of each, so that a schedule in steps runs that much faster through the data. In
    `model_fn`, for a rate that falls every two epochs whatever the cluster and the update rule:

        steps = 2 * NUM_EXAMPLES // ps_train.global_batch_size(64)
        rate = tf.compat.v1.train.exponential_decay(0.1, tf.compat.v1.train.get_global_step(), steps, 0.5)

    A script that makes its own `SyncReplicasOptimizer` knows its `replicas_to_aggregate` itself: it is not seen here.

    Args:
      batch_size: examples in a batch of one worker.

    Returns:
      int; `batch_size` itself outside a cluster, as in an evaluation.

    >>> ps_train.global_batch_size(64)
    64
    """
    context = current_or_none()
    if context is None:
        return batch_size
    return (
        batch_size
        * context.devices.towers
        * context.step_batches
        * (1 if context.update == "async" else context.quorum)
    )


def current_or_none():
    """This process's task, or None outside a cluster (evaluation, a single process)."""
    return _current[0] if _current else None
