"""The end of a job: the hooks by which its tasks find a common one.

The order in which `session` lists all hooks is the order of the end, which is what makes it clean:

1. `hooks.StepHook` counts, stops at the target, shows progress;
2. the user's hooks, then `StopNoticeHook`, which sees whether one of them has asked to stop;
3. `MemberHook` of each synchronous optimizer leaves the rounds;
4. chief: `WaitForWorkersHook` waits until every other worker that joined is at the target or has left, saving when it is due;
5. chief: `UpdateLoop` of each synchronous optimizer stops, as nobody is left to serve;
6. chief: `CheckpointHook` saves the last step, which no one can pass any more.

On the command line 3 to 6, and `WaitForSave` of the other workers, are done by a step function of the session (`EndingWait`)
before the session is closed: a ps that is lost before the last step is saved takes the model back, and everybody trains on.
An end within `MonitoredSession.close`, as a script's, can only fail then; so can the save of a model with hooks of its own,
which may change it in their `end`.
"""

import contextlib
import threading
import time
from typing import Any

from ps_train.board import BoardError
from ps_train.cluster import AT_TARGET, ENDED, SERVING
from ps_train.compat import tf, tf1
from ps_train.explain import one_line
from ps_train.hooks import STALE, as_preemption
from ps_train.liveness import awake_clock, line_throttle, restarted_ps
from ps_train.logs import log

STOP = "stop"  # the chief's record of a hook's request


class StopNoticeHook(tf1.train.SessionRunHook):
    """Sees that a hook of the user's has asked to stop, and has that end what it has to.

    On the chief that is the job: the boards are told, and the other tasks end after their step, in sync though it may wait
    for a gradient of the chief's, which does not come. The chief stays in the quorum, so that there is no update
    without it, unless backup workers stand in. On another task it is that task alone, which leaves as if its data were used up.

    The job's end is such a request, too: a worker that came back while the chief was ending finds nobody who would make an update of
    its gradients, or save it.

    Args:
      runtime: session.TaskRuntime.
      step_hook: the StepHook, which comes before the user's hooks.
      members: this task's MemberHooks, which come after.
    """

    def __init__(self, runtime, step_hook, members):
        self._runtime, self._step_hook, self._members = runtime, step_hook, members
        self._has_told = False

    def after_create_session(self, session, coord):
        """Takes back what an earlier session's hooks have asked for: the model may have gone back since."""
        if self._has_told:
            self._runtime.monitor.publish(STOP, run=self._runtime.monitor.run_id, step=None)

    def after_run(self, run_context, run_values):
        """Notes a request that is not the StepHook's own."""
        if not run_context.stop_requested or self._step_hook.is_last:
            return
        self._step_hook.ask_to_stop("a hook asked to stop")
        if self._runtime.context.is_all_reduced:
            run_context._stop_requested = False  # the next step tells the others, and is the last
            return
        if self._runtime.context.is_chief:
            for member in self._members:
                member.stays = True
            self._has_told = True
            step = self._runtime.report.global_step
            self._runtime.monitor.publish(STOP, run=self._runtime.monitor.run_id, step=step)

    def look(self):
        """Whether the chief has told of one, or has ended the job; called by the guard's thread until this task has ended.

        Each call puts a REFUSED token into this task's own queue, so that no wait for one outlasts the next look.
        """
        runtime = self._runtime
        chief, view = str(runtime.context.cluster.chief_task), runtime.monitor.view()
        told, record = view.record(STOP), view.record(chief)
        is_told = told.get("step") is not None and told["run"] == record.get("run")
        has_left = record.get("state") == "left" and view.record("job").get("is_over", False)
        if runtime.context.is_chief or not (is_told or has_left):
            return
        reason = f"a hook of the chief's, {chief}, asked to stop" if is_told else f"{chief} has ended the job"
        self._step_hook.ask_to_stop(reason)
        with contextlib.suppress(BoardError):  # the next look does it
            runtime.guard.release()


class StoppingPsWatch:
    """Has the model saved when a ps says that it was asked to end, and tells it so; the chief's guard calls `look`.

    In a thread and a session of its own, as the main thread may be waiting for a worker.

    Args:
      runtime: session.TaskRuntime; nothing is saved, but told, if there is no train_dir.
      start: runs a function in a thread.
    """

    def __init__(self, runtime, start=None):
        self._runtime, self._start = runtime, start or _start_thread
        self._runs: set[str] = set()

    def look(self):
        """Called twice a second."""
        view = self._runtime.monitor.view()
        ps_tasks = self._runtime.context.cluster.ps_tasks
        stopping = {str(task): view.record(task) for task in ps_tasks}
        stopping = {name: record for name, record in stopping.items() if record.get("state") == "stopping"}
        runs = {record["run"] for record in stopping.values()}
        if runs - self._runs:
            self._runs |= runs
            told = sorted(self._runs)
            self._start(lambda: self._save(", ".join(stopping), told))

    def _save(self, names, runs):
        log.info("%s is about to end", names)
        save_if_possible(self._runtime)
        if not self._runtime.guard.should_stop:  # else this task's own end saves once more, and then tells it
            tell_saved(self._runtime.monitor, runs)


def save_if_possible(runtime):
    """Has the model saved from this thread, while the main one may be stuck; what keeps it from that is logged."""
    try:
        runtime.rescue()
    except Exception as error:  # thread boundary: whoever asked for it ends in any case
        log.error("the model is not saved: %s", one_line(error))


def tell_saved(monitor, runs):
    """Lets the ps processes of these run ids end."""
    monitor.post(saved_for=runs)
    monitor.flush()


def _start_thread(function):
    threading.Thread(target=function, daemon=True, name="ps_train-save").start()


class AtEnd(tf1.train.SessionRunHook):
    """Calls a function at its place in the order of the end."""

    def __init__(self, function):
        self._function = function

    def end(self, session):
        """Calls it."""
        self._function()


class EndingWait:
    """What a task does at the end of its loop, as a step function: a ps that is lost meanwhile is answered with a new session.

    Args:
      monitor: whose boards say who is there.
      guard: ends the wait.
      step_hook: the StepHook, which knows whether the target is reached.
      members: this task's MemberHooks, which leave their rounds before the wait.
      is_ps_lost: function of an error: whether it comes of a ps that was lost.
      is_vacant: function of names of ps tasks: whether nothing of the model is there.
    """

    POLL_SECS = 0.1

    def __init__(
        self, monitor, guard, step_hook, members=(), is_ps_lost=lambda error: False, is_vacant=lambda names: False
    ):  # fmt: skip
        self._monitor, self._guard, self._step_hook = monitor, guard, step_hook
        self._members, self._is_ps_lost, self._is_vacant = members, is_ps_lost, is_vacant
        self._waits_in: Any = None  # session
        self.is_over = False

    def run(self, step_context):
        """Waits; `is_over` says afterwards whether that was it: after a new session there is training to do."""
        session = self._step_hook.session
        if self._waits_in is not None and self._waits_in is not session:
            self._waits_in = None
            return
        self._waits_in = session
        self._step_hook.end(session)
        try:
            for member in self._members:
                member.leave(session)
            self.wait(session)
        except STALE as error:
            raise as_preemption(error, self._is_ps_lost) from error
        self.is_over = True

    def wait(self, session):
        """Returns when this task may end."""
        raise NotImplementedError

    def look(self, session):
        """Raises an error of TensorFlow's if a ps was lost."""
        self._step_hook.look(session)  # finds out that the ps with the step is lost
        back = restarted_ps(self._monitor)
        if back and not self._is_vacant(set(back)):
            raise tf.errors.AbortedError(None, None, "a ps was restarted")


class WaitForSave(EndingWait):
    """A worker's end: at the target it stays until the chief has saved and ended the job, as it may have to go back.

    Args:
      chief: what to call the chief and its address.
      monitor, guard, step_hook, members, is_ps_lost: see EndingWait.
      peer_timeout_secs: after how long without the chief the guard ends the wait.
    """

    def __init__(
        self, chief, monitor, guard, step_hook, members=(), is_ps_lost=lambda error: False, peer_timeout_secs=60.0,
        is_vacant=lambda names: False,
    ):  # fmt: skip
        super().__init__(monitor, guard, step_hook, members, is_ps_lost, is_vacant)
        self._chief, self._peer_timeout_secs = chief, peer_timeout_secs

    def wait(self, session):
        """Waits for the chief's end, if the target is reached; a worker without data has nothing to come back for."""
        if not self._step_hook.is_reached:
            return
        self._monitor.post(state=AT_TARGET)
        start = awake_clock()
        line_due = line_throttle(start)
        while not (self._guard.should_stop or self._monitor.view().record("job").get("is_over")):
            now = awake_clock()
            self.look(session)
            if line_due.is_due(now):
                log.info(
                    "at the target: waiting for %s to save and to end the job: %.0f s so far, giving up when it is gone for %g s",
                    self._chief, now - start, self._peer_timeout_secs,
                )  # fmt: skip
            time.sleep(self.POLL_SECS)


class WaitForWorkersHook(EndingWait, tf1.train.SessionRunHook):
    """The chief's last duty: the job is over when every other worker that joined is at the target or has left.

    A worker that never joined is waited for only if the target was not reached (its data is not used up then), and no
    longer than `peer_timeout_secs`; one that is silent for that long counts as gone.

    A signal mostly goes to all tasks of a job at once: the chief then waits `SIGNAL_SECS` for the first of the others to
    stop, and `STOPPING_SECS` for the rest of them, so that their last steps are in the checkpoint.

    The command line waits in `run`; a script's session in `end`, where there is no way back to training.

    Args:
      monitor, guard, step_hook, members, is_ps_lost, is_vacant: see EndingWait.
      others: the other training tasks.
      on_idle: called with the session between looks; saves when it is due.
      stop_secs: once the target is reached, how long a worker may take to leave.
      peer_timeout_secs: see above.
      finals: the hooks whose `end` saves the last step, called after the wait in `run`, and once more by the session.
    """

    SIGNAL_SECS = 1.5
    STOPPING_SECS = 3.0

    def __init__(
        self, monitor, others, guard, step_hook, on_idle, stop_secs, peer_timeout_secs, members=(),
        is_ps_lost=lambda error: False, finals=(), is_vacant=lambda names: False,
    ):  # fmt: skip
        super().__init__(monitor, guard, step_hook, members, is_ps_lost, is_vacant)
        self._others, self._on_idle, self._finals = others, on_idle, finals
        self._stop_secs, self._peer_timeout_secs = stop_secs, peer_timeout_secs
        self._is_reached = False

    def after_create_session(self, session, coord):
        """Notes a target that was reached before the first step."""
        self._is_reached = coord.should_stop()

    def after_run(self, run_context, run_values):
        """Notes that a hook has asked to stop: the loop ends at a target, and not at the end of the data."""
        self._is_reached = self._is_reached or run_context.stop_requested

    def end(self, session):
        """Waits, unless `run` has."""
        if not self.is_over:
            self._wait_for_others(session)

    def wait(self, session):
        """Waits for the others, then saves."""
        self._wait_for_others(session)
        if self._guard.failure is None:
            for hook in self._finals:
                hook.end(session)

    def _wait_for_others(self, session):
        self._is_reached = self._is_reached or self._step_hook.is_reached
        if self._step_hook.is_reached:
            self._monitor.post(state=AT_TARGET)
        start = awake_clock()
        signal_at = None
        line_due = line_throttle(start)
        while self._guard.failure is None:
            now = awake_clock()
            self.look(session)
            if self._guard.stop_signal is not None:
                signal_at = now if signal_at is None else signal_at
                pending = self.stopping(now - signal_at)
            else:
                pending = self.pending(now - start)
            if not pending:
                return
            if line_due.is_due(now):
                log.info("waiting for %s to finish: %.0f s so far", ", ".join(pending), now - start)
            self._on_idle(session)
            time.sleep(self.POLL_SECS)

    def stopping(self, waited):
        """Names of the workers that may be about to stop, `waited` seconds after the signal."""
        view = self._monitor.view()
        records = {task: view.record(str(task)) for task in self._others}
        is_for_all = any(record.get("state") == "stopped" for record in records.values())
        if waited > (self.STOPPING_SECS if is_for_all else self.SIGNAL_SECS):
            return []
        return [
            str(task)
            for task, record in records.items()
            if record
            and record["state"] not in (AT_TARGET, SERVING, *ENDED)
            and view.age(str(task)) < self.STOPPING_SECS
        ]

    def pending(self, waited):
        """Names of the workers that still count after `waited` seconds, with what is known of them."""
        view = self._monitor.view()
        described = [self._describe_pending(str(task), view, waited) for task in self._others]
        return [text for text in described if text]

    def _describe_pending(self, name, view, waited):
        record = view.record(name)
        if not record:
            is_over = self._is_reached or waited > self._peer_timeout_secs
            return "" if is_over else f"{name} (has not joined)"
        if record["state"] in (AT_TARGET, SERVING, *ENDED) or view.age(name) > self._peer_timeout_secs:
            return ""
        if self._is_reached and waited > self._stop_secs:
            log.warning(
                "%s did not leave within %g s of the target; its last step is lost", name, self._stop_secs
            )
            return ""
        return f"{name} ({record['state']} at step {record.get('step', '?')})"
