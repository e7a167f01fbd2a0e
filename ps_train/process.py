"""Child processes of a local cluster: `TaskProcess` is a task that runs, beside the `TaskId` that is wanted.

    task = start("worker:0", lambda: run_task(...), ["--job_name=worker", ...], "logs/worker0.log")
    task.poll()                     # None while it runs, then its exit status; 128 + n if signal n ended it
    task.terminate()

The life of a task:

1. It is forked from this process, which has imported TensorFlow already and saves the task that time. Nothing of
   TensorFlow's runtime and no gRPC channel may exist here yet: their threads do not survive a fork.
2. It gets a session and process group of its own: the terminal's Ctrl-C reaches the launcher only, which decides.
3. Its output, also that of C++, goes to its log file.
4. It ends when this process does, SIGKILL included (`tie_to_parent`).
5. When it has ended, whatever else is in its process group is ended, too.

Where fork is not safe, or with PS_TRAIN_START=spawn, it is a fresh `python -m ps_train` with the same life from step 2.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from ps_train.errors import EXIT_PERMANENT, EXIT_SIGINT, EXIT_SIGTERM, PsTrainError

START_VARIABLE = "PS_TRAIN_START"
_PR_SET_PDEATHSIG = 1
_tied_to: int | None = None  # process id
_PARENT_POLL_SECS = 0.5
_KILL_SECS = 5.0


def can_fork() -> bool:
    """Whether tasks are forked. macOS has fork, but its system libraries do not survive one."""
    return hasattr(os, "fork") and sys.platform != "darwin" and os.environ.get(START_VARIABLE) != "spawn"


class TaskProcess:
    """A task's process. Make one with `start`.

    Attributes:
      name: as "worker:0".
      log_path: file that its output is appended to.
      pid: its process id and that of its group; None while it is held and not there yet.
      status: its exit status once `poll` has seen the end, 128 + n if signal n ended it.
      ended_by: the signal that ended it, None if it ended by itself, whatever its status.
    """

    def __init__(self, name: str, log_path: str):
        self.name, self.log_path = name, log_path
        self.pid: int | None = None
        self.status: int | None = None
        self.ended_by: int | None = None
        self._log_start = self._read_to = os.path.getsize(log_path) if os.path.exists(log_path) else 0

    def release(self) -> None:
        """Lets a task that was started with `is_held` go on."""
        raise NotImplementedError

    def poll(self) -> int | None:
        """The exit status, or None while the task runs."""
        if self.status is None and self.pid is not None:
            code = self._reap()
            if code is not None:
                self.status, self.ended_by = (128 - code, -code) if code < 0 else (code, None)
                self._signal_group(signal.SIGKILL)  # what it started and left behind
        return self.status

    def send(self, number: int) -> None:
        """Sends a signal to the task's process alone; nothing if it has ended."""
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks it to end in order."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and everything that it started, and waits a few seconds for that."""
        deadline = time.monotonic() + _KILL_SECS
        while self.pid is not None and self.poll() is None and time.monotonic() < deadline:
            self._signal_group(signal.SIGKILL)
            time.sleep(0.01)

    def last_line(self) -> str:
        """The last line that it wrote to its log, or ""."""
        return next((line.strip() for line in reversed(self._log_lines()) if line.strip()), "")

    def has_traceback(self) -> bool:
        """Whether there is one at the end of its log."""
        return any(line.startswith("Traceback (most recent call last)") for line in self._log_lines(65536))

    def new_lines(self) -> list[str]:
        """The lines that it has written to its log since the last call, but for one that it has not finished yet."""
        with contextlib.suppress(OSError), open(self.log_path, "rb") as file:
            file.seek(self._read_to)
            lines, _, _ = file.read().rpartition(b"\n")
            self._read_to += len(lines) + 1 if lines else 0
            return lines.decode(errors="replace").splitlines()
        return []

    def _log_lines(self, max_bytes: int = 8192) -> list[str]:
        """The end of what it wrote to its log."""
        with contextlib.suppress(OSError), open(self.log_path, "rb") as file:
            file.seek(max(self._log_start, os.path.getsize(self.log_path) - max_bytes))
            return file.read().decode(errors="replace").split("\n")
        return []

    def _reap(self) -> int | None:
        raise NotImplementedError

    def _signal_group(self, number: int) -> None:
        assert self.pid  # 0 would be this process's own group
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            if self.status is None:  # it is new and has not made its group yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)


def start(
    name: str, run: Callable[[], int] | None, args: Sequence[str], log_path: str,
    is_held: bool = False, linger_secs: float = 0.0, pass_fds: Sequence[int] = (),
) -> TaskProcess:  # fmt: skip
    """Starts a task.

    Args:
      name: for messages.
      run: what a forked task does; gives its exit status. None: it is spawned in any case.
      args: the same as a command line of `python -m ps_train`, for a task that is spawned.
      log_path: file for its output; appended to.
      is_held: it does nothing before `release`.
      linger_secs: how long it may outlive this process, so that others can end in order first.
      pass_fds: files that a spawned one holds open, too; a forked one holds all.

    Raises:
      OSError: the log file cannot be opened.
    """
    if run is not None and can_fork():
        return _ForkedTask(name, run, log_path, is_held, linger_secs)
    return _SpawnedTask(name, args, log_path, is_held, linger_secs, pass_fds)


class _ForkedTask(TaskProcess):
    def __init__(self, name: str, run: Callable[[], int], log_path: str, is_held: bool, linger_secs: float):
        super().__init__(name, log_path)
        parent = os.getpid()
        gate: int | None = None
        self._opener: int | None = (
            None  # closed without a word, or by this process's end, it tells the task to end
        )
        if is_held:
            gate, self._opener = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the child would write it again
        with open(log_path, "ab", buffering=0) as log_file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside TensorFlow's idle threads
            self.pid = os.fork()
            if self.pid == 0:
                if self._opener is not None:
                    os.close(self._opener)
                _run_forked(run, log_file.fileno(), parent, gate, linger_secs)
        if gate is not None:
            os.close(gate)

    def release(self) -> None:
        if self._opener is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._opener, b"1")
            os.close(self._opener)
            self._opener = None

    def _reap(self) -> int | None:
        pid, wait_status = os.waitpid(self.pid or 0, os.WNOHANG)
        return os.waitstatus_to_exitcode(wait_status) if pid else None


class _SpawnedTask(TaskProcess):
    def __init__(
        self, name: str, args: Sequence[str], log_path: str, is_held: bool, linger_secs: float,
        pass_fds: Sequence[int],
    ):  # fmt: skip
        super().__init__(name, log_path)
        self._pass_fds = pass_fds
        self._argv = [sys.executable, "-m", "ps_train.process", str(os.getpid()), str(linger_secs), *args]
        self._popen: subprocess.Popen[bytes] | None = None
        if not is_held:
            self.release()

    def release(self) -> None:
        with open(self.log_path, "ab", buffering=0) as log_file:
            self._popen = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, start_new_session=True,
                pass_fds=self._pass_fds,
            )  # fmt: skip
        self.pid = self._popen.pid

    def _reap(self) -> int | None:
        return self._popen.poll() if self._popen else None


def _run_forked(
    run: Callable[[], int], log_fd: int, parent: int, gate: int | None, linger_secs: float
) -> NoReturn:
    """The child's whole life. It never returns into the parent's stack, nor runs the parent's exit handlers."""

    def live() -> int:
        _redirect(log_fd)  # first, so that whatever is raised is in the log
        os.setsid()
        tie_to_parent(parent, linger_secs)
        gc.freeze()  # what the parent made stays in shared memory
        if "numpy" in sys.modules:  # its generator is the parent's; `random` sees to itself
            sys.modules["numpy"].random.seed()
        return run() if gate is None or os.read(gate, 1) else EXIT_PERMANENT

    status = EXIT_PERMANENT
    try:
        status = _guarded(live)
    finally:
        end(status, runs_exit_handlers=False)


def end(status: int, runs_exit_handlers: bool = True) -> NoReturn:
    """Ends this process now, its output written; threads blocked in TensorFlow are not waited for."""
    try:
        if runs_exit_handlers:
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except PsTrainError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return EXIT_SIGINT
    except BaseException:  # process boundary
        traceback.print_exc()
        return EXIT_PERMANENT


def _redirect(log_fd: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    # New objects: the parent's may be a test's or a notebook's, which do not use descriptors 0 to 2.
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def tie_to_parent(parent: int, linger_secs: float = 0.0) -> None:
    """Sends this process a SIGTERM `linger_secs` after its parent, of process id `parent`, is gone.

    At once, Linux does it, and would even for a process that is stuck. Otherwise a thread looks twice a second.
    """
    global _tied_to
    _tied_to = parent
    if linger_secs == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it went before
            os._exit(EXIT_SIGTERM)
    else:
        threading.Thread(target=_watch_parent, args=(parent, linger_secs), daemon=True).start()


def has_lost_parent() -> bool:
    """Whether the parent that this process is tied to is gone, or about to be: its threads are ended one after the other.

    Linux sends the signal of its death anew for each of them, on a busy machine over seconds.
    """
    if _tied_to is None:
        return False
    if os.getppid() != _tied_to:
        return True
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{_tied_to}/stat", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().rpartition(")")[2].split()[0] in "ZX"
    return False


def _watch_parent(parent: int, linger_secs: float) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECS)
    time.sleep(linger_secs)
    os.kill(os.getpid(), signal.SIGTERM)


def signal_name(number: int) -> str:
    """As "SIGTERM"; a real-time signal has no name.

    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def leaving_at_signals(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block, SIGINT, SIGTERM or SIGHUP ends this process at once, status 128 + its number, after `say(name)`.

    For while modules are imported, some of which catch a KeyboardInterrupt. SIGHUP is left ignored if it is (nohup).
    """
    stderr = os.dup(2)  # not where it is during the import of TensorFlow, which is held back

    def leave(number: int, _: object) -> None:
        try:
            os.dup2(stderr, 2)
            say(signal_name(number))
        finally:
            end(128 + number, runs_exit_handlers=False)

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(stderr)


class SignalInbox:
    """Signals as values: within its `with` block, `wait` gives those that came, and wakes up when a child ends.

    SIGHUP is left ignored if it is (nohup). Use it in the main thread, after the tasks are started.
    """

    def __init__(self) -> None:
        self._read_fd = self._write_fd = -1
        self._previous: dict[int, object] = {}

    def __enter__(self) -> SignalInbox:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(-1)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, timeout_secs: float) -> list[int]:
        """Waits for a signal; those other than SIGCHLD, in order."""
        # Not select(), which takes no file number above 1023.
        inbox = select.poll()
        inbox.register(self._read_fd, select.POLLIN)
        inbox.poll(timeout_secs * 1000)
        try:
            numbers = os.read(self._read_fd, 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in self._previous and number != signal.SIGCHLD]


if __name__ == "__main__":  # a spawned task: PARENT_PID LINGER_SECS ARGS...
    tie_to_parent(int(sys.argv[1]), float(sys.argv[2]))
    del sys.argv[1:3]
    runpy.run_module("ps_train", run_name="__main__", alter_sys=True)
