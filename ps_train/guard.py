"""Signals, and the last resort when the main thread of a task is stuck.

    guard = Guard(judge, on_exit)                          # a daemon thread: signals, and `judge()` twice a second
    guard.start()
    guard.check()                                          # in the main thread, between steps: raises what was decided

A thread blocked in `session.run` cannot be interrupted: TensorFlow's timeouts do not fire there while a ps is frozen, and
Python runs no signal handler. So the guard decides, releases what it can, gives the main thread a few seconds to end in
order, and then writes the report and leaves with `os._exit`.
"""

import contextlib
import os
import signal
import threading
import time
from typing import Any

from ps_train.errors import REPEAT_SECS, PsTrainError, StoppedError
from ps_train.liveness import awake_clock
from ps_train.logs import Throttle, log
from ps_train.process import has_lost_parent

GRACE_SECS = 6.0


class Guard:
    """Watches over the main thread of a task.

    1. A first SIGINT or SIGTERM sets `stop_signal`, calls `release` and leaves the rest to the main thread, which sees it
       in `check` or `should_stop`; after `grace_secs`, or at a second signal, the process ends at once. One that comes
       within half a second of the first is no second one: a terminal and a launcher both pass on one request. Nor is a
       SIGTERM once the parent that this process is tied to is gone: Linux sends that for each of the parent's threads.
    2. Twice a second `judge()` is asked; an error that it returns is kept for `check`, and if the main thread has not
       ended `grace_secs` later, the process ends with the error's status.

    Args:
      judge: returns a PsTrainError or None; called in the guard's thread.
      on_exit: called with (exit status, reason) right before the process is ended from here: writes the report.
      grace_secs: how long the main thread may take to end in order.
      rescue: called, if the main thread has not ended `grace_secs` after a signal, before the process does; takes a few
        seconds at most.
    """

    def __init__(self, judge, on_exit, grace_secs=GRACE_SECS, rescue=lambda: None):
        self._judge, self._on_exit, self.grace_secs, self._rescue = judge, on_exit, grace_secs, rescue
        self.looks: list[Any] = []  # functions, called twice a second while nothing is decided
        self.release = lambda: None  # lets the main thread out of a wait; set once the graph has one
        self.stop_signal: int | None = None
        self._stopped_at: float | None = None
        self.failure: PsTrainError | None = None
        self._decided_at: float | None = None
        self._grants: list[tuple[float, float]] = []  # (since when, seconds)
        self._done = threading.Event()
        self._previous: dict[int, Any] = {}
        self._read_fd = self._write_fd = None

    def start(self, handle_signals=True):
        """Starts the thread; takes SIGINT and SIGTERM if asked to (from the main thread only)."""
        if handle_signals:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._write_fd, False)
            os.set_blocking(self._read_fd, False)
            signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._run, daemon=True, name="ps_train-guard").start()

    @property
    def should_stop(self):
        """Whether the main thread is to end, for whatever reason."""
        return self.stop_signal is not None or self.failure is not None

    def check(self):
        """Raises the failure or StoppedError if there is one."""
        if self.failure is not None:
            raise self.failure
        if self.stop_signal is not None:
            raise self.stopped_error()

    def stopped_error(self):
        """The error that a task ends with after a signal."""
        number = self.stop_signal or signal.SIGTERM
        return StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)

    def fail(self, error):
        """Ends the task with this PsTrainError, unless something else was decided before; from any thread."""
        if self.failure is None and not self._done.is_set():
            self.failure = error
            self._decide()

    def await_signal(self, secs):
        """Waits so long for a signal that has come to another task; then as `check`."""
        self.await_decision(secs)
        self.check()

    def await_decision(self, secs):
        """Waits no longer than that for a reason to end."""
        deadline = time.monotonic() + secs
        while not self.should_stop and time.monotonic() < deadline:
            time.sleep(0.05)

    @contextlib.contextmanager
    def granting(self, secs):
        """Within it the task may take `secs` from now, or from the decision to end if that comes later, as while it saves.

        What is left to do after it has `grace_secs` anew.
        """
        grant = (time.monotonic(), secs)
        self._grants.append(grant)
        try:
            yield
        finally:
            if self._decided_at is not None:
                self._decided_at = time.monotonic()
            self._grants.remove(grant)

    def _is_overdue(self):
        if self._decided_at is None:
            return False
        ends = [max(self._decided_at, since) + secs for since, secs in self._grants]
        return time.monotonic() > max([self._decided_at + self.grace_secs, *ends])

    def finish(self, restores_signals=False):
        """The main thread has ended its work: nothing is judged any more.

        Args:
          restores_signals: give signals their earlier effect again, as the process will go on with other things.
        """
        self._done.set()
        if restores_signals and self._previous and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous.clear()

    def _run(self):
        judged = Throttle(0.5)
        while not self._done.wait(0.05):
            awake_clock()
            self._read_signals()
            if self.failure is None and judged.is_due():
                self._ask_judge()
                self._ask_look()
            if self._is_overdue():
                if self.failure is None or self.failure.is_model_safe:
                    self._rescue()
                self._leave("The call that was running did not return in time: leaving")

    def _read_signals(self):
        if self._read_fd is None:
            return
        try:
            numbers = os.read(self._read_fd, 64)
        except BlockingIOError:
            return
        for number in numbers:
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            if self._stopped_at is not None:
                is_of_parent = number == signal.SIGTERM and has_lost_parent()
                if time.monotonic() - self._stopped_at >= REPEAT_SECS and not is_of_parent:
                    self._leave("A second signal: leaving")
                continue
            self.stop_signal, self._stopped_at = number, time.monotonic()
            log.info("%s: ending in order; a second signal ends at once", signal.Signals(number).name)
            self._decide()

    def _ask_judge(self):
        try:
            failure = self._judge()
        except Exception as error:  # thread boundary: a fault of ours must not leave the task unguarded
            failure = PsTrainError(f"internal error in the guard: {error!r}")
        if failure is not None:
            self.fail(failure)

    def _ask_look(self):
        if self.should_stop:
            return
        for look in list(self.looks):
            try:
                look()
            except Exception as error:  # thread boundary
                self.looks = [other for other in self.looks if other is not look]
                log.error("internal error in the watch over the steps, which ends: %r", error)

    def _decide(self):
        self._decided_at = self._decided_at or time.monotonic()
        try:
            self.release()
        except Exception as error:  # thread boundary: a release that fails leaves the last resort
            log.debug("release failed: %r", error)

    def _leave(self, why):
        if self._done.is_set():
            return
        error = self.failure or self.stopped_error()
        log.error("%s. %s", str(error).rstrip("."), why)
        try:
            self._on_exit(error.exit_status, str(error))
        finally:
            os._exit(error.exit_status)
