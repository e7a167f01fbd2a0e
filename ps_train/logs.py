"""The one log writer of a task: stderr, each line led by the task's name.

    logs.start("worker:0")
    logs.log.info("step %d", 20)           # 12:00:03 worker:0 step 20

`Throttle` keeps a repeated line to one per interval; time is a parameter.
"""

import logging
import sys
import time

log = logging.getLogger("ps_train")


class _TaskFormatter(logging.Formatter):
    """Prefixes every line of a record, so that a multi-line message can still be told apart by task."""

    def __init__(self, task_name):
        super().__init__()
        self.task_name = task_name

    def format(self, record):
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno < logging.WARNING else record.levelname.lower() + ": "
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"{stamp} {self.task_name} {level}{line}" for line in lines)


def start(task_name, stream=None):
    """Sends this process's ps_train log to `stream` (stderr) under `task_name`; replaces an earlier call's writer."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_TaskFormatter(task_name))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


class Throttle:
    """True at most once per `secs`; the first call is due at once unless `wait_first`.

    >>> every = Throttle(10)
    >>> [every.is_due(now) for now in (0, 5, 9.9, 10, 19)]
    [True, False, False, True, False]
    """

    def __init__(self, secs, wait_first=False, now=None):
        self._secs = secs
        self._last = (time.monotonic() if now is None else now) if wait_first else None

    def is_due(self, now=None):
        """Whether the interval has passed; `now` in seconds of a monotonic clock."""
        now = time.monotonic() if now is None else now
        if self._last is not None and now - self._last < self._secs:
            return False
        self._last = now
        return True
