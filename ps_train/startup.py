"""Starts this process as one task: server, beats, guard. What the command line and the library have in common.

runtime = start_task(TaskContext(TaskId("worker", 1), cluster), Report(...))
...                                    # build, train or serve
runtime.guard.finish()
"""

import dataclasses
import threading
from typing import Any

from ps_train import net, server, session, task_context, worker
from ps_train.addresses import is_loopback, split_address
from ps_train.board import Board
from ps_train.cluster import SERVING
from ps_train.devices import DeviceOptions
from ps_train.ending import save_if_possible
from ps_train.guard import Guard
from ps_train.liveness import Monitor
from ps_train.logs import log
from ps_train.placement import first_ps_limit
from ps_train.reports import Report
from ps_train.task_context import TaskContext
from ps_train.updates.allreduce import leader_device

RESCUE_SECS = 3.0
OPEN = "whoever reaches this port can run any program here"


def make_context(task, cluster, config):
    """The TaskContext of a task of a cluster, by a TrainConfig."""
    names = {field.name for field in dataclasses.fields(TaskContext)} - {"task", "cluster", "devices"}
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(DeviceOptions)}
    settings |= {
        "devices": DeviceOptions(**options),
        "pack_bytes": config.pack_limit,
        "fuse_bytes": config.fuse_limit,
        "first_ps_bytes": first_ps_limit(config.first_ps_bytes, cluster),
    }
    if config.update == "allreduce":  # whose gradients are joined, and whose variables stay as they are
        settings |= {"pack_bytes": max(config.pack_limit, config.fuse_limit), "fuse_bytes": 0}
    return TaskContext(task, cluster, **settings)


def start_task(context, report, timeouts=None, report_file=None, handle_signals=True, config=None):
    """Starts the task.

    Args:
      context: TaskContext: the task, its cluster, the job's update rule.
      report: Report, written to `report_file` if the guard has to end the process.
      timeouts: session.Timeouts.
      report_file: path or None.
      handle_signals: whether SIGINT and SIGTERM are taken; only possible in the main thread.
      config: `tf1.ConfigProto` for server and sessions.

    Returns:
      session.TaskRuntime, its monitor and guard running.

    Raises:
      UsageError: the task is not in the cluster.
      PeerLostError: its port is taken.
    """
    task, cluster = context.task, context.cluster
    task_context.set_current(context)
    server.prepare_environment(task, context.devices.gpus)
    config = server.device_config(context.devices, task, config)
    if context.is_all_reduced:
        config.experimental.collective_group_leader = leader_device(cluster)
        config.device_filters.append(context.worker_device)  # nobody's session waits for another worker
    tf_server = server.start_server(cluster, task, config, context.tune_process)
    monitor = _make_monitor(task, cluster)
    timeouts = timeouts or session.Timeouts()
    runtime = session.TaskRuntime(context, tf_server.target, monitor, None, report, timeouts, config)

    def leave_at_once(status, reason):
        lost = getattr(runtime.guard.failure, "lost", {})
        monitor.post(state="failed", exit_status=status, reason=reason, lost=lost)
        if monitor.refusal is None:
            monitor.flush(1.0)
        report.write(report_file, status, reason)

    judge = (lambda: None) if task.job == "ps" else (lambda: worker.judge(runtime))
    if cluster.is_colocated:
        runtime.shard = _make_shard(runtime)
    runtime.guard = Guard(judge, leave_at_once, rescue=lambda: _rescue(runtime))
    runtime.guard.start(handle_signals)
    if runtime.shard is not None:
        runtime.shard.guard = runtime.guard
        runtime.shard.monitor.start()
    monitor.start()
    address = cluster.address(task)
    log.info("listening at %s%s", address, _openness(address))
    host, _ = split_address(address)
    if not monitor.get("is_at_address") and not net.is_resolved(host):
        log.warning(
            "%s, this task's own address, cannot be resolved on this host. Others may know it; if none does, no ps can connect: "
            "python -m ps_train doctor",
            host,
        )
    return runtime


def _openness(address):
    """What has to be said of the port: TensorFlow listens on every interface, whatever the address."""
    if not is_loopback(address):
        return f": {OPEN}"
    return f", and on this host's other addresses: {OPEN}" if net.has_other_interfaces() else ""


def _rescue(runtime):
    """The chief's last resort after a signal: its step does not end, but the others' work can be saved."""
    thread = threading.Thread(target=save_if_possible, args=(runtime,), daemon=True, name="ps_train-rescue")
    thread.start()
    thread.join(RESCUE_SECS)


def _make_shard(runtime):
    """The TaskRuntime of the ps that is in a worker's process: its own records on its own board, of the same run id."""
    context, cluster = runtime.context, runtime.context.cluster
    ps = cluster.server_task(context.task)
    monitor = _make_monitor(ps, cluster, runtime.monitor.run_id)
    monitor.post(state=SERVING)
    return dataclasses.replace(
        runtime, context=dataclasses.replace(context, task=ps), monitor=monitor, report=Report(ps)
    )


def _make_monitor(task, cluster, run_id=None):
    if task.job != "ps":
        boards = [Board(cluster.address(ps), ps) for ps in cluster.ps_tasks]
        host, _ = split_address(cluster.address(task))
        return Monitor(task, boards, admitted_to=cluster, is_at_address=net.is_own_address(host))
    port = cluster.address(task).rsplit(":", 1)[1]
    return Monitor(task, [Board(f"localhost:{port}", task)], run_id=run_id, **cluster.as_record())
