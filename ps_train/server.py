"""A task's TensorFlow server: environment, address checks, start.

    prepare_environment(TaskId("ps", 0))
    server = start_server(cluster, TaskId("ps", 0))
    server.target                              # "grpc://10.0.0.1:2222"

In this order, once per process:

1. proxies for gRPC are taken out of the environment: TensorFlow would send even loopback traffic through `http_proxy`,
   and hang; a ps hides the GPUs from itself, or it would take all their memory; freed memory is kept (`allocator`);
2. `GRPC_FAIL_FAST=true`: a call to a dead task fails at once instead of waiting for ever for it to come back; waiting is
   ours to do, with a bound (`session`, `liveness`);
3. the port is tried, so that one that is taken is said in one line;
4. the server starts. It has no stop: it ends with the process. Where the tasks on a host are as many as its processors, or
   more, its threads do not spin while they wait: they would take the processor from another task.

TensorFlow's server authenticates nobody and listens on every interface, whatever host the cluster names.
"""

import os

from ps_train import allocator
from ps_train.cluster import FROM_MPIRUN, FROM_SRUN
from ps_train.compat import PROXY_VARIABLES, tf, tf1
from ps_train.errors import PeerLostError
from ps_train.logs import log
from ps_train.net import check_port
from ps_train.processors import num_cores


def start_server(cluster, task, config=None, tunes_process=True):
    """Starts this process's server; `prepare_environment` comes before.

    Args:
      cluster: a Cluster with `task` in it.
      task: the TaskId to be.
      config: `tf1.ConfigProto` for the server's devices.
      tunes_process: whether freed memory is kept and spinning is left off, or all is as glibc and TensorFlow have it.

    Raises:
      UsageError: the task is not in the cluster.
      PeerLostError: the port is taken (status 138: an earlier process of this task may be about to end).
    """
    cluster.check_member(task)
    if tunes_process:
        allocator.keep_freed_memory()
    address, named = cluster.address(task), cluster.server_task(task)
    check_port(task, address, "--port_base" if cluster.source in (FROM_SRUN, FROM_MPIRUN) else "")
    try:
        return tf1.train.Server(
            tf.train.ClusterSpec(cluster.as_server_dict()), job_name=named.job, task_index=named.index,
            config=_server_config(cluster, task, config, tunes_process), start=True,
        )  # fmt: skip
    except tf.errors.UnknownError as error:
        raise PeerLostError(
            f"Task {task} cannot listen at {address}: {error.message.splitlines()[0]}. Is the port in use, or reserved?"
        ) from None


def device_config(options, task, config=None):
    """ConfigProto of a task for its server and its sessions: a server looks at the devices in its own, a session at what it logs.

    Args:
      options: devices.DeviceOptions.
      task: TaskId.
      config: ConfigProto of a script's, which is copied, or None.
    """
    made = tf1.ConfigProto()
    if config is not None:
        made.CopyFrom(config)
    if options.inter_op_threads:
        made.inter_op_parallelism_threads = options.inter_op_threads
    if options.intra_op_threads:
        made.intra_op_parallelism_threads = options.intra_op_threads
    made.allow_soft_placement |= options.allow_soft_placement
    if task.job == "ps":
        return made
    made.log_device_placement |= options.log_device_placement
    if options.allow_growth:
        made.gpu_options.allow_growth = True
    if options.gpu_memory_fraction is not None:
        made.gpu_options.per_process_gpu_memory_fraction = options.gpu_memory_fraction
    if options.towers > 1 and not num_gpus():
        made.device_count["CPU"] = options.towers
    return made


def num_gpus():
    """How many GPUs TensorFlow sees in this process."""
    return len(tf.config.list_physical_devices("GPU"))


def session_config(cluster, task, config=None):
    """ConfigProto that lets a session see the ps tasks and its own task only, so that no other worker is waited for.

    One on a ps is of a board: it sees that ps only, or it could not be made while another ps is stopped.
    """
    merged = tf1.ConfigProto()
    if config is not None:
        merged.CopyFrom(config)
    if not merged.device_filters:
        named = cluster.server_task(task)
        own = f"/job:{named.job}/task:{named.index}"
        merged.device_filters.extend([own] if task.job == "ps" else sorted({"/job:ps", own}))
    return merged


def _server_config(cluster, task, config, tunes_process):
    """A server adds its own filters to those of each session: one that serves boards and trains has none."""
    merged = tf1.ConfigProto()
    if not cluster.is_colocated:
        merged = session_config(cluster, task, config)
    elif config is not None:
        merged.CopyFrom(config)
    if tunes_process and cluster.num_on_host_of(task) >= num_cores():
        merged.experimental.disable_thread_spinning = True
    return merged


def prepare_environment(task, gpus=None):
    """Sets what TensorFlow reads when its runtime starts, or first looks for GPUs.

    Args:
      task: TaskId.
      gpus: the flag's numbers of the GPUs that the process is to see, `none`, or None for all; a ps sees none.
    """
    removed = [name for name in os.environ if name.lower() in PROXY_VARIABLES]
    for name in removed:
        del os.environ[name]
    if removed:
        log.info("%s ignored: tasks talk to one another directly", ", ".join(sorted(removed)))
    os.environ["GRPC_FAIL_FAST"] = "true"
    if task.job == "ps" or gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if task.job == "ps" or gpus == "none" else gpus
