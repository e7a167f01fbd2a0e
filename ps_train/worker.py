"""A training task (chief or worker): build, bring up, step until the end, leave; `runner` makes its exit status of that.

The end of a worker, in order of preference:

- the target is reached, or its data is used up: it leaves the boards as "left"; the chief first waits for the others and
  saves the last step, and at the target the others wait for that. Status 0.
- SIGINT, SIGTERM: the loop ends after the step, the chief saves. Status 130, 143.
- a ps, the chief, or (sync) any worker that is needed is silent for `peer_timeout_secs`: status 138.
- a task failed for good (status 1): this one ends with 1, too, naming it; the chief saves, unless it was for NaN or Inf.
- a ps is lost for less than that: the session is made anew (`session`), the loop goes on.
"""

import contextlib
import dataclasses
import functools
import random
import time
from typing import Any

from ps_train import checkpoints, graph, session
from ps_train.board import NO_ANSWER, ControlSession
from ps_train.bring_up import is_model_whole, note_who_left
from ps_train.choices import MAX_SEED
from ps_train.cluster import AT_TARGET, ENDED, SERVING, UP
from ps_train.common_end import CommonEnd
from ps_train.compat import tf, tf1
from ps_train.ending import save_if_possible
from ps_train.errors import BadNumberError, ModelError, PeerLostError, PsTrainError, RefusedError
from ps_train.evaluation_watch import EvaluationWatch
from ps_train.explain import as_model_error, cause
from ps_train.hooks import StepHook, StepRunner
from ps_train.liveness import BEAT_SECS, awake_clock, first_failure, line_throttle
from ps_train.logs import log
from ps_train.lost import LOST
from ps_train.messages import DType, Node, constant
from ps_train.profiler import Profiler, ProfilingRunner
from ps_train.quorum import num_needed
from ps_train.recorder import Recorder, explain_unwritten, is_unwritten, number_steps
from ps_train.ring import NO_WAY_ON, await_loss, find_loss, loss_of
from ps_train.tracer import StepTracer, TracingRunner
from ps_train.tuning import TuningRunner, tuner_for
from ps_train.updates.allreduce import AGREEMENTS, is_collective
from ps_train.updates.finite import explain_bad_number, is_bad_number
from ps_train.updates.lead import LEADS
from ps_train.updates.ledger import REFUSED
from ps_train.updates.stale import GATES
from ps_train.updates.standing import queue_node
from ps_train.wording import as_secs

BRING_UP_SECS = 5.0  # after the bound of a wait, which says more
LEAVE_SECS = 3.0
SIGNAL_SECS = 1.5  # within which a signal to all tasks has got to each
REFUSAL_SECS = 2.5  # in which two processes of one name notice


def run(runtime, config, model):
    """Trains to the end.

    Args:
      runtime: session.TaskRuntime; its monitor and guard are running.
      config: TrainConfig.
      model: the user's Model.

    Raises:
      PsTrainError: how it ended, if not at the target or the end of the data.
    """
    context, report = runtime.context, runtime.report
    if context.record and config.seed is None:
        config = dataclasses.replace(config, seed=random.SystemRandom().randrange(MAX_SEED))
        log.info("--record: no --seed is given; this worker takes %d", config.seed)
    ops = graph.build_train(context, config, model)
    runtime.graph = ops.graph
    waited_at = [*ops.sync_optimizers, *ops.graph.get_collection(LEADS)]
    runtime.guard.release = make_release(runtime, waited_at)
    fetches = make_fetches(context, ops)
    if context.record:
        runtime.recorder = Recorder(context, config, model)
    agreements = ops.graph.get_collection(AGREEMENTS)
    common_end = CommonEnd(agreements[0]) if agreements else None
    fetches |= common_end.fetches if common_end else {}
    step_hook = StepHook(
        report,
        runtime.monitor,
        runtime.guard,
        ops.global_step,
        fetches,
        config.train_steps,
        config.log_every_secs,
        pulls_ahead=int(context.prefetch) if context.update == "async" else None,
        common_end=common_end,
        note=runtime.recorder and runtime.recorder.note,
        note_bad=runtime.recorder and runtime.recorder.note_bad,
    )
    if context.is_all_reduced:
        runtime.guard.release = lambda: (
            runtime.guard.failure and step_hook.session and step_hook.session.close()
        )
    with ops.graph.as_default():
        profiler = Profiler(runtime, config) if config.profile_steps else None
        window = config.trace_window
        tracer = StepTracer(runtime, window, config.train_dir) if window else None
        is_lost = functools.partial(is_ps_lost, runtime)
        runner = _runner_class(runtime, profiler, tracer)(
            ops,
            step_hook,
            fetches,
            always=bool(ops.hooks),
            skips_bad_numbers=context.on_nan == "skip",
            is_ps_lost=is_lost,
        )
        made = session.make(
            runtime,
            step_hook,
            _saving(config),
            hooks=ops.hooks,
            step=[ops.step, *fetches.values()],
            step_runner=runner,
            is_ps_lost=is_lost,
        )
        with made as sess, profiler or tracer or contextlib.nullcontext():
            if context.is_chief:
                _begin_as_chief(runtime, config, sess)
            if profiler:
                profiler.probe_links(sess, step_hook)
            try:
                runner.loop(sess)
            finally:
                step_hook.note_last()
    runtime.guard.check()
    if step_hook.is_left_behind:
        runtime.guard.await_signal(SIGNAL_SECS)
        raise PeerLostError(f"another worker has stopped; {NO_WAY_ON}", is_model_safe=True)
    report.reason = step_hook.describe_end()
    _tell_unused(runtime, step_hook)


def _saving(config):
    """Checkpoints and event files, both in the train_dir."""
    return session.Saving(
        config.train_dir,
        config.save_checkpoint_steps,
        config.checkpoint_secs,
        config.keep_checkpoint_max,
        summary_dir=config.train_dir,
        summary_steps=config.summaries_steps,
        summary_secs=config.save_summaries_secs,
        figure_steps=config.summaries_steps,
        figure_secs=config.save_summaries_secs,
    )


def _runner_class(runtime, profiler, tracer) -> Any:
    """What makes the StepRunner; at most one of these has to do with the steps (`contradictions`)."""
    if runtime.context.autotune:
        return functools.partial(TuningRunner, tuner_for(runtime), runtime)
    if tracer:
        return functools.partial(TracingRunner, tracer)
    return functools.partial(ProfilingRunner, profiler) if profiler else StepRunner


def _begin_as_chief(runtime, config, sess):
    if not config.train_dir:
        log.warning("no --train_dir: nothing is saved, and what is learnt is gone when the job ends")
    if not sess.should_stop():
        checkpoints.unmark_last(config.train_dir)
    if config.train_dir:
        EvaluationWatch(config.train_dir, runtime.monitor.post).start()


def _tell_unused(runtime, step_hook):
    """Warns of data that came to no step."""
    report, context, left = runtime.report, runtime.context, step_hook.unfinished_examples
    if not step_hook.is_used_up:
        return
    if left:
        flag = "--accumulate_steps" if context.accumulate_steps > 1 else "--local_steps"
        log.warning(
            "the last %d examples of this worker's data were not trained on: a step takes %d batches (%s)",
            left, context.step_batches, flag,
        )  # fmt: skip
    elif context.devices.towers > 1:
        log.info("the data of one of the towers is used up: what the others had left was not trained on")
    elif report.local_steps == report.skipped_steps == 0:
        shard = (
            "shard of the data is empty"
            if context.input == "shard"
            else "work queue had no piece left for it"
        )
        log.warning("this worker's %s: input_fn gave no batch", shard)


def judge(runtime):
    """What the guard asks twice a second: an error if this task cannot usefully go on, else None."""
    monitor, context, bound = runtime.monitor, runtime.context, runtime.timeouts.peer_timeout_secs
    if monitor.refusal is not None:
        return monitor.refusal
    if monitor.get("state") in ENDED:  # it only serves what it holds for the others
        return None
    view = monitor.view()
    note_who_left(runtime, view)
    failure = first_failure(view.records, own=str(context.task))
    if failure is not None:
        return failure
    is_up = monitor.get("state") in (*UP, SERVING)
    # The waits of the bring-up have bounds, a session's calls have none.
    if not is_up and runtime.peers is None:
        bound = runtime.timeouts.startup_timeout_secs + BRING_UP_SECS
    for link in monitor.links:
        if link.silent_secs() > bound:
            task = context.cluster.host(link.task) if context.is_all_reduced else link.task
            if runtime.peers is not None and is_up:
                return loss_of(runtime, {str(task): f"gone for {bound:g} s: {link.reason or NO_ANSWER}"})
            return PeerLostError(
                f"{task} at {link.address} has been gone for {bound:g} s: {link.reason or NO_ANSWER}",
                is_model_safe=is_up and runtime.is_vacant({str(link.task)}),
                lost={str(task): f"gone for {bound:g} s"},
            )
    if runtime.peers is not None and monitor.get("state") in ("starting", "training"):
        return find_loss(runtime, view)
    if view.record("job").get("is_over") or not is_up:
        return None
    if monitor.get("state") == AT_TARGET:
        return _judge_workers(runtime, view, bound, needs_all=False)
    return _judge_workers(runtime, view, bound) or _judge_absent(runtime, view)


def _judge_absent(runtime, view):
    """An error if (sync) no update can be made, for longer than a start may take, as workers have not come yet."""
    context, bound, now = runtime.context, runtime.timeouts.startup_timeout_secs, awake_clock()
    cluster = context.cluster
    others = [
        task for task in cluster.training_tasks if task != context.task and str(task) not in runtime.left
    ]
    absent = [task for task in others if not view.record(str(task))]
    num_present = len(others) + 1
    wanted = num_needed(context.quorum, cluster.num_workers, num_present, len(absent))
    if context.update != "sync" or num_present - len(absent) >= wanted:
        runtime.short_since = None
        return None
    if runtime.short_since is None:
        runtime.short_since, runtime.short_line_due = now, line_throttle(now)
    named = ", ".join(f"{task} at {cluster.address(task)}" for task in absent)
    waited = now - runtime.short_since
    if waited <= bound:
        if runtime.short_line_due.is_due(now):
            log.info(
                "waiting for %s to start: %.0f s so far, giving up after %s s", named, waited, as_secs(bound)
            )
        return None
    return PeerLostError(
        f"not there for {as_secs(bound)} s: {named}. An update takes {wanted} gradients. Start it, or give it longer by "
        "--startup_timeout_secs.",
        is_model_safe=True,
    )


def _judge_workers(runtime, view, bound, needs_all=True):
    """An error if the chief is lost, or (sync) so many others that no update can have all the gradients that it needs.

    Whoever lends this task its devices is needed, too (`joined`). Without `needs_all` there is no update to come, and the chief alone counts.
    """
    context = runtime.context
    chief = context.cluster.chief_task
    others = [task for task in context.cluster.training_tasks if task != context.task]
    records = {task: view.record(str(task)) for task in others}
    left = [task for task in others if str(task) in runtime.left]
    lost = [task for task in others if records[task] and task not in left and view.age(str(task)) > bound]
    needed = [task for task in lost if task == chief or task in runtime.lenders]
    if context.update != "sync" or context.on_worker_loss == "continue" or not needs_all:
        lost = needed
    num_present = context.cluster.num_workers - len(left)
    wanted = 1
    if context.update == "sync" and needs_all:
        wanted = num_needed(context.quorum, context.cluster.num_workers, num_present, len(lost))
    if not lost or (not needed and num_present - len(lost) >= wanted):
        return None
    named = ", ".join(
        f"{task} at {context.cluster.address(task)} ({_last_word(records[task], task in runtime.lenders)})"
        for task in lost
    )
    return PeerLostError(f"gone for {bound:g} s: {named}", is_model_safe=True)


def _last_word(record, is_lender):
    if record.get("state") in ("failed", "stopped"):
        return record.get("reason", record["state"])
    if is_lender and record.get("step") is None:
        return "this task's graph has ops there"
    if record.get("step") is None:
        return "had not made a step yet when last seen"
    return f"last seen at global step {record['step']}"


def make_fetches(context, ops):
    """What a step fetches besides the op that is it, by names that `StepHook` knows."""
    fetches = {"loss": ops.loss, "examples": ops.examples, **ops.steps_seen}
    with ops.graph.as_default():
        fetches |= drop_fetches(context, ops.sync_optimizers)
        if context.record:
            fetches["recorded"] = number_steps(context)
    return fetches


def drop_fetches(context, optimizers):
    """What a step has to fetch for `StepHook` to count dropped gradients; nothing where each update takes all.

    With several gates, as of a model with several optimizers, the last one counts.

    Only for a loop that runs nothing but steps: the fetch claims a place in the round, and whoever claims has to arrive.
    """
    gates = tf1.get_collection(GATES)
    if gates:
        return {"granted": gates[-1].granted}
    takes_all = context.quorum == context.cluster.num_workers
    return {} if takes_all or not optimizers else {"granted": optimizers[-1].granted}


def make_release(runtime, optimizers):
    """A function that lets this worker's main thread out of its wait for a token, from another thread.

    Args:
      runtime: session.TaskRuntime.
      optimizers: whatever has a `token_queue`.
    """
    if not optimizers:
        return lambda: None
    control = runtime.context.cluster.ps_tasks[0]
    names = [optimizer.token_queue for optimizer in optimizers]
    nodes = [constant(REFUSED)._replace(name="refused")]
    for index, name in enumerate(names):
        nodes.append(queue_node(f"queue{index}", name))
        attrs = {"Tcomponents": [DType.INT64], "timeout_ms": -1}
        nodes.append(Node(f"release{index}", "QueueEnqueueV2", [f"queue{index}", "refused"], attrs))

    def release():
        link = runtime.monitor.link(control)
        control_session = ControlSession(link.address, control, nodes)
        try:
            control_session.run({}, [], [f"release{index}" for index in range(len(names))])
        finally:
            control_session.close()

    return release


def leave(runtime, state, exit_status, reason, error=None):
    """Tells the boards how this task ended, so that nobody waits for it; those that were up lately get LEAVE_SECS.

    Args:
      runtime: session.TaskRuntime.
      state: "left", "failed" or "stopped".
      exit_status, reason: as in the report.
      error: what it ended with, if so.
    """
    is_refused = isinstance(error, RefusedError)
    if is_refused and error.is_stranger:
        runtime.monitor.stop()
        return
    is_model_safe = _spares_model(error)
    has_session = runtime.monitor.get("state") in UP
    # The chief of an all-reduce has all of the model, and no way to make another step.
    is_whole_here = runtime.context.is_all_reduced and getattr(error, "is_model_safe", False)
    if state == "failed" and (is_model_safe or is_whole_here) and runtime.context.is_chief and has_session:
        save_if_possible(runtime)  # what the others have learnt, even if this task has not made a step
    runtime.monitor.post(
        state=state,
        exit_status=exit_status,
        reason=reason,
        is_refused=is_refused,
        is_model_safe=is_model_safe,
        lost=getattr(error, "lost", {}),
    )
    if state == "left" and runtime.context.is_chief:
        runtime.monitor.publish("job", is_over=True, step=runtime.report.global_step, reason=reason)
    deadline = time.monotonic() + LEAVE_SECS
    while not runtime.monitor.flush() and time.monotonic() < deadline:
        if not any(link.is_up and link.reason for link in runtime.monitor.links):
            return  # those that did not answer are gone, and have been
        time.sleep(0.1)


def _spares_model(error):
    """Whether an error that ends a task, as one in its input, says nothing against what the ps tasks hold."""
    is_of_user = isinstance(error, ModelError) or not isinstance(error, PsTrainError)
    return error is not None and is_of_user and not isinstance(error, BadNumberError)


def is_ps_lost(runtime, error):
    """Whether an error of the session comes of a ps that was lost, or that is a new process without the model."""
    if not isinstance(error, tf.errors.FailedPreconditionError):
        return isinstance(error, LOST)
    return not is_model_whole(runtime.monitor)


def _await_refusal(monitor, sleep=time.sleep):
    """The refusal of this task, if there is one or comes soon: two processes of one name disturb each other's sessions."""
    deadline = time.monotonic() + REFUSAL_SECS
    while monitor.refusal is None and time.monotonic() < deadline:
        sleep(0.1)
    return monitor.refusal


def explain(runtime, error):
    """What an exception of the session means: a lost ps (PeerLostError), the user's mistake (ModelError), or a refusal."""
    if runtime.context.is_all_reduced:
        loss = await_loss(runtime) if is_collective(error) and runtime.peers is not None else None
        if runtime.guard.failure is not None:
            return runtime.guard.failure  # whose release was this error
        if loss is not None:
            return loss
        if is_collective(error):
            return PeerLostError(f"a worker was lost: {cause(error)[:300]}; {NO_WAY_ON}", is_model_safe=True)
    if is_unwritten(error):
        return explain_unwritten(error)
    if is_ps_lost(runtime, error):
        down = [link for link in runtime.monitor.links if link.silent_secs() > BEAT_SECS + 0.1]
        refusal = None if down else _await_refusal(runtime.monitor)
        if refusal is not None:
            return refusal
        named = ", ".join(f"{link.task} at {link.address} ({link.reason or NO_ANSWER})" for link in down)
        return PeerLostError(f"a ps was lost, with the session on it: {named or cause(error)[:300]}")
    if is_bad_number(error):
        report = runtime.report
        return explain_bad_number(error, report.task, report.local_steps + 1, report.global_step)
    return as_model_error(error, runtime.graph)
