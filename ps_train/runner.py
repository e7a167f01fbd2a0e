"""Runs one task in this process, from its start to its exit status; here a task's role is chosen by its job's name.

    status = run_task(TaskId("worker", 1), cluster, config)

1. the log writer, the finished-job check (no TensorFlow yet);
2. TensorFlow is imported, the server, monitor and guard are started;
3. the role runs, a worker's with the user's model, which is loaded then;
4. whatever the outcome: the boards are told, the report is written, one line says why.
"""

import contextlib
import socket
import time
import traceback

from ps_train import checkpoints, logs, recorded
from ps_train.addresses import split_address
from ps_train.config import BUILTIN_MODEL
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, JobOverError, PeerLostError, PsTrainError, StoppedError
from ps_train.logs import log
from ps_train.reports import Report
from ps_train.status_page import serving

# How long the chief of a job whose target is reached looks for a ps: one that sees the checkpoint ends at once by itself,
# one on a host without the train_dir is up some seconds after its start.
PS_LOOK_SECS = 5.0


def run_task(task, cluster, config):
    """Runs `task` of `cluster` to its end.

    Args:
      task: TaskId.
      cluster: Cluster; may be None for an evaluator.
      config: TrainConfig.

    Returns:
      int: the exit status of interface "Exit status".
    """
    logs.start(str(task))
    if task.job == "evaluator":
        if config.status_port is not None:
            log.warning("--status_port: an evaluator is no part of the cluster that the page shows")
        return _guarded(Report(task), config, lambda report: _run_evaluator(config, report))
    report = Report(task, is_chief=cluster.is_chief(task))
    return _guarded(report, config, lambda report: _run_member(task, cluster, config, report))


def _guarded(report, config, run):
    """Runs a role; its exit status, with the report written and one line logged."""
    try:
        run(report)
        status, reason = EXIT_DONE, report.reason
    except PsTrainError as error:
        status, reason = error.exit_status, str(error)
        if config.debug and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
    except KeyboardInterrupt:
        status, reason = 130, "stopped by SIGINT"
    except Exception as error:  # process boundary: ours to mend, so the traceback is shown
        traceback.print_exc()
        status, reason = EXIT_PERMANENT, f"internal error: {error!r}"
    level = log.info if status in (EXIT_DONE, 130, 143) else log.error
    level("%s (status %d)", reason or "done", status)
    report.write(config.report_file, status, reason)
    return status


def _run_evaluator(config, report):
    from ps_train import evaluator

    evaluator.follow(config, report)


def _run_member(task, cluster, config, report):
    finished = checkpoints.finished_at(config.train_dir, config.train_steps)
    if finished and not (report.is_chief and _is_a_ps_up(cluster)):
        report.note_finished(finished, config.train_steps, checkpoints.checkpoint_step(finished))
        return
    if config.record and task.job == "ps":
        recorded.prepare(recorded.order_path(config.record, task.index))
    from ps_train.session import Timeouts
    from ps_train.startup import make_context, start_task

    timeouts = Timeouts(
        config.startup_timeout_secs, config.peer_timeout_secs, config.shutdown_timeout_secs, config.stall_secs
    )
    runtime = start_task(make_context(task, cluster, config), report, timeouts, config.report_file)
    try:
        with serving(config.status_port, cluster, log.info, log.warning):
            _run_role(runtime, config)
    finally:
        runtime.guard.finish()
        runtime.monitor.stop()
        if runtime.shard is not None:
            runtime.shard.monitor.stop()


def _run_role(runtime, config):
    if runtime.context.task.job == "ps":
        from ps_train import ps

        ps.run(runtime)
    elif runtime.context.cluster.is_colocated:
        _run_colocated(runtime, config)
    else:
        _run_worker(runtime, config)


def _run_colocated(runtime, config):
    """Runs the worker; then its process serves what it holds for as long as the others need it."""
    from ps_train import ps

    try:
        may_be_needed = _run_worker(runtime, config)
    except PsTrainError as error:
        if isinstance(error, StoppedError) or error.exit_status == EXIT_PERMANENT:
            ps.serve_until_saved(runtime.shard)
        raise
    if may_be_needed:
        ps.run(runtime.shard)


def _is_a_ps_up(cluster, secs=PS_LOOK_SECS, sleep=time.sleep):
    """Whether something listens at the address of a ps, or comes to within `secs`: it waits for the chief's word."""
    deadline = time.monotonic() + secs
    while True:
        for task in cluster.ps_tasks:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(split_address(cluster.address(task)), 1),
            ):
                return True
        if time.monotonic() > deadline:
            return False
        sleep(0.2)


def _run_worker(runtime, config):
    """Runs the worker to its end; whether the job may go on after that."""
    from ps_train import worker
    from ps_train.model import load_model

    has_found_the_end = False
    try:
        model = load_model(config.model or BUILTIN_MODEL)
        worker.run(runtime, config, model)
    except PsTrainError as error:
        finished = checkpoints.finished_at(config.train_dir, config.train_steps)
        if isinstance(error, JobOverError) and not finished:
            runtime.report.reason, has_found_the_end = str(error), True
        elif isinstance(error, PeerLostError) and finished:  # it stood still while the job came to its end
            runtime.report.note_finished(finished, config.train_steps, checkpoints.checkpoint_step(finished))
            runtime.report.checkpoint, has_found_the_end = finished, True
        else:
            state = "stopped" if isinstance(error, StoppedError) else "failed"
            worker.leave(runtime, state, error.exit_status, str(error), error)
            raise
    except Exception as error:
        explained = worker.explain(runtime, error)
        if isinstance(explained, PeerLostError) and runtime.guard.stop_signal is not None:
            # The signal came first, and who sent it is not to start the job again: others were sent it, too.
            log.warning("%s", explained)
            explained = runtime.guard.stopped_error()
        state = "stopped" if isinstance(explained, StoppedError) else "failed"
        worker.leave(runtime, state, explained.exit_status, str(explained), explained)
        raise explained from error
    if runtime.report.is_chief:
        try:
            checkpoints.mark_last(runtime.report.checkpoint)
        except OSError as error:
            log.warning("an evaluator will not see that this checkpoint is the last: %s", error)
    worker.leave(runtime, "left", EXIT_DONE, runtime.report.reason)
    return not has_found_the_end
