"""What happens in each step: `StepHook` follows it, `StepRunner` runs it. How a job ends is `ending`'s."""

import functools
import time
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.curve import Curve
from ps_train.errors import ModelError
from ps_train.explain import cause
from ps_train.hooked_steps import HookedSteps, feeds_refused
from ps_train.logs import Throttle, log
from ps_train.staleness import Staleness
from ps_train.updates.finite import explain_bad_number, is_bad_number, name_bad_number
from ps_train.wording import as_rate, counted

MAX_SKIPPED = 1000
NOT_FED = "You must feed a value for "  # in TensorFlow's message
STALE = (
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
)  # what a lost ps may show as, among other things


def as_preemption(error, is_ps_lost):
    """An error that MonitoredSession answers with a new session, if a STALE one comes of a lost ps; else `error` itself."""
    return tf.errors.AbortedError(error.node_def, error.op, error.message) if is_ps_lost(error) else error


class StepHook(tf1.train.SessionRunHook):
    """Follows the steps of a task: its report, its record on the boards, progress lines, the end at the target.

    Args:
      report: kept up to date.
      monitor: gets the state twice a second.
      guard: ends the loop when it has decided so.
      global_step: the int64 variable.
      fetches: what else each step fetches: any of "loss" (scalar), "examples" (int), "global_step" (after the step),
        "begun", "first_begun" (see `Staleness.note`), "granted" (below zero if the gradient was dropped; in async else its staleness).
      train_steps: target, or None.
      log_every_secs: between progress lines.
      clock: seconds, for tests.
      common_end: CommonEnd, where no task may stop by itself.
      note: called with the figures of each step, or None.
      note_bad: called for each step that failed its check for NaN and Inf with what was bad and the global step, or None.
      pulls_ahead: async: how many steps before its own a step's variables are pulled, for the staleness; None: it is not counted.
    """

    def __init__(
        self, report, monitor, guard, global_step, fetches=None, train_steps=None, log_every_secs=10.0,
        clock=time.monotonic, pulls_ahead=None, common_end=None, note=None, note_bad=None,
    ):  # fmt: skip
        self._report, self._monitor, self._guard = report, monitor, guard
        self._variable, self._train_steps = global_step, train_steps
        self._fetches = dict(fetches or {})
        self._clock = clock
        self._log_due, self._post_due = Throttle(log_every_secs), Throttle(0.5)
        self._skip_line_due = Throttle(log_every_secs)
        self._skipped_in_a_row = 0
        self._rate = RateMeter(clock)
        self._started = None
        self.is_reached = self.is_last = False
        self._common_end, self._note, self._note_bad = common_end, note, note_bad
        self._asked = ""
        self._loss: Any = None  # of the last step
        self._curve = Curve()
        report.curve = self._curve.points
        self._staleness = None if pulls_ahead is None else Staleness(pulls_ahead)
        self.staleness = None  # of the last step's gradient; None: dropped, or not counted
        self._has_ended = False
        self._logged = None  # step of the last progress line
        self.unfinished_examples = 0  # in the batches so far of a step of several
        self.steps_begun = 0  # of several batches
        self.step = 0
        self.session = None  # the newest raw session

    @property
    def train_steps(self):
        """The target, or None."""
        return self._train_steps

    def begin(self):
        """Adds a reader of the global step if the step does not fetch it itself."""
        if "global_step" not in self._fetches:
            self._fetches["global_step"] = self._variable.read_value()
        self._args = tf1.train.SessionRunArgs(self._fetches)
        self._read_step = self._variable.read_value()

    def after_create_session(self, session, coord):
        """Ends before the first step if the target is reached."""
        self.session = session
        self._started = self._started or self._clock()
        self._report.begin_training()
        self._asked = ""
        self.begin_at(int(session.run(self._read_step)))
        if self.is_reached:
            coord.request_stop()

    def begin_at(self, step):
        """The next step's variables are pulled at this global step."""
        self.step = self._report.global_step = step
        self._monitor.post(state="training", step=step)
        if self._staleness is not None:
            self._staleness.start(step)
        self._rate.start(step, self._report.local_steps)
        self.is_reached = self._is_reached(step)
        self.is_last = self.is_reached or bool(self._asked)

    def before_run(self, run_context):
        """Fetches the step's figures."""
        self._raise_failure()
        return self._args

    def after_run(self, run_context, run_values):
        """Counts the step; a stop signal or the target ends the loop."""
        if self.follow(run_values.results):
            run_context.request_stop()

    def follow(self, values):
        """Takes in a step's fetched figures; True if it is the last."""
        self._raise_failure()
        if self._common_end is not None:
            self._common_end.note(values)
        if self._note is not None:
            self._note(values)
        report = self._report
        step = int(values["global_step"])
        self.step = report.global_step = step
        report.local_steps += 1
        self._skipped_in_a_row = 0
        self._loss = values.get("loss")
        self._curve.note(self._loss)
        granted = int(values["granted"]) if "granted" in values else None
        report.dropped_gradients += granted is not None and granted < 0
        self.staleness = self._count_staleness(step, granted, values)
        report.examples += self.unfinished_examples + int(values.get("examples", 0))
        self.unfinished_examples = 0
        now = self._clock()
        report.train_secs = now - self._started
        if self._post_due.is_due(now):
            self._post(step, now)
        self.is_reached = self._is_reached(step)
        self.is_last = self.is_reached or self._ends_here()
        return self.is_last

    def _count_staleness(self, step, granted, values):
        seen = self._staleness
        if seen is None:
            return None
        if granted is not None:
            return seen.count(granted) if granted >= 0 else None
        first = values.get("first_begun")
        return seen.note(step, int(values["begun"]), None if first is None else int(first))

    def _ends_here(self):
        """Whether this step is the last though there is more to do."""
        wants = bool(self._asked) or self._guard.should_stop
        if self._common_end is None or self._guard.failure is not None:
            return wants
        if self._common_end.is_wished_for:
            if self._common_end.ends_job:
                self._asked = self._asked or "a hook of another task asked to stop"
            return True
        if wants:
            self._common_end.wish(self.session, ends_job=bool(self._asked))
        return False

    @property
    def is_left_behind(self):
        """After the loop: whether it ended because another task stopped, and this one was not to."""
        return self._common_end is not None and self._common_end.is_left_behind

    def pull_ahead(self, steps):
        """From here on a step's variables are pulled so many steps before it; they have just been pulled."""
        if self._staleness is not None:
            self._staleness.pulls_ahead = steps
            self._staleness.start(self.step)

    def begin_step(self):
        """A step of several batches begins; what an unfinished one before it has used is not trained on."""
        self.steps_begun += 1
        self.unfinished_examples = 0

    def count_examples(self, examples):
        """Counts a batch that is not the last of its step, for when that is done.

        Raises:
          OutOfRangeError: a signal or the job's failure ends the loop here, as if the data were used up; the step is lost.
        """
        self._raise_failure()
        self.unfinished_examples += int(examples)
        if self._guard.should_stop:
            self.is_last = True
            raise tf.errors.OutOfRangeError(None, None, "stopped between two batches of a step")

    def ask_to_stop(self, reason):
        """Makes this step the last one, for what `describe_end` is to say; from any thread."""
        self._asked = reason
        self.is_last = self.is_last or self._common_end is None

    def note_end_of_data(self):
        """The data is used up; raises ModelError if it was never there and the others need it."""
        if self._common_end is not None:
            self._common_end.check_data()

    def note_bad_number(self, error):
        """A step failed its check for NaN and Inf."""
        if self._note_bad is not None:
            self._note_bad(name_bad_number(error), self._report.global_step)

    def skip(self, error):
        """Counts a step that was dropped for NaN or Inf.

        Raises:
          ModelError: MAX_SKIPPED steps in a row were dropped.
        """
        self._raise_failure()
        self._report.skipped_steps += 1
        self.unfinished_examples = 0
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED:
            raise ModelError(
                f"{self._skipped_in_a_row} steps in a row were dropped for NaN or Inf: nothing is learnt any more. Look "
                "at this worker's data and the learning rate."
            )
        self._monitor.post(skipped=self._report.skipped_steps)
        if self._skip_line_due.is_due(self._clock()):
            explained = explain_bad_number(
                error, self._report.task, self._report.local_steps + 1, self._report.global_step
            )
            log.warning("step dropped (%d so far): %s", self._report.skipped_steps, explained)
        self.is_last = bool(self._asked) or self._guard.should_stop

    def _raise_failure(self):
        """Ends the loop at once if the model is lost; else it ends in order, and the chief saves."""
        failure = self._guard.failure
        if failure is not None and not failure.is_model_safe:
            raise failure

    def end(self, session):
        """Shows the last figures: whoever reads nothing but the lines of the log has those of the last step."""
        report = self._report
        self.note_last()
        self._monitor.post(state="ending", **self.figures())
        if self._logged not in (None, report.global_step) and not self._has_ended:
            self._log_progress(report.global_step)
        if report.dropped_gradients and not self._has_ended:
            log.info(
                "%d of %s were dropped: %s",
                report.dropped_gradients,
                counted(report.local_steps, "gradient"),
                "the update was made without them" if self._staleness is None else "they were too old",
            )
        if self._staleness is not None and not self._has_ended and len(self._staleness.counts) > 1:
            log.info("staleness of this worker's gradients: %s", self._staleness.describe())
        self._has_ended = True

    def note_last(self):
        """Has the report say what is known of the last step, also after a loop that failed: `end` is not called then."""
        self._note_staleness()
        self._note_loss()

    def _note_staleness(self):
        if self._staleness is not None:
            self._report.staleness, self._report.staleness_counts = (
                self._staleness.mean,
                self._staleness.counts,
            )

    def look(self, session):
        """Reads the step once more: the chief's last look, when nobody changes it any more."""
        self.step = self._report.global_step = int(session.run(self._read_step))
        self._monitor.post(step=self.step)

    @property
    def is_used_up(self):
        """After the loop: whether it ended with the data, and neither at the target nor because it was asked to."""
        return not (self.is_reached or self._asked)

    def describe_end(self):
        """How the loop ended, by its last step: `global step 1001: target of 1000 reached`."""
        report = self._report
        if self.is_reached:
            text = f"target of {self._train_steps} reached{'' if report.local_steps else ' already'}"
        elif self._asked:
            text = self._asked
        else:
            text = f"data used up after {counted(report.local_steps, 'local step')}"
        return f"global step {report.global_step}: {text}"

    def tell(self):
        """Has the boards know of all steps; their last one may have been less than half a second ago."""
        self._monitor.post(**self.figures())

    def figures(self):
        """What this task's record on the boards has of its steps, as of now."""
        found: dict[str, Any] = {
            **self._report.counts(),
            "loss": None if self._loss is None else float(self._loss),
        }
        if "granted" in self._fetches:
            found["dropped"] = self._report.dropped_gradients
        if self._staleness is not None:
            found["staleness"] = self._staleness.histogram.as_list()
        return found

    def _is_reached(self, step):
        return self._train_steps is not None and step >= self._train_steps

    def _note_loss(self):
        if self._loss is not None:
            self._report.loss = float(self._loss)
            self._curve.mark(self._report.train_secs, self.step)

    def _post(self, step, now):
        report = self._report
        self.note_last()
        global_rate, local_rate = self._rate.update(step, report.local_steps, now)
        measured = {"rate": float(f"{global_rate:.4g}"), "local_rate": float(f"{local_rate:.4g}")}
        self._monitor.post(state="training", **self.figures(), **measured)
        if self._log_due.is_due(now):
            rates = (
                f", {as_rate(global_rate)} steps/s ({as_rate(local_rate)} of them here)"
                if report.local_steps > 1
                else ""
            )
            self._log_progress(step, rates)

    def _log_progress(self, step, rates=""):
        target = f"/{self._train_steps}" if self._train_steps else ""
        loss = "" if self._report.loss is None else f", loss {self._report.loss:.4g}"
        log.info("step %d%s%s%s", step, target, loss, rates)
        self._logged = step


class Calls(NamedTuple):
    """Prepared calls of a session.

    Attributes:
      step: gives (None, the figures of a step).
      start, add: for the batches before a step's last.
      hooked: the steps with the user's hooks, or None.
    """

    step: Any
    start: Any = None
    add: Any = None
    hooked: Any = None


class StepRunner:
    """Runs steps, most of them without the hooks' machinery, which costs more than a small step's Python.

    `loop` runs steps by a prepared call, `BURST_SECS` of them in each `run_step_fn`, and hands each one's figures to the
    StepHook, and to the user's hooks if there are any; a step runs with all hooks every `HOOK_STEPS` local steps, and when
    summaries are due. Checkpoints are saved when they are due.

    Args:
      ops: graph.TrainOps.
      step_hook: StepHook.
      fetches: as the StepHook's.
      always: every step is to be seen by hooks: the `user_hooks` if they are set, else all.
      skips_bad_numbers: go on after a step that failed its check for NaN and Inf.
      is_ps_lost: function of an error: whether it comes of a ps that was lost.
    """

    BURST_SECS = 0.25
    HOOK_STEPS = 100

    def __init__(
        self,
        ops,
        step_hook,
        fetches,
        always=False,
        skips_bad_numbers=False,
        is_ps_lost=lambda error: False,
    ):
        self._skips_bad_numbers, self._is_ps_lost = skips_bad_numbers, is_ps_lost
        self._step, self._step_hook, self._fetches, self._always = ops.step, step_hook, fetches, always
        self._session: Any = None
        self._calls: Any = None
        self._count = 0
        self.checkpoint_hook: Any = None
        self.summary_hook: Any = None
        self.wait_hook: Any = None
        self.update_loops: list[Any] = []
        self.user_hooks: list[Any] = []
        self._start: Any = None
        self._add: Any = None
        self._num_adds = 0

    def accumulate(self, start, add, count):
        """Has each step be preceded by the op `start` and `count` batches of the op `add`."""
        self._start, self._add, self._num_adds = start, add, count

    def loop(self, session):
        """Steps until the target, the end of the data or a stop; then the wait for the other tasks.

        A ps that is lost during that wait takes the model back to a checkpoint: there are more steps to do then.

        Args:
          session: `tf1.train.MonitoredSession`.
        """
        while True:
            try:
                while not (session.should_stop() or self._step_hook.is_last):
                    session.run_step_fn(self.run)
            except tf.errors.OutOfRangeError:
                self._step_hook.note_end_of_data()
            self._step_hook.tell()
            self._note_end()
            session.run_step_fn(self.wait_hook.run)
            if self.wait_hook.is_over:
                return

    def run(self, step_context):
        """A burst of steps; the step function of `run_step_fn`."""
        # Not step_context.session: after a recovery within this call, that is still the lost one (TensorFlow 2.21).
        if self._step_hook.session is not self._session:
            self._session = self._step_hook.session
            self._calls = self._prepare()
            self._count = 0
        end = time.monotonic() + self.BURST_SECS
        while not self._step_hook.is_last and time.monotonic() < end:
            try:
                self._run_batches()
                self._run_one(step_context)
            except tf.errors.InvalidArgumentError as error:
                if not is_bad_number(error):
                    raise
                self._step_hook.note_bad_number(error)
                if not self._skips_bad_numbers:
                    raise
                self._step_hook.skip(error)
            except STALE as error:
                # In its first step it may be the user's: a variable that nothing initializes.
                if self._count == 0:
                    raise
                raise as_preemption(error, self._is_ps_lost) from error
            self._count += 1

    def _note_end(self):
        """There are no more steps to do, unless a ps is lost."""

    def _prepare(self, **options):
        make = functools.partial(self._session.make_callable, **options)
        step = make([self._step, self._fetches])
        hooked = (
            HookedSteps(self._session, self._step, self._fetches, self.user_hooks) if self._always else None
        )
        if not self._num_adds:
            return Calls(step, hooked=hooked)
        return Calls(step, make(self._start), make([self._add, self._fetches["examples"]]), hooked)

    def _run_batches(self):
        """All batches of a step but the last; hooks see none of them."""
        if self._num_adds:
            self._step_hook.begin_step()
            self._calls.start()
        for _ in range(self._num_adds):
            try:
                _, examples = self._calls.add()
            except tf.errors.InvalidArgumentError as error:
                if NOT_FED not in error.message:
                    raise
                raise feeds_refused(cause(error), self._num_adds + 1) from error
            self._step_hook.count_examples(examples)

    def _run_one(self, step_context):
        if self._wants_hooks():
            step_context.run_with_hooks(self._step)
        else:
            for update_loop in self.update_loops:
                update_loop.check()
            if self._always:
                self._calls.hooked.run(self._step_hook.follow)
            else:
                self._step_hook.follow(self._calls.step()[1])
            if self.checkpoint_hook is not None and self.checkpoint_hook.is_due(self._step_hook.step):
                self.checkpoint_hook.save_if_due(self._session)

    def _wants_hooks(self):
        is_due = self.summary_hook is not None and self.summary_hook.is_due(self._step_hook.step)
        return is_due or self._count % self.HOOK_STEPS == 0 or (self._always and not self.user_hooks)


class RateMeter:
    """Steps per second since the last look, global and local."""

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self.start(0)

    def start(self, step, local_steps=0):
        """Begins at these counts."""
        self._last = (self._clock(), step, local_steps)

    def update(self, step, local_steps, now):
        """(global, local) steps per second since the last call; a roll-back counts as zero."""
        then, last_step, last_local = self._last
        self._last = (now, step, local_steps)
        elapsed = max(now - then, 1e-6)
        return max(step - last_step, 0) / elapsed, max(local_steps - last_local, 0) / elapsed
