"""Warm-up: the chief trains alone up to a global step, then the others begin (`--warmup_steps`, async).

At a new model's first steps gradients are large and change fast, and stale ones do the most harm: Chen et al., "Revisiting
Distributed Synchronous SGD", 2016, add their asynchronous workers one after the other for that.
"""

import time

from ps_train.cluster import OVER, WARMING_UP
from ps_train.compat import tf1
from ps_train.hooks import STALE, as_preemption
from ps_train.liveness import awake_clock, line_throttle
from ps_train.logs import log


class WarmUpHook(tf1.train.SessionRunHook):
    """A worker's wait, once it has a session, until the chief has brought the model to a step, or trains no longer.

    The chief itself, and a job without a warm-up, wait for nothing. A loss of the chief ends the wait as it ends training: the
    guard watches a task that warms up like one that trains.

    Args:
      runtime: session.TaskRuntime, whose context has the step.
      step_hook: the StepHook, which comes before it.
      creator: SessionCreator, which knows what is pulled before the first step.
      is_ps_lost: function of an error: whether it comes of a ps that was lost.
    """

    POLL_SECS = 0.1

    def __init__(self, runtime, step_hook, creator, is_ps_lost=lambda error: False):
        self._runtime, self._step_hook, self._creator = runtime, step_hook, creator
        self._is_ps_lost = is_ps_lost
        self._steps = 0 if runtime.context.is_chief else runtime.context.warmup_steps
        self._chief = str(runtime.context.cluster.chief_task)

    def begin(self):
        """Adds a reader of the global step."""
        if self._steps:
            self._read_step = tf1.train.get_global_step().read_value()

    def after_create_session(self, session, coord):
        """Waits."""
        step = int(session.run(self._read_step)) if self._steps else 0
        if step >= self._steps:
            return
        try:
            step = self._wait(session, step)
            if self._creator.first_pull is not None:  # what was pulled before is of the step before the wait
                session.run(self._creator.first_pull)
        except STALE as error:
            raise as_preemption(error, self._is_ps_lost) from error
        self._step_hook.begin_at(step)
        if self._step_hook.is_reached or self._runtime.guard.should_stop:
            coord.request_stop()

    def _wait(self, session, step):
        """The global step, once the wait is over."""
        log.info("warm-up: %s trains alone up to step %d", self._chief, self._steps)
        self._runtime.monitor.post(state=WARMING_UP)
        line_due = line_throttle(awake_clock())
        while step < self._steps and not self._is_in_vain():
            if line_due.is_due(awake_clock()):
                log.info("warm-up: at step %d of %d", step, self._steps)
            time.sleep(self.POLL_SECS)
            step = int(session.run(self._read_step))
        return step

    def _is_in_vain(self):
        if self._runtime.guard.should_stop or self._step_hook.is_last:
            return True
        state = self._runtime.monitor.view().record(self._chief).get("state")
        return state in OVER
