"""A launched task as its launcher sees it: `Wanted` is what to run, `TetheredTask` what runs, on this host or over ssh.

    task = TetheredTask(Wanted(TaskId("worker", 0), None, ["python", "script.py"], {"TF_CONFIG": "..."}), place)
    task.take_lines()               # what it has written since the last call
    task.send(signal.SIGTERM)
    task.exit                       # None while it runs

`tether` is the other end of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, NamedTuple

from ps_train import tether
from ps_train.cluster import TaskId
from ps_train.errors import EXIT_PERMANENT, EXIT_RETRYABLE, UsageError
from ps_train.ssh import Ssh

LAST_LINES = 200  # a long traceback
LINGER_SECS = 5.0
KILL_SECS = 5.0  # for a kill to come through
# What a task on another host needs to behave as one on this host would.
_PASSED_ON = (
    "CUDA_VISIBLE_DEVICES",
    "GRPC_",
    "KERAS_",
    "OMP_NUM_THREADS",
    "PS_TRAIN_",
    "PYTHONHASHSEED",
    "TF_",
    "XLA_FLAGS",
)


class Wanted(NamedTuple):
    """A task to run.

    Attributes:
      task: its name.
      host: as ssh knows it; None: this one.
      argv: its command line.
      env: what is added to the environment.
      lingers: it outlives the launcher for LINGER_SECS, so that others can end in order first.
    """

    task: TaskId
    host: str | None
    argv: Sequence[str]
    env: dict[str, str]
    lingers: bool = False


class Exit(NamedTuple):
    """How a task ended.

    Attributes:
      status: its exit status.
      signal: that ended it, or None.
      reason: if the cause was none of its own.
      is_cut_off: the connection was lost while it ran.
    """

    status: int
    signal: int | None = None
    reason: str | None = None
    is_cut_off: bool = False


class Remote(NamedTuple):
    """Where tasks run on other hosts, and how they are reached."""

    ssh: Ssh
    directory: str
    python: str


class TetheredTask:
    """The launcher's end. Make one, and call `take_lines` until `exit` is there.

    A host that does not answer is not waited for: not to start the task, beyond `ssh.connect_secs`, nor to a kill, beyond KILL_SECS.

    Attributes:
      wanted: what it runs.
      is_ready: its host has answered.
      exit: None until it has ended and all its lines are taken.
      last_lines: that it wrote.
    """

    def __init__(self, wanted: Wanted, place: Remote):
        self.wanted, self._place = wanted, place
        self.is_ready = False
        self.exit: Exit | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._started_at = time.monotonic()
        self._killed_at: float | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = self._start()
        assert self._process.stdin and self._process.stdout
        self._stdin = self._process.stdin.fileno()
        self._write(json.dumps(self._order()))
        os.set_blocking(self._stdin, False)
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        host, place = self.wanted.host, self._place
        if host is None:
            argv = [sys.executable, "-m", "ps_train.tether"]
        else:
            argv = place.ssh.argv(host, place.directory, place.python, os.environ.get("PYTHONPATH", ""))
        try:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )  # fmt: skip
        except OSError as error:
            remedy = (
                "Install it (Debian: openssh-client), or name another by --ssh."
                if host
                else "Ask for fewer tasks."
            )
            raise UsageError(
                f"{argv[0]} cannot be started for {self.wanted.task}: {error.strerror}. {remedy}"
            ) from None

    def _order(self) -> dict[str, object]:
        env = dict(self.wanted.env)
        if self.wanted.host is not None:
            env = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)} | env
        return {
            "argv": list(self.wanted.argv), "env": env, "linger_secs": LINGER_SECS if self.wanted.lingers else 0.0,
            "silence_secs": None if self.wanted.host is None else self._place.ssh.silence_secs,
        }  # fmt: skip

    def take_lines(self) -> list[str]:
        """Its lines since the last call; sees whether it has ended."""
        taken: list[str] = []
        while self.exit is None:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                break
            if line is None:
                self.exit = self._exit_without_a_word()
            elif line.startswith(tether.READY):
                self.is_ready = True
                self.last_lines.clear()
                taken.clear()
            elif line.startswith(tether.END):
                code = int(line.removeprefix(tether.END))
                self.exit = Exit(128 - code, -code) if code < 0 else Exit(code)
            elif line:
                self.last_lines.append(line)
                taken.append(line)
        if self.exit is None:
            self._give_up(time.monotonic())
        return taken if self.is_ready else []

    def waited_secs(self, now: float) -> float:
        """For how long its host has not answered; 0 if it has."""
        return 0.0 if self.is_ready or self.exit is not None else now - self._started_at

    def _give_up(self, now: float) -> None:
        """Cuts the connection if the time for an answer is over."""
        place, host = self._place, self.wanted.host
        if self._killed_at is not None and now - self._killed_at > KILL_SECS:
            self._cut()
            self.exit = self._exit_without_a_word()
        elif host is not None and self.waited_secs(now) > place.ssh.ready_secs:
            self._cut()
            said = f" It said: {self.last_lines[-1]}" if self.last_lines else ""
            self.exit = Exit(EXIT_RETRYABLE, reason=place.ssh.silent_start(host) + said)

    def _exit_without_a_word(self) -> Exit:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECS)
        self._cut()
        status = self._process.wait()
        if self._killed_at is not None:
            return Exit(128 + signal.SIGKILL, signal.SIGKILL)
        if self.wanted.host is None:
            return Exit(
                EXIT_PERMANENT, reason="its tether was lost: " + (self.last_lines or ["no output"])[-1]
            )
        place = self._place
        status, reason = place.ssh.explain(
            self.wanted.host, place.directory, place.python, status, list(self.last_lines), self.is_ready
        )
        return Exit(status, reason=reason, is_cut_off=self.is_ready)

    def send(self, number: int) -> None:
        """Passes a signal on to the task; one that has not begun on its host yet is killed, as there is nothing to end in order."""
        if self.wanted.host is not None and not self.is_ready:
            number = signal.SIGKILL
        if number == signal.SIGKILL and self._killed_at is None:
            self._killed_at = time.monotonic()
        if self.exit is None:
            self._write(str(number))

    def beat(self) -> None:
        """Tells the other end that this one lives."""
        if self.wanted.host is not None and self.exit is None:
            self._write("")

    def kill(self) -> None:
        """Ends it and all that it has started, as far as it can be reached."""
        self.send(signal.SIGKILL)

    def close(self, deadline: float) -> None:
        """After a `kill`: waits until `deadline`, as time.monotonic() has it, and cuts the connection then."""
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._cut()
        with contextlib.suppress(OSError):
            assert self._process.stdin
            self._process.stdin.close()

    def _cut(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # --ssh may be a script, with ssh in it
            self._process.wait()

    def _write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._stdin, f"{line}\n".encode())


def _read(stream: IO[bytes], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line.decode(errors="replace").rstrip("\r\n"))
    lines.put(None)
