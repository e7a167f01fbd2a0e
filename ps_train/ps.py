"""A ps: serves variables and its board until the job is over, then ends by itself.

Looked at five times a second, on its own board:

- the chief said that the job is over and every worker that joined has left: status 0;
- a task failed for good, and the others have ended, too, or have had `shutdown_timeout_secs` for it: status 1, naming it;
- no worker has come within `startup_timeout_secs`, or all have been gone, the job not over, for `peer_timeout_secs`:
  status 138;
- SIGINT, SIGTERM: status 130, 143 as soon as the chief has saved what is here, or has ended: a signal often goes to all
  tasks of a job at once. It is given STOPPING_SECS for that, if it trains.

A worker that never joined holds nobody up; one that is silent for `shutdown_timeout_secs` after the end neither.
"""

import time

from ps_train.cluster import ENDED, SERVING, UP
from ps_train.errors import PeerLostError
from ps_train.liveness import BEAT_SECS, SILENCE_SECS, awake_clock, first_failure
from ps_train.logs import Throttle, log

POLL_SECS = 0.2
SILENT_SECS = 2.0  # four beats
STOPPING_SECS = 8.0


def run(runtime, sleep=time.sleep):
    """Serves until the job is over.

    Args:
      runtime: session.TaskRuntime; its monitor beats this ps's own board.
      sleep: for tests.

    Raises:
      PsTrainError: how it ended, if not with the job.
    """
    monitor, cluster, timeouts = runtime.monitor, runtime.context.cluster, runtime.timeouts
    verdict = Verdict([str(task) for task in cluster.training_tasks], timeouts)
    monitor.post(state=SERVING)
    line_due = Throttle(SILENCE_SECS, wait_first=True)
    while True:
        if runtime.guard.stop_signal is not None and runtime.guard.failure is None:
            serve_until_saved(runtime, sleep)
        runtime.guard.check()
        view = monitor.view()
        monitor.post(silent=_silent(view, cluster.training_tasks))
        reason = verdict.look(view)
        if verdict.is_training:
            runtime.report.begin_training()
        if reason:
            runtime.report.reason = reason
            runtime.report.global_step = verdict.step
            return
        if verdict.waits_for and line_due.is_due():
            log.info("waiting for %s", verdict.waits_for)
        sleep(POLL_SECS)


def serve_until_saved(runtime, sleep=time.sleep):
    """After the end of the worker in this process: serves until the chief has saved what is here, or has ended.

    Args:
      runtime: session.TaskRuntime of the ps.
      sleep: for tests.
    """
    with runtime.guard.granting(STOPPING_SECS + 1):
        _wait_for_the_chief(runtime, sleep)


def _wait_for_the_chief(runtime, sleep, clock=awake_clock):
    """Serves until the chief has saved what it is about to lose (`ending.StoppingPsWatch`), or cannot."""
    monitor, chief = runtime.monitor, runtime.context.cluster.chief_task
    monitor.post(state="stopping")
    start = clock()
    while clock() - start < STOPPING_SECS:
        monitor.flush()
        view = monitor.view()
        record = view.record(chief)
        is_young = clock() - start < 3 * BEAT_SECS  # what is seen here is that old at times
        states = (*UP, "starting") if is_young else UP
        may_save = record.get("state") in states and view.age(chief) < SILENT_SECS
        if not may_save or monitor.run_id in record.get("saved_for", ()):
            return
        sleep(0.1)
    log.warning("%s has not saved what was done since its last checkpoint", chief)


def _silent(view, tasks):
    """Task -> seconds since its record changed, of those that ought to beat; for `ps_train status`, which looks but once."""
    ages = {
        str(task): view.age(str(task))
        for task in tasks
        if view.record(task).get("state", "left") not in ENDED
    }
    return {name: round(age, 1) for name, age in ages.items() if age > SILENT_SECS}


class Verdict:
    """Decides from the board whether the job is over; time is a parameter.

    Args:
      workers: names of the training tasks.
      timeouts: session.Timeouts.
      clock: seconds.
    """

    def __init__(self, workers, timeouts, clock=awake_clock):
        self._workers, self._timeouts, self._clock = workers, timeouts, clock
        self._last_seen = clock()
        self._is_joined = self.is_training = False
        self._failed_at: float | None = None
        self.waits_for = ""
        self.step = None

    def look(self, view):
        """The reason to end with status 0, or "" to go on; raises PsTrainError to end otherwise."""
        now = self._clock()
        joined = {name: view.record(name) for name in self._workers if view.record(name)}
        self._is_joined = self._is_joined or bool(joined)
        self.is_training = any(record["state"] in UP for record in joined.values())
        job = view.record("job")
        self.step = max((record.get("step") or 0 for record in joined.values()), default=None)
        failure = self._failure(joined, now)
        is_ending = bool(job) or failure is not None
        bound = self._timeouts.shutdown_timeout_secs if is_ending else self._timeouts.peer_timeout_secs
        active = [
            name for name, record in joined.items()
            if record["state"] not in ENDED and view.age(name) <= bound
        ]  # fmt: skip
        if failure is not None and (not active or now - (self._failed_at or now) > bound):
            raise failure
        if job.get("is_over") and not active:
            return f"the job is over: {job.get('reason', '')}"
        alive = [name for name in active if view.age(name) < 2 * SILENCE_SECS]
        if alive or job.get("is_over"):  # then the bound of `active` is the only one
            self._last_seen = now
            self.waits_for = f"{', '.join(active)} to end, {bound:g} s at most" if is_ending else ""
            return ""
        self._wait(now)
        return ""

    def _wait(self, now):
        gone = now - self._last_seen
        if not self._is_joined:
            bound = self._timeouts.startup_timeout_secs
            self.waits_for = f"the first worker: {gone:.0f} s so far, giving up after {bound:g} s"
            if gone > bound:
                raise PeerLostError(f"no worker has come within {bound:g} s")
            return
        bound = self._timeouts.peer_timeout_secs
        self.waits_for = f"workers to come back: all gone for {gone:.0f} s, giving up after {bound:g} s"
        if gone > bound:
            raise PeerLostError(f"every worker has been gone for {bound:g} s and the job is not over")

    def _failure(self, joined, now):
        """The error of a task that failed for good, or None; the others are left the time to read it here and to end."""
        failure = first_failure(joined)
        if failure is None:
            self._failed_at = None
        elif self._failed_at is None:
            self._failed_at = now
        return failure
