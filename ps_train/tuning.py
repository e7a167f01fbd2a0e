"""Runs the trial of `--autotune` while the job trains: who decides, who follows, and a session for each setting.

    runner = TuningRunner(tuner_for(runtime), runtime, ops, step_hook, fetches)       # in place of StepRunner
    runner.transport = hook                 # TransportHook, which has laid the ways
    runner.loop(sess)                       # tries, keeps the fastest, trains to the end

Between two steps, the next one goes to another session of this process, on the graph as it is wired then; variables, the input
and what sync keeps on a worker have names on their tasks, and are where they were. Hooks, and MonitoredSession, keep the session
that they have, which hands on what it is given (`BoundedSession.substitute`). Each setting's session is made once, so that a turn
costs no more than its steps, and all but the kept one are closed after the decision. If a ps is lost, all sessions are, and the
turn begins anew with the setting that it had. What lives in one session only, as a queue of TensorFlow 1's input without a
name, cannot be shared: with such a graph nothing is tried. The alternative was to close the session and make another for each
turn, as when a ps was lost: each has to be prepared anew, which takes seconds for a large graph, while in sync the others wait.

In sync all workers make a step together, so that they should try the same at the same time. The chief, which alone times, says
on the boards what is tried and at last what is kept, in the record BOARD_KEY; the others look there, change, and say in their own
records what they use. Nobody waits for that: until all others use what is tried, or SETTLE_SECS have passed, the chief's steps
are made and not timed. So a worker that is late, lost, or comes again cannot hold up anything, and follows what it finds; that
two workers use different ways for a while is right, too, as what gets to the accumulators is decoded. A chief that comes again
after the decision finds it on the boards and keeps it, and before it begins a new trial. If the target is reached or the chief's
data is used up before, what was the fastest until then is kept, for the others and for steps that a lost ps brings back. The
alternative, a round of its own by which all agree on each change, is one more thing to wait for, and to be torn.

Nobody times anything before all workers of the cluster have come, or GATHER_SECS have passed: alone, each way is faster.
"""

import time
from typing import Any

from ps_train import autotune
from ps_train.autotune import Trial, choose
from ps_train.cluster import ENDED, UP
from ps_train.hooks import StepRunner
from ps_train.logs import Throttle, log

BOARD_KEY = "transport"
SETTLE_SECS = 5.0  # for the others to use what is tried
GATHER_SECS = 20.0  # for the others to come, before anything is timed
LOOK_SECS = 0.1


def tuner_for(runtime):
    """The Leader or Led that a task is."""
    context = runtime.context
    is_led = context.update == "sync" and not context.is_chief
    return (Led if is_led else Leader)(runtime, autotune.settings(context))


class Leader:
    """Tries and decides: for the job in sync, for itself in async.

    Args:
      runtime: session.TaskRuntime.
      settings: list of autotune.Setting, that of the flags first.
      clock: seconds.

    Attributes:
      kept: the Setting that was decided for, or None.
    """

    def __init__(self, runtime, settings, clock=time.monotonic):
        self._runtime, self._settings, self._clock = runtime, settings, clock
        self._trial = Trial(settings, clock)
        self._is_sync = runtime.context.update == "sync"
        self._published: Any = None
        self._published_at = clock()
        self._since: Any = None  # the first session
        self._is_settled = self._are_all_there = False
        self.kept: Any = None

    def wanted(self):
        """The Setting of the next step."""
        return self._trial.current if self.kept is None else self.kept

    def begin_session(self):
        """A session has begun, the first one or after a ps was lost, with the setting that was wanted last."""
        self._since = self._clock() if self._since is None else self._since
        if self._is_sync and self._published is None and self.kept is None:
            told = self._runtime.monitor.view().record(BOARD_KEY).get("kept")
            self.kept = next((setting for setting in self._settings if setting.name == told), None)
        self._is_settled = False  # another task may be new, too, and use the flags' setting
        self._trial.begin()
        self._publish()
        if self.kept is not None:
            self._runtime.report.transport = self.kept.flags

    def give_up(self):
        """There is nothing that could be tried."""
        if self.kept is None:
            self.kept = self._settings[0]
            log.info("autotune: kept %s, there is nothing to choose from", self.kept.name)

    def note(self, secs):
        """A step of the wanted setting took so long."""
        if not self._is_settled:
            self._is_settled = self._is_quiet()
            self._trial.begin()
            return
        self._trial.note(secs)
        if self._trial.is_over:
            self.finish()
        self._publish()

    def finish(self):
        """Decides, if that is still to do: the trial is over, or the training is."""
        if self.kept is not None:
            return
        self.kept = choose(self._trial.step_secs(), self._settings[0])
        self._runtime.report.transport = self.kept.flags
        cut = "" if self._trial.is_over else ", cut short by the end of the training"
        log.info("autotune: %d steps of a trial%s", self._trial.num_steps, cut)
        for line in autotune.table(self._trial.turn_secs(), self.kept):
            log.info("%s", line)
        log.info("autotune: kept %s; without a trial: %s", self.kept.name, self.kept.flags)
        self._publish()

    def _publish(self):
        now = (self.kept, self.wanted())
        if not self._is_sync or self._published == now:
            return
        if self._published is not None and self._published[1] != self.wanted():
            self._is_settled = False
        self._published, self._published_at = now, self._clock()
        kept = self.kept.name if self.kept else None
        self._runtime.monitor.publish(BOARD_KEY, trying=self.wanted().name, kept=kept)

    def _is_quiet(self):
        """Whether what is timed from now on counts: all workers train and, in sync, use what is tried; or it has taken too long."""
        context, view = self._runtime.context, self._runtime.monitor.view()
        others = [view.record(str(task)) for task in context.cluster.training_tasks if task != context.task]
        training = [record for record in others if record.get("state") in UP]
        if not self._are_all_there:
            ended = [record for record in others if record.get("state") in ENDED]
            is_late = self._clock() - self._since > GATHER_SECS
            self._are_all_there = is_late or len(training) + len(ended) == len(others)
            if self._are_all_there:
                named = "; ".join(setting.name for setting in self._settings)
                log.info("autotune: trying some steps each of %s", named)
        is_late = self._clock() - self._published_at > SETTLE_SECS
        is_joint = not self._is_sync or all(r.get(BOARD_KEY) == self.wanted().name for r in training)
        return self._are_all_there and (is_joint or is_late)


class Led:
    """Follows what the chief says; arguments and attributes as Leader's."""

    def __init__(self, runtime, settings, clock=time.monotonic):
        self._runtime, self._clock = runtime, clock
        self._by_name = {setting.name: setting for setting in settings}
        self._setting, self._look_due = settings[0], Throttle(LOOK_SECS)
        self.kept: Any = None

    def wanted(self):
        """The Setting of the next step; what the chief's flags have and this worker's have not is left to the chief."""
        if self._look_due.is_due(self._clock()):
            told = self._runtime.monitor.view().record(BOARD_KEY)
            self._setting = self._by_name.get(told.get("trying"), self._setting)
            if told.get("kept") is not None:
                self.give_up()
                log.info("autotune: kept %s, as the chief has decided", self.kept.name)
        return self._setting

    def begin_session(self):
        """Nothing is timed here."""

    def give_up(self):
        """As Leader's."""
        self.kept = self._setting
        self._runtime.report.transport = self.kept.flags

    def note(self, secs):
        """As `begin_session`."""

    def finish(self):
        """The training is over before the chief has decided: the report tells what was in use."""
        self._runtime.report.transport = self._setting.flags


class TuningRunner(StepRunner):
    """A StepRunner that takes another session when its tuner wants another setting, and times the steps for it.

    Args:
      tuner: Leader or Led.
      runtime: session.TaskRuntime.
      clock: seconds.

    Attributes:
      transport: the TransportHook; None if there is nothing to choose from.
    """

    def __init__(self, tuner, runtime, *args, clock=time.perf_counter, **kwargs):
        super().__init__(*args, **kwargs)
        self._tuner, self._monitor, self._step_clock = tuner, runtime.monitor, clock
        self._setting = autotune.given(runtime.context)
        self._prepared: dict[Any, tuple] = {}  # of the settings that have a session
        self._of: Any = None  # the monitored session
        self._is_done = False
        self._began = 0.0
        self.transport: Any = None

    def _note_end(self):
        self._tuner.finish()

    def _run_batches(self):
        """Also before the first of them."""
        if self._of is not self._session:
            self._begin_session()
        if not self._is_done:
            self._use(self._tuner.wanted())
            self._is_done = self._tuner.kept == self._setting
            if self._is_done:
                self._session.forget_substitutes()
        self._began = self._step_clock()
        super()._run_batches()

    def _run_one(self, step_context):
        super()._run_one(step_context)
        if self._tuner.kept is None:
            self._tuner.note(self._step_clock() - self._began)

    def _begin_session(self):
        self._of = self._session
        self._prepared = {self._setting: (None, self._calls, self._make_pull())}
        self._monitor.post(**{BOARD_KEY: self._setting.name})
        if self.transport is None:
            self._tuner.give_up()
        self._tuner.begin_session()

    def _use(self, setting):
        """The next step goes by this setting."""
        if setting == self._setting:
            return
        self._setting = setting
        self.transport.use(setting)
        if setting in self._prepared:
            session, self._calls, pull = self._prepared[setting]
            self._session.substitute(session)
        else:
            session = self.transport.make_session()
            self._session.substitute(session)
            self._calls, pull = self._prepare(), self._make_pull()
            self._prepared[setting] = session, self._calls, pull
        pull()
        self._step_hook.pull_ahead(int(setting.prefetch))
        self._monitor.post(**{BOARD_KEY: setting.name})

    def _make_pull(self):
        op = self.transport.first_pull if self.transport is not None else None
        return (lambda: None) if op is None else self._session.make_callable(op)
