"""Taking part in the rounds of a synchronous optimizer: each member's hook, and the chief's update loop.

1. A session is made: on the chief the update loops start, in threads of their own; then each worker joins and gets its
   first token.
2. When it is done a worker leaves, and the quorum shrinks. One that was stopped by a signal, or ends because a peer is gone,
   stays in it: it will be back, and the others must not go on without it meanwhile.
3. The chief's update loops end last but for the saving: they serve the others till these have left.
"""

import contextlib
import threading
from typing import Any

from ps_train.board import BoardError
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.logs import log
from ps_train.lost import LOST
from ps_train.updates import SYNC_OPTIMIZERS
from ps_train.updates.ledger import REFUSED


class MemberHook(tf1.train.SessionRunHook):
    """Joins the rounds when a session is made, leaves them at a clean end."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.guard: Any = None  # guard.Guard, set by session.make
        self.stays = False  # it does not leave, even if it is done
        self._has_left = False

    def begin(self):
        """Checks that the graph has the optimizer's nodes."""
        if self.optimizer.ledger is None:
            raise ModelError(
                "SyncReplicasOptimizer has no gradients yet: call apply_gradients() or minimize() first."
            )

    def after_create_session(self, session, coord):
        """Gets the first token; blocks while a round completes that this replica is not part of, or was before it died.

        On the chief it is the update loops that complete rounds: all of them start here, before anything blocks.
        """
        for other in session.graph.get_collection(SYNC_OPTIMIZERS):
            if other.update_loop is not None:
                other.update_loop.start(session)
        optimizer = self.optimizer
        self._has_left = self.stays = False
        token = session.run(optimizer.ledger.join)
        if token == REFUSED:
            token = session.run(optimizer.ledger.token)
        session.run(optimizer._set_stamp, {optimizer._new_stamp: token})

    def leave(self, session):
        """Shrinks the quorum by this replica, once, unless it ends before it is done and will come back."""
        if not (self._has_left or self.stays) and (self.guard is None or not self.guard.should_stop):
            self._has_left = True
            self.optimizer.remove(session, self.optimizer.replica)

    def end(self, session):
        """Leaves."""
        self.leave(session)


class UpdateLoop(tf1.train.SessionRunHook):
    """The chief's update thread, in a session of its own: `MemberHook` starts it, and as a hook it stops in `end`.

    Its place in the list of hooks is behind the one that waits for the other workers, so that it serves them till they
    have left, and before the one that saves.
    """

    def __init__(self, optimizer, make_raw_session, release, fail):
        """`release` lets the main thread out of its wait; `fail` ends the task with an error of the update's."""
        optimizer.update_loop = self
        self._optimizer, self._make_raw_session = optimizer, make_raw_session
        self._release, self._fail = release, fail
        # Function of a session and the update: a call that is to be made in place of a plain one, or None.
        self.trace: Any = lambda session, update: None
        self._lost_by: Any = None
        self._served: Any = None
        self._thread: Any = None
        self._session: Any = None
        self._stopping = threading.Event()
        self._watched: Any = None
        self._note: Any = None
        self._is_asked = False
        self._noting_in: Any = None  # the session of this call:
        self._fetch_watched: Any = None

    def watch(self, fetches, note):
        """Has `note` be given the values of `fetches` whenever it was asked for, in this object's thread."""
        self._watched, self._note = fetches, note

    def ask(self):
        """Has the next update that begins fetch what is watched."""
        self._is_asked = self._watched is not None

    def start(self, session):
        """Starts the thread anew if `session`, which it serves, is a new one."""
        if session is self._served:
            return
        self._served, self._lost_by = session, None
        self._stop()
        self._stopping = threading.Event()
        self._session = self._make_raw_session()
        self._session.run(self._optimizer.ledger.attach)
        self._thread = threading.Thread(
            target=self._run,
            args=(self._session, self._stopping),
            daemon=True,
            name="ps_train-updates",
        )
        self._thread.start()

    @property
    def is_running(self):
        """Whether the thread is there to complete a round."""
        return self._thread is not None and self._thread.is_alive()

    def end(self, session):
        """Stops the thread, after the update that it may be in the middle of."""
        self._stopping.set()
        if self.is_running:
            session.run(self._optimizer.ledger.wake)
            self._thread.join(timeout=10)
        self._stop()

    def _stop(self):
        self._stopping.set()
        if self._session is not None:
            self._session.close()  # cancels the run that waits for `go`
            self._session = None
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._thread = None

    def before_run(self, run_context):
        """As `check`."""
        self.check()

    def check(self):
        """Raises AbortedError if the thread's session was lost: a step that nobody completes would wait for ever."""
        if self._lost_by is not None:
            raise tf.errors.AbortedError(None, None, f"the session of the updates was lost: {self._lost_by}")

    def _run(self, session, stopping):
        update = session.make_callable(self._optimizer.update_op)
        while not stopping.is_set():
            try:
                traced = self.trace(session, self._optimizer.update_op)
                self._run_one(session, traced or self._noting(session) or update, stopping)
            except tf.errors.OpError as error:
                if not stopping.is_set():
                    self._give_up(error, stopping)
                return
            except RuntimeError:  # the session was closed under us
                return

    def _noting(self, session):
        """A call of the update that fetches what is watched, if it was asked for; else None."""
        if not self._is_asked:
            return None
        self._is_asked = False
        if self._noting_in is not session:
            self._noting_in = session
            self._fetch_watched = session.make_callable([self._optimizer.update_op, self._watched])
        return lambda: self._note(self._fetch_watched()[1])

    def _run_one(self, session, update, stopping):
        try:
            update()
        except tf.errors.InvalidArgumentError as error:
            if "needs attention" not in error.message:
                raise
            if not stopping.is_set():  # this thread's own: there may be a new session by now
                log.warning("a worker was lost halfway through its push: its round is dropped and done again")
                self._optimizer.discard_round(session)

    def _give_up(self, error, stopping):
        """Lets the main thread out of its wait, to make a new session or to end with the update's error.

        The wait is on one ps and the loss may be of another, so `release` asks that one alone, again and again.
        """
        if isinstance(error, LOST):
            self._lost_by = error
        else:
            self._fail(error)
        while not stopping.is_set():
            with contextlib.suppress(BoardError):
                self._release()
                return
            stopping.wait(1.0)
