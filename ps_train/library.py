"""The pieces for a script with its own loop, under TensorFlow's own names and signatures.

    server = ps_train.Server(cluster, job_name="worker", task_index=1)
    with ps_train.MonitoredTrainingSession(server.target, is_chief=False, checkpoint_dir=train_dir) as session:
        while not session.should_stop():
            session.run(train_op)

What happens when, for a worker:

1. `Server(...)` starts the task, its beats and its guard; SIGINT and SIGTERM end the loop after the step.
2. `MonitoredTrainingSession(...)` brings the model up, as `session` says.
3. At the end of the `with` block the chief waits for the others and saves; the task leaves the boards.
4. What ended it otherwise, as a lost ps, is one line on stderr and the exit status of `errors`, with no traceback.

For a ps, and for a worker that only lends its devices to the chief's graph (`joined`): `Server(...)`, then `join()`, which returns
when the job is over. A session sees the ps tasks, its own, and those on whose devices its graph has ops.
"""

import atexit
import dataclasses
import functools
import os
import sys
import threading

from ps_train import joined, logs, process, ps, server, session, task_context, worker
from ps_train.bounded_session import await_closing
from ps_train.cluster import FROM_SERVER, Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_PERMANENT, JobOverError, PsTrainError, StoppedError, UsageError
from ps_train.guard import GRACE_SECS
from ps_train.hooks import StepHook
from ps_train.logs import log
from ps_train.reports import Report
from ps_train.startup import start_task
from ps_train.step_trace import LEDGER_PREFIX
from ps_train.transport import task_of
from ps_train.updates import SYNC_OPTIMIZERS

DEFAULT_SAVE_SECS = 600
NO_SESSION_GRACE_SECS = 0.5  # no step to end, nothing to save
REMINDER_SECS = 30.0
_UNSET = object()
_USE_OURS = (
    "Expected a ps_train.MonitoredTrainingSession: with one of tf.train's nobody learns when this task is done, and a lost "
    "peer is waited for in vain."
)
_servers: dict[str, "Server"] = {}


class Server:
    """One task of a cluster, in the place of `tf.train.Server`.

    Args:
      server_or_cluster_def: a `ps_train.Cluster`, a `tf.train.ClusterSpec`, or a dict job -> addresses.
      job_name: `ps`, `worker` or `chief`.
      task_index: index in the job.
      protocol: only `grpc`, TensorFlow's default.
      config: `tf1.ConfigProto` for the server's devices.
      start: only True.
      startup_timeout_secs, peer_timeout_secs, shutdown_timeout_secs: bounds of the waits, as the flags.
      stall_secs: how long no step may complete before what the task waits for is logged, as the flag.
      pack_bytes: the size up to which variables and gradients travel together, as the flag: `auto`, or a number of bytes; 0:
        each by itself.
      tune_process: whether freed memory is kept and spinning left off on shared processors, as the flag.

    Raises:
      UsageError: the cluster's description is wrong or the task is not in it, or the flags would refuse a time or size.
      PeerLostError: the port is taken.

    Example:
      >>> ps_train.Server({"ps": ["localhost:2222"], "worker": ["localhost:2222"]}, "ps", 0)
      Traceback (most recent call last):
      ps_train.errors.UsageError: ...
    """

    def __init__(
        self,
        server_or_cluster_def,
        job_name=None,
        task_index=None,
        protocol=None,
        config=None,
        start=True,
        startup_timeout_secs=300.0,
        peer_timeout_secs=60.0,
        shutdown_timeout_secs=30.0,
        stall_secs=30.0,
        pack_bytes="auto",
        tune_process=True,
    ):
        _end_with_status_of_errors()
        if protocol not in (None, "grpc") or not start:
            raise UsageError("ps_train.Server: only protocol='grpc' and start=True are supported.")
        task = TaskId("chief" if job_name == "master" else str(job_name), int(task_index or 0))
        logs.start(str(task))
        cluster = _as_cluster(server_or_cluster_def)
        if cluster.is_colocated:
            raise UsageError(
                "ps_train.Server: a script's cluster needs ps tasks of its own. Leave out is_colocated."
            )
        timeouts = session.Timeouts(
            startup_timeout_secs, peer_timeout_secs, shutdown_timeout_secs, stall_secs
        )
        settings = TrainConfig(pack_bytes=str(pack_bytes), **vars(timeouts))
        if problems := settings.problems():
            raise UsageError.from_problems([text.removeprefix("--") for text in problems])
        is_main = threading.current_thread() is threading.main_thread()
        report = Report(task, is_chief=cluster.is_chief(task))
        context = task_context.TaskContext(
            task, cluster, pack_bytes=settings.pack_limit, tune_process=tune_process
        )
        self.runtime = start_task(context, report, timeouts, handle_signals=is_main, config=config)
        self.has_left = self.has_session = self.has_joined = False
        _servers[self.target] = self
        if task.job != "ps":
            self.runtime.guard.grace_secs = NO_SESSION_GRACE_SECS
            reminder = threading.Timer(REMINDER_SECS, self._remind)
            reminder.daemon = True
            reminder.start()

    @property
    def target(self):
        """The master for sessions of this process."""
        return self.runtime.target

    @property
    def server_def(self):
        """The task and its cluster, as `ps_train.TaskId` and `ps_train.Cluster`."""
        return self.runtime.context.task, self.runtime.context.cluster

    def join(self):
        """Serves until the job is over, then returns. Ends the process with the task's status otherwise.

        On a worker it is for one whose devices are in the chief's graph, and that makes no session of its own.
        """
        self.has_joined = True
        try:
            (ps if self.runtime.context.task.job == "ps" else joined).run(self.runtime)
        except PsTrainError as error:
            _say(error)
            self.leave(_state_after(error), error.exit_status, f"{error}", error)
            raise SystemExit(error.exit_status) from None
        finally:
            self.runtime.guard.finish()
        log.info("%s", self.runtime.report.reason)
        self.leave("left", 0, self.runtime.report.reason)

    def note_session(self):
        """From now on the task's session looks after its end."""
        self.has_session = True
        self.runtime.guard.grace_secs = GRACE_SECS

    def _remind(self):
        if not (self.has_session or self.has_joined or self.has_left):
            log.warning("%g s after ps_train.Server there is no session yet. %s", REMINDER_SECS, _USE_OURS)

    def leave(self, state, exit_status, reason, error=None):
        """Tells the boards, once, how this task ended."""
        if not self.has_left and self.runtime.context.task.job != "ps":
            self.has_left = True
            worker.leave(self.runtime, state, exit_status, reason, error)


def _as_cluster(spec):
    if isinstance(spec, Cluster):
        return spec
    return Cluster.from_dict(spec.as_dict() if hasattr(spec, "as_dict") else spec, FROM_SERVER)


def _state_after(error):
    return "stopped" if isinstance(error, StoppedError) else "failed"


def _say(error):
    level = log.info if isinstance(error, StoppedError) else log.error
    level("%s (status %d)", error, error.exit_status)


def _as_peer_lost(error):
    """The PeerLostError behind an error of a session's that comes of a lost ps; else `error` itself."""
    if not isinstance(error, tf.errors.OpError):
        return error
    for task_server in _servers.values():
        if task_server.has_session and worker.is_ps_lost(task_server.runtime, error):
            explained = worker.explain(task_server.runtime, error)
            explained.__cause__ = error
            return explained
    return error


@functools.cache
def _end_with_status_of_errors():
    """From here on an uncaught PsTrainError ends the process with its line and status; others show their traceback."""
    previous = sys.excepthook

    def hook(kind, error, trace):
        if f"/{LEDGER_PREFIX}" in str(error) and not any(server.has_session for server in _servers.values()):
            error = UsageError(
                f"ps_train.SyncReplicasOptimizer needs a session that brings up its rounds. {_USE_OURS}"
            )
        error = _as_peer_lost(error)
        status = getattr(error, "exit_status", EXIT_PERMANENT)
        is_ours = isinstance(error, PsTrainError)
        _say(error) if is_ours else previous(kind, error, trace)
        for task_server in _servers.values():
            task_server.leave(
                _state_after(error), status, f"{error}" if is_ours else f"{kind.__name__}: {error}", error
            )
        if is_ours:
            sys.stdout.flush()
            os._exit(status)

    sys.excepthook = hook
    atexit.register(await_closing)
    atexit.register(_leave_at_exit)  # before that: the last comes first


def _leave_at_exit():
    for task_server in _servers.values():
        if task_server.has_left or task_server.runtime.context.task.job == "ps":
            continue
        reason = "the script ended without closing its session"
        if not task_server.has_session:
            reason = f"the script ended without a session. {_USE_OURS}"
            log.error("%s", reason)
        task_server.leave("failed", EXIT_PERMANENT, reason)
        # An exit handler cannot change the status otherwise.
        process.end(EXIT_PERMANENT, runs_exit_handlers=False)


class _LeaveHook(tf1.train.SessionRunHook):
    """The last to end: everything is saved, nothing is left to do."""

    def __init__(self, task_server):
        self._server = task_server

    def after_create_session(self, session, coord):
        self._coord = coord

    def end(self, session):
        self._coord.raise_requested_exception()  # of a thread, as a QueueRunner's, which has ended the loop
        runtime = self._server.runtime
        runtime.guard.check()
        runtime.guard.finish(restores_signals=True)
        self._server.leave(
            "left", 0, f"global step {runtime.report.global_step}: the script's loop has ended"
        )


def MonitoredTrainingSession(  # noqa: N802, TensorFlow's name
    master="",
    is_chief=True,
    checkpoint_dir=None,
    scaffold=None,
    hooks=None,
    chief_only_hooks=None,
    save_checkpoint_secs=_UNSET,
    save_summaries_steps=_UNSET,
    save_summaries_secs=_UNSET,
    config=None,
    stop_grace_period_secs=120,
    log_step_count_steps=100,
    max_wait_secs=7200,
    save_checkpoint_steps=_UNSET,
    summary_dir=None,
    save_graph_def=True,
):
    """A session on the cluster, in the place of `tf.train.MonitoredTrainingSession` and with its arguments.

    >>> MonitoredTrainingSession("grpc://localhost:2222")  # without a Server; examples/legacy_script.py has a whole use
    Traceback (most recent call last):
    ps_train.errors.UsageError: master='grpc://localhost:2222' is not the target of a ps_train.Server of this process. Make one first: server = ps_train.Server(cluster, job_name, task_index), and pass server.target.

    Returns when the model is ready: initialized, restored, or found alive. In the `with` block, `should_stop`, hooks,
    OutOfRangeError and so on work as with TensorFlow's. The hooks of `ps_train.SyncReplicasOptimizer` are added if they
    are not among `hooks`.

    Args:
      master: `target` of this process's `ps_train.Server`.
      is_chief: must agree with the cluster (the chief job, or else worker 0).
      checkpoint_dir: where the chief saves and restores; None: nothing is saved.
      scaffold: `tf1.train.Scaffold`; its saver, init_op, init_feed_dict, init_fn and local_init_op are used.
      hooks, chief_only_hooks: lists of SessionRunHook.
      save_checkpoint_secs, save_checkpoint_steps: periods; default every 600 s.
      save_summaries_steps, save_summaries_secs: period of the chief's summaries; default every 100 steps.
      config: `tf1.ConfigProto`; given without device filters, those of the tasks that the graph has ops on are added.
      stop_grace_period_secs, max_wait_secs, save_graph_def: accepted; the bounds are those of the Server.
      log_step_count_steps: period of the workers' curves, as of their steps/s, in `summary_dir`.
      summary_dir: default `checkpoint_dir`.

    Returns:
      `tf1.train.MonitoredSession`.

    Raises:
      UsageError: `master` is not the target of a `ps_train.Server` of this process, or is_chief disagrees.
      PeerLostError, ModelError: see `session`.
      SystemExit: of 0, as the job has come to its end before this task was ready.
    """
    _end_with_status_of_errors()
    task_server = _server_for(master, is_chief)
    problems = TrainConfig(train_dir=checkpoint_dir).problems()
    if problems:
        raise UsageError.from_problems([text.replace("--train_dir", "checkpoint_dir") for text in problems])
    runtime = task_server.runtime
    runtime.config = config if config is not None else runtime.config
    _see_lenders(runtime)
    global_step = tf1.train.get_or_create_global_step()
    user_hooks = [*(hooks or []), *((chief_only_hooks or []) if is_chief else [])]
    _warn_of_stock_sync()
    saving = _saving(
        checkpoint_dir, save_checkpoint_steps, save_checkpoint_secs, summary_dir, save_summaries_steps,
        save_summaries_secs, log_step_count_steps,
    )  # fmt: skip
    optimizers = tf1.get_collection(SYNC_OPTIMIZERS)
    if optimizers:  # the script's graph says what the flags say elsewhere: the job needs all these workers
        runtime.context = dataclasses.replace(
            runtime.context, update="sync", replicas_to_aggregate=optimizers[0].replicas_to_aggregate
        )
    runtime.guard.release = worker.make_release(runtime, optimizers)
    step_hook = StepHook(
        runtime.report, runtime.monitor, runtime.guard, global_step, train_steps=_target(user_hooks)
    )
    task_server.note_session()
    try:
        return session.make(
            runtime, step_hook, saving, user_hooks, scaffold, _LeaveHook(task_server), step=_step(optimizers)
        )
    except JobOverError as error:
        log.info("%s: nothing to do", error)
        runtime.guard.finish()
        task_server.leave("left", 0, f"{error}")
        raise SystemExit(0) from None


def _see_lenders(runtime):
    """Lets the session see the other workers that the graph has ops on; device filters of the script's have to, too."""
    cluster, own = runtime.context.cluster, runtime.context.task
    devices = {task_of(op.device) for op in tf1.get_default_graph().get_operations()}
    lenders = {task: f"/job:{task.job}/task:{task.index}" for task in cluster.training_tasks if task != own}
    lenders = {task: name for task, name in lenders.items() if name in devices}
    if lenders and not (runtime.config is not None and runtime.config.device_filters):
        runtime.config = server.session_config(cluster, own, runtime.config)
        runtime.config.device_filters.extend(lenders.values())
    runtime.lenders = frozenset(lenders)


def _step(optimizers):
    """What a script's session runs in a step, as far as its graph tells."""
    return [optimizer.step_after for optimizer in optimizers] or tf1.get_collection(tf1.GraphKeys.TRAIN_OP)


def _server_for(master, is_chief):
    if master not in _servers:
        raise UsageError(
            f"master={master!r} is not the target of a ps_train.Server of this process. Make one first: "
            "server = ps_train.Server(cluster, job_name, task_index), and pass server.target."
        )
    task_server = _servers[master]
    if task_server.has_left:
        raise UsageError(
            "This task has left the job with its first session, and its ps tasks may have ended. Train with one "
            "MonitoredTrainingSession in a process; evaluate from the checkpoint."
        )
    context = task_server.runtime.context
    if bool(is_chief) != context.is_chief:
        raise UsageError(
            f"is_chief={is_chief} for {context.task}, but the chief of this cluster is {context.cluster.chief_task}. "
            f"Pass is_chief={context.is_chief}."
        )
    return task_server


def _warn_of_stock_sync():
    queues = (op for op in tf1.get_default_graph().get_operations() if op.type == "FIFOQueueV2")
    if any(op.get_attr("shared_name") == b"sync_token_q" for op in queues):
        log.warning(
            "tf.train.SyncReplicasOptimizer is in use: the loss of one worker, or its end, leaves the others waiting for "
            "ever. ps_train.SyncReplicasOptimizer takes the same arguments and knows who is there."
        )


def _target(hooks):
    """The least last step of the StopAtStepHooks, or None: a job that has reached it does no further step."""
    steps = [
        hook._last_step
        for hook in hooks
        if isinstance(hook, tf1.train.StopAtStepHook) and hook._num_steps is None
    ]
    return min(steps, default=None)


def _saving(
    checkpoint_dir, save_steps, save_secs, summary_dir, summary_steps, summary_secs, figure_steps
):  # fmt: skip
    if save_steps is _UNSET and save_secs is _UNSET:
        save_steps, save_secs = None, DEFAULT_SAVE_SECS
    if summary_steps is _UNSET and summary_secs is _UNSET:
        summary_steps, summary_secs = 100, None
    values = [
        None if value is _UNSET else value for value in (save_steps, save_secs, summary_steps, summary_secs)
    ]
    return session.Saving(
        checkpoint_dir,
        values[0],
        values[1],
        summary_dir=summary_dir or checkpoint_dir,
        summary_steps=values[2],
        summary_secs=values[3],
        figure_steps=figure_steps,
    )
