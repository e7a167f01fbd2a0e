"""A raw session whose `close` returns, whose errors say what they are, and for which another one may work.

session = BoundedSession(target, graph=graph, config=config)
session.substitute(BoundedSession(target, graph=graph, config=config))     # after a change of the graph's wiring
session.run(train_op)                                                      # in the second one
session.close()                                                            # both, in two seconds or less
"""

import contextlib
import functools
import re
import sys
import threading
import time
from typing import Any

from ps_train.compat import tf, tf1
from ps_train.lost import LOST

_CANCELLED_TRANSFER = "RecvFromRemoteAsync is cancelled"
_REMOTE = "Additional GRPC error information"
_NODE = re.compile(r"\{\{node (\S+)\}\}")


_closing: list[threading.Thread] = []


def await_closing(secs=10.0):
    """Waits, no longer than that, for the sessions that are being closed: for the end of a process that Python ends itself.

    A thread that comes back from TensorFlow while Python ends is ended there, within C++ that forbids it: the process aborts
    (seen with Python 3.11, on a slow machine, in 5 of 62 ends).
    """
    deadline = time.monotonic() + secs
    for thread in _closing:
        thread.join(max(0.0, deadline - time.monotonic()))


class BoundedSession(tf1.Session):
    """A session whose `close` returns: TensorFlow's waits for a ps that is frozen or gone, at times for seconds.

    Another one of the same graph may do its work, for whoever has this one: hooks, and MonitoredSession.
    """

    CLOSE_SECS = 2.0
    _is_closing = False
    _substitute: Any = None
    _substitutes: tuple = ()
    lost_by: Exception | None = None  # what a step ended with that lost a ps

    def run(self, *args, **kwargs):
        """As TensorFlow's, with errors as `_call` gives them."""
        session: Any = self._substitute or super()
        return self._call(session.run, *args, **kwargs)

    def make_callable(self, *args, **kwargs):
        """As TensorFlow's, and as `run`."""
        session: Any = self._substitute or super()
        return functools.partial(self._call, session.make_callable(*args, **kwargs))

    def substitute(self, session):
        """From now on another BoundedSession does the work, which is closed with this one; None: this one itself."""
        self._substitute = session
        if session is not None and session not in self._substitutes:
            self._substitutes += (session,)

    def forget_substitutes(self):
        """Closes all those that do not do the work now."""
        for session in self._substitutes:
            if session is not self._substitute:
                session.close()
        self._substitutes = () if self._substitute is None else (self._substitute,)

    def _call(self, call, *args, **kwargs):
        """Keeps the error of a lost ps, which MonitoredSession swallows, and mends two that TensorFlow gives amiss.

        Raises:
          tf.errors.AbortedError: also for a transfer that was cancelled because another part of the step had failed: the step was
            lost, with the session, of which MonitoredSession makes a new one only after this error.
          tf.errors.UnknownError: a text that is no UTF-8, as with a user's bytes in it: Python's UnicodeDecodeError comes then. If
            it is of a call to another task, AbortedError.
        """
        try:
            return call(*args, **kwargs)
        except UnicodeDecodeError as error:
            mended = self._as_op_error(error.object.decode(errors="backslashreplace"))
            self.lost_by = mended if isinstance(mended, LOST) else self.lost_by
            raise mended from None
        except tf.errors.CancelledError as error:
            is_derived = _CANCELLED_TRANSFER in error.message and not self._is_closing
            self.lost_by = (
                tf.errors.AbortedError(error.node_def, error.op, error.message) if is_derived else error
            )
            raise self.lost_by from None
        except LOST as error:
            self.lost_by = error
            raise

    def _as_op_error(self, text):
        """What TensorFlow makes of a step's error, without its code, which is not known."""
        op, found = None, _NODE.search(text)
        with contextlib.suppress(KeyError):
            op = found and self.graph.get_operation_by_name(found[1])
        kind = tf.errors.AbortedError if _REMOTE in text else tf.errors.UnknownError
        return kind(op and op.node_def, op, text)

    def close(self):
        """Closes in a thread of its own and waits no longer than CLOSE_SECS for it; once, and not while Python ends."""
        if self._is_closing or sys.is_finalizing():
            return
        self._is_closing = True
        closing = threading.Thread(target=self._close_now, daemon=True, name="ps_train-close")
        _closing[:] = [thread for thread in _closing if thread.is_alive()] + [closing]
        closing.start()
        closing.join(self.CLOSE_SECS)

    def _close_now(self):
        for session in self._substitutes:
            session._is_closing = True
            session._close_now()
        with contextlib.suppress(tf.errors.OpError):  # the ps is gone, and the session with it
            super().close()
