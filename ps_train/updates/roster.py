"""The chief's roster: names lost workers, and where updates have members deals with them, so that nobody waits for what never comes.

A thread of the chief's looks at the boards twice a second. A training task that joined and then is silent for `lease_secs`,
or has ended other than by leaving, is lost. In sync, and with `--max_lead`,

- in sync its half-made push, if there is one, is discarded, or the others would wait for ever for it to be complete;
- if the job goes on without it, it is taken out: of the quorum, which shrinks, or of those that a lead is measured by.

It joins again by itself when it comes back: a new process when its session is made, one that was merely stopped at its
next push.
"""

import contextlib
import threading
from typing import Any

from ps_train.cluster import ends_the_job
from ps_train.compat import tf, tf1
from ps_train.logs import log

LOOK_SECS = 0.5
HEAR_SECS = 3.0


class Roster(tf1.train.SessionRunHook):
    """Watches the workers while the chief's session lives; the first of the hooks, as others wait for rounds to go on.

    Args:
      optimizers: what has members: the synchronous ones, and the leads of async; without any a lost worker is only named.
      monitor: liveness.Monitor.
      tasks: training tasks; the position is the replica's number.
      own: this task.
      make_raw_session: makes sessions for the thread.
      lease_secs: silence after which a worker counts as lost.
      max_removed: how many lost workers the job goes on without; they are taken out.
      clock: seconds.
    """

    def __init__(self, optimizers, monitor, tasks, own, make_raw_session, lease_secs, max_removed, clock):
        self._optimizers, self._monitor, self._tasks, self._own = optimizers, monitor, tasks, own
        self._make_raw_session, self._lease_secs, self._max_removed = (
            make_raw_session,
            lease_secs,
            max_removed,
        )
        self._lost: set[tuple[int, Any]] = set()
        self._stopping = threading.Event()
        self._clock, self._deaf_at = clock, -HEAR_SECS

    def after_create_session(self, session, coord):
        """Starts the thread anew."""
        self._stopping.set()
        self._stopping = threading.Event()
        self._lost = set()
        threading.Thread(
            target=self._run, args=(self._stopping,), daemon=True, name="ps_train-roster"
        ).start()

    def stop(self):
        """Ends the thread: the chief has served the last worker."""
        self._stopping.set()

    def _run(self, stopping):
        with self._make_raw_session() if self._optimizers else contextlib.nullcontext() as session:
            while not stopping.wait(LOOK_SECS):
                # A lost ps is the main thread's to deal with: it makes a new session and starts a new thread.
                with contextlib.suppress(tf.errors.OpError):
                    self.look(session)

    def look(self, session):
        """Deals with the workers that were lost since the last look."""
        if not self._hears():
            return
        view = self._monitor.view()
        for replica, task in enumerate(self._tasks):
            record = view.record(str(task))
            if task == self._own or not record or record["state"] == "left":
                continue
            key = (replica, record.get("run"))
            is_lost = record["state"] in ("failed", "stopped") or view.age(str(task)) > self._lease_secs
            if is_lost and key not in self._lost:
                self._take_out(session, replica, task)
                self._lost.add(key)
            elif not is_lost:
                if any(replica == lost for lost, _ in self._lost):
                    log.info("%s is back", task)
                self._lost = {(lost, run) for lost, run in self._lost if lost != replica}

    def _hears(self):
        """Whether a ps has answered for a while: the boards of one that stood still call everybody silent."""
        now = self._clock()
        if not any(link.is_up for link in self._monitor.links):
            self._deaf_at = now
        return now - self._deaf_at > HEAR_SECS

    def _take_out(self, session, replica, task):
        is_removed = len({lost for lost, _ in self._lost} - {replica}) < self._max_removed
        for optimizer in self._optimizers:
            if is_removed:
                optimizer.remove(session, replica)
            else:
                optimizer.forget_push(session, replica)
        record = self._monitor.view().record(str(task))
        consequence = ": going on without it" if is_removed and not ends_the_job(record) else ""
        if record.get("state") in ("failed", "stopped"):
            log.warning("%s has ended (%s)%s", task, record.get("reason"), consequence)
        else:
            log.warning("%s has been silent for %g s%s", task, self._lease_secs, consequence)
