r"""The near end of a launched task's life: runs its command on its host, and does not let it outlive the launcher.

`tethered` starts `python -m ps_train.tether`, on this host or through ssh, and holds its stdin and stdout:

1. The first line of stdin is the order, JSON: argv, env (added to this one's), linger_secs, silence_secs.
2. "\x1eready" is written to stdout, the command is started in a session of its own; its output goes to stdout, too.
3. A number on a line of stdin is a signal for the command, SIGKILL for everything that it has started; an empty line only
   says that the launcher lives.
4. The end of stdin, or none of these lines for silence_secs (the network is cut), is the launcher's end: the command gets a
   SIGTERM linger_secs later, and a SIGKILL after GRACE_SECS more. If this process is killed, the system sends the SIGTERM.
5. When the command has ended, what it left behind is killed, and "\x1eend CODE" is the last line; a CODE below 0 is a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from ps_train.errors import EXIT_PERMANENT
from ps_train.process import tie_to_parent

MARK = "\x1e"
READY, END = f"{MARK}ready", f"{MARK}end "
NOT_FOUND = 127  # as a shell has it
START_SECS = 60.0
GRACE_SECS = 15.0


class Orders:
    """Lines from a file descriptor."""

    def __init__(self, fd: int):
        self._fd, self._rest = fd, b""

    def wait(self, secs: float | None) -> list[str]:
        """The lines that have come, maybe none; raises `EOFError` at the end of them, or if nothing comes for `secs`."""
        data = os.read(self._fd, 65536) if select.select([self._fd], [], [], secs)[0] else b""
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


def run() -> int:
    """Lives for one command; gives the status of this process."""
    orders = Orders(0)
    lines: list[str] = []
    try:
        while not lines:
            lines = orders.wait(START_SECS)
    except EOFError:
        return EXIT_PERMANENT
    order = json.loads(lines[0])
    _tell(READY)
    try:
        child = _start(order)
    except OSError as error:
        print(f"{order['argv'][0]} cannot be started: {error.strerror}", flush=True)
        _tell(f"{END}{NOT_FOUND}")
        return NOT_FOUND
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: _send(child, signal.SIGTERM))
    threading.Thread(target=_follow, args=(orders, lines[1:], child, order), daemon=True).start()
    code = child.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    _tell(f"{END}{code}")
    return 128 - code if code < 0 else code


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    return subprocess.Popen(
        order["argv"], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env={**os.environ, **order["env"]},
        start_new_session=True, preexec_fn=(lambda: tie_to_parent(parent)) if sys.platform == "linux" else None,
    )  # fmt: skip


def _follow(orders: Orders, lines: list[str], child: subprocess.Popen[bytes], order: dict[str, Any]) -> None:
    try:
        while True:
            for line in filter(None, lines):
                _send(child, int(line))
            lines = orders.wait(order["silence_secs"])
    except EOFError:
        time.sleep(order["linger_secs"])
        _send(child, signal.SIGTERM)
        time.sleep(GRACE_SECS)
        _send(child, signal.SIGKILL)


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    if number == signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
    else:
        child.send_signal(number)


def _tell(text: str) -> None:
    """A line for the launcher, which the command's output may have to be ended for."""
    with contextlib.suppress(OSError):
        os.write(1, f"\n{text}\n".encode())


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, signal.SIG_DFL)
    _status = run()
    os._exit(_status)
