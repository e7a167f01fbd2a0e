"""Makes a task's session: TensorFlow's MonitoredSession, brought up by `bring_up`, with the hooks in the order of the end.

    runtime = TaskRuntime(...)                 # what outlives any one session; see `startup`
    with session.make(runtime, step_hook, Saving("runs/1", save_steps=100)) as sess:
        while not sess.should_stop():
            sess.run(train_op)

The hooks are listed in the order of the end, which `ending` explains.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ps_train import placement, tables
from ps_train.bring_up import SessionCreator, is_model_whole
from ps_train.checkpoint_hook import CheckpointHook
from ps_train.compat import tf1
from ps_train.ending import (
    AtEnd,
    StopNoticeHook,
    StoppingPsWatch,
    WaitForSave,
    WaitForWorkersHook,
    tell_saved,
)
from ps_train.explain import as_model_error
from ps_train.hooked_steps import FeedlessHook
from ps_train.liveness import awake_clock
from ps_train.logs import log
from ps_train.piece_queue import QUEUES, PiecesHook
from ps_train.recorder import RecordHook
from ps_train.stall_watch import StallWatch
from ps_train.summary_hook import SummaryHook
from ps_train.transport_hook import TransportHook
from ps_train.updates import SYNC_OPTIMIZERS
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.lead import LEADS, LeadHook
from ps_train.updates.roster import Roster
from ps_train.updates.rounds import MemberHook, UpdateLoop
from ps_train.updates.standing import describe
from ps_train.vacant import VacantPsWatch
from ps_train.warm_up import WarmUpHook
from ps_train.wording import describe_shares
from ps_train.work import READERS

BACKUP_LEASE_SECS = 5.0
MAX_SPLITS = 10  # of which a line is logged


@dataclass
class Timeouts:
    """Bounds of the waits, in seconds, as the flags of the same names; `stall_secs` ends none."""

    startup_timeout_secs: float = 300.0
    peer_timeout_secs: float = 60.0
    shutdown_timeout_secs: float = 30.0
    stall_secs: float = 30.0


@dataclass
class TaskRuntime:
    """What a running task's session is made with: its server's target and the parts that outlive any one session."""

    context: object
    target: str
    monitor: object
    guard: Any
    report: object
    timeouts: Timeouts
    config: object = None
    rescue: Callable[[], None] = lambda: (
        None
    )  # saves the model from another thread; set where there is a checkpoint
    graph: object = None  # that is trained, once it is built
    lenders: frozenset = frozenset()  # TaskIds of the other workers on whose devices the graph has ops
    left: set[str] = field(default_factory=set)  # tasks that have left, though new boards may not know it
    shard: Any = None  # the TaskRuntime of the ps in this process, if there is one
    # The chief's: whether these ps tasks hold nothing of the model.
    is_vacant: Callable[[Any], bool] = lambda names: False
    recorder: Any = None  # Recorder of a task with --record
    peers: Any = None  # all-reduce: ps -> run id of the processes that the collectives go on with, once there are any; see `ring`
    short_since: float | None = None  # when a synchronous job began to lack workers that have not come yet
    short_line_due: Any = None  # Throttle of the lines on that


@dataclass
class Saving:
    """What is written where, by the chief.

    Attributes:
      train_dir: directory of checkpoints; None: nothing is saved or restored.
      save_steps, save_secs: periods of checkpoints; None: not by this measure.
      keep_max: checkpoints to keep; 0: all.
      summary_dir: directory of event files; None: none are written.
      summary_steps, summary_secs: period of the user's summaries, what is over first; with neither none are written.
      figure_steps, figure_secs: the same of the workers' figures.
    """

    train_dir: str | None = None
    save_steps: int | None = None
    save_secs: float | None = None
    keep_max: int = 5
    summary_dir: str | None = None
    summary_steps: int | None = None
    summary_secs: float | None = None
    figure_steps: int | None = None
    figure_secs: float | None = None

    @property
    def has_summaries(self) -> bool:
        """Whether event files are written."""
        periods = (self.summary_steps, self.summary_secs, self.figure_steps, self.figure_secs)
        return bool(self.summary_dir) and any(periods)


def make(
    runtime, step_hook, saving, hooks=(), scaffold=None, last_hook=None, step_runner=None,
    is_ps_lost=lambda error: False, step=(),
):  # fmt: skip
    """Makes the session of a training task in the default graph, which it finalizes.

    Args:
      runtime: TaskRuntime.
      step_hook: the StepHook.
      saving: Saving.
      hooks: the user's.
      scaffold: the user's `tf1.train.Scaffold`; its saver, init and local init ops are used where it has them.
      last_hook: its `end` comes after everything is saved.
      step_runner: the StepRunner that will run the steps, if any; it is told of the chief's hooks that it works with.
      is_ps_lost: function of an error: whether it comes of a ps that was lost.
      step: ops and tensors of a step, for which tensors are packed; see `transport.pack`.

    Returns:
      `tf1.train.MonitoredSession`.
    """
    optimizers, leads = tf1.get_collection(SYNC_OPTIMIZERS), tf1.get_collection(LEADS)
    known = [hook.optimizer for hook in hooks if isinstance(hook, MemberHook)]
    members = [MemberHook(optimizer) for optimizer in optimizers if optimizer not in known]
    members += [LeadHook(lead) for lead in leads]
    queues, readers = tf1.get_collection(QUEUES), tf1.get_collection(READERS)
    members += [PiecesHook(queue, readers) for queue in queues]
    shared = [*optimizers, *leads, *queues]  # what the tasks change on a ps together, and the chief brings up
    for reader in readers:
        reader.should_stop = lambda: runtime.guard.should_stop or step_hook.is_last
        if runtime.context.step_batches > 1:
            reader.steps_begun = lambda: step_hook.steps_begun
    all_members = [hook for hook in [*hooks, *members] if isinstance(hook, MemberHook)]
    if runtime.context.step_batches > 1:
        hooks = [
            hook if hook in all_members else FeedlessHook(hook, runtime.context.step_batches)
            for hook in hooks
        ]
    for member in all_members:
        member.guard = runtime.guard
    notice = StopNoticeHook(runtime, step_hook, all_members)
    stall_watch = StallWatch(runtime, optimizers, graph=tf1.get_default_graph(), leads=leads, readers=readers)
    runtime.guard.looks = [notice.look, stall_watch.look]
    creator = SessionCreator(runtime, shared, saving, scaffold or tf1.train.Scaffold(), step_hook.train_steps)
    is_all_reduced = runtime.context.is_all_reduced
    if is_all_reduced:  # each worker has all
        own = str(runtime.context.cluster.server_task(runtime.context.task))
        runtime.is_vacant = lambda names: own not in names
    warm_up = WarmUpHook(runtime, step_hook, creator, is_ps_lost)
    ordered = [step_hook, warm_up, *hooks, notice, *members]
    if runtime.context.is_chief:
        _publish_training(runtime.context, runtime.monitor, optimizers, step_hook.train_steps)
        rosters = [_make_roster(runtime, creator, shared)]
        finals = _final_hooks(runtime, creator, optimizers, saving, rosters)
        # A hook of the user's may change the model in its `end`, which comes before the last save.
        has_own_hooks = len(hooks) > len(all_members) - len(members)
        vacancy = None if is_all_reduced else VacantPsWatch(runtime.monitor, tf1.get_default_graph())
        if vacancy is not None:
            runtime.is_vacant = vacancy.is_vacant
        wait = _make_wait(runtime, step_hook, all_members, is_ps_lost, finals, saves_early=not has_own_hooks)
        summaries = [SummaryHook(runtime, step_hook, saving)] if saving.has_summaries else []
        ordered = [*rosters, *ordered, wait, *finals, *summaries, AtEnd(_let_ps_end(runtime))]
        runtime.guard.looks.append(StoppingPsWatch(runtime).look)
        if vacancy is not None:
            runtime.guard.looks.append(vacancy.look)
    if step_runner is not None:
        chief = runtime.context.cluster.chief_task
        step_runner.checkpoint_hook = _first(ordered, CheckpointHook)
        step_runner.summary_hook = _first(ordered, SummaryHook)
        chiefs_wait = _first(ordered, WaitForWorkersHook)
        step_runner.wait_hook = chiefs_wait or WaitForSave(
            f"{chief} at {runtime.context.cluster.address(chief)}",
            runtime.monitor,
            runtime.guard,
            step_hook,
            all_members,
            is_ps_lost,
            runtime.timeouts.peer_timeout_secs,
            runtime.is_vacant,
        )
        # Both have to see the step in which a hook of the user's asks to stop.
        step_runner.user_hooks = [*hooks, notice, *([chiefs_wait] if chiefs_wait else [])]
        step_runner.update_loops = [hook for hook in ordered if isinstance(hook, UpdateLoop)]
    if last_hook is not None:
        ordered.append(last_hook)
    accumulations = tf1.get_collection(ACCUMULATIONS)
    starts, adds = [a.start for a in accumulations], [a.add for a in accumulations]
    runs = [
        [*step, *adds],
        *([starts] if starts else []),
        *([optimizer.update_op] for optimizer in optimizers),
    ]
    ordered.append(
        TransportHook(runs, runtime.context, creator, step_runner, publish=_publish_traffic(runtime.monitor))
    )
    if runtime.recorder is not None:
        ordered.append(RecordHook(runtime.recorder, step, creator))
    return tf1.train.MonitoredSession(session_creator=creator, hooks=ordered, stop_grace_period_secs=10)


def _publish_training(context, monitor, optimizers, train_steps):
    """Tells the boards what there is to be watched, for `ps_train status`, and the log which ps holds what."""
    ledgers = [describe(optimizer.ledger) for optimizer in optimizers]
    rows = placement.held(context.cluster, tf1.global_variables())
    found = [] if context.is_all_reduced else placement.shares(context.cluster, rows)
    shares = [share[:3] for share in found]
    if context.is_all_reduced:
        rows = [row._replace(ps=tables.EVERY_WORKER) for row in rows]
        count = sum(1 + row.num_slots for row in rows)
        shares = [(tables.EVERY_WORKER, sum(row.total_bytes for row in rows), count)]
    monitor.publish(
        "training",
        update=context.update,
        quorum=context.quorum,
        train_steps=train_steps,
        ledgers=ledgers,
        shares=shares,
    )
    monitor.publish_text(tables.PLACEMENT, tables.as_text(rows))
    if len(found) > 1:
        log.info("placement: %s", describe_shares(shares))
    for line in placement.describe_splits(tf1.global_variables())[:MAX_SPLITS]:
        log.info("split: %s", line)
    advice = placement.advice(found) if found else ""
    if advice:
        log.warning("%s", advice)


def _publish_traffic(monitor):
    return lambda lines: monitor.publish_text(tables.TRAFFIC, tables.as_text(lines))


def _make_wait(runtime, step_hook, members, is_ps_lost, finals, saves_early):
    savers = [hook for hook in finals if isinstance(hook, CheckpointHook)]
    return WaitForWorkersHook(
        runtime.monitor,
        [task for task in runtime.context.cluster.training_tasks if task != runtime.context.task],
        runtime.guard,
        step_hook,
        on_idle=lambda session: [hook.save_if_due(session) for hook in savers],
        stop_secs=runtime.timeouts.shutdown_timeout_secs,
        peer_timeout_secs=runtime.timeouts.peer_timeout_secs,
        members=members,
        is_ps_lost=is_ps_lost,
        finals=finals if saves_early else (),
        is_vacant=runtime.is_vacant,
    )


def _first(hooks, kind):
    return next((hook for hook in hooks if isinstance(hook, kind)), None)


def _final_hooks(runtime, creator, optimizers, saving, rosters):
    """The chief's hooks by which the last step is saved, in their order."""
    timeouts = runtime.timeouts
    savers = []
    if saving.train_dir:
        global_step = tf1.train.get_global_step()
        savers.append(
            CheckpointHook(
                creator.saver,
                saving.train_dir,
                global_step,
                runtime.report,
                saving.save_steps,
                saving.save_secs,
                optimizers,
                granting=lambda: runtime.guard.granting(timeouts.shutdown_timeout_secs),
                end_secs=lambda: 0.0 if runtime.guard.should_stop else timeouts.shutdown_timeout_secs,
                on_saved=runtime.recorder and runtime.recorder.note_saved,
                save_otherwise=runtime.recorder
                and functools.partial(runtime.recorder.save_bare, creator.make_raw_session),
            )
        )
        runtime.rescue = lambda: savers[0].rescue(
            creator.make_session_aside,
            lambda: runtime.context.is_all_reduced or is_model_whole(runtime.monitor),
        )
    loops = [
        UpdateLoop(
            optimizer,
            creator.make_raw_session,
            release=lambda: runtime.guard.release(),
            fail=lambda error: runtime.guard.fail(as_model_error(error, runtime.graph)),
        )
        for optimizer in optimizers
    ]
    return [*(AtEnd(roster.stop) for roster in rosters), *loops, *savers]


def _let_ps_end(runtime):
    def tell():
        if runtime.guard.should_stop:
            tell_saved(runtime.monitor, [*runtime.monitor.ps_runs().values()])

    return tell


def _make_roster(runtime, creator, optimizers):
    context = runtime.context
    lease, max_removed = roster_policy(context, runtime.timeouts.peer_timeout_secs)
    return Roster(
        optimizers,
        runtime.monitor,
        context.cluster.training_tasks,
        context.task,
        creator.make_raw_session,
        lease,
        max_removed,
        awake_clock,
    )


def roster_policy(context, peer_timeout_secs):
    """(lease, max_removed): after how many seconds of silence the chief calls a worker lost, and how many the job goes on without.

    With backup workers a half-made push holds up a round that needs nobody else: it is discarded soon. As many as there are
    backups are taken out, so that the others are not waited for them when some have left.
    """
    num_workers = context.cluster.num_workers
    num_backups = num_workers - context.quorum if context.update == "sync" else 0
    lease = min(BACKUP_LEASE_SECS, peer_timeout_secs) if num_backups else peer_timeout_secs
    if context.cluster.is_colocated:
        return lease, 0
    goes_on = context.update != "sync" or context.on_worker_loss == "continue"
    return lease, num_workers if goes_on else num_backups
