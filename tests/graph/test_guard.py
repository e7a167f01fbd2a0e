"""What the guard of a task decides, and how it ends a main thread that is stuck."""

import os
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from ps_train import guard as guard_module
from ps_train.errors import PeerLostError, PsTrainError, StoppedError
from ps_train.guard import Guard

pytestmark = pytest.mark.graph


def test_guard_raises_what_was_decided():
    guard = Guard(lambda: None, None)
    guard.check()
    assert not guard.should_stop
    guard.stop_signal = signal.SIGINT
    with pytest.raises(StoppedError) as raised:
        guard.check()
    assert (str(raised.value), raised.value.exit_status) == ("stopped by SIGINT", 130)
    guard.failure = PeerLostError("ps:0 is gone")
    with pytest.raises(PeerLostError, match="ps:0 is gone"):
        guard.check()
    assert guard.should_stop


def test_guard_keeps_the_judge_s_first_error_and_releases():
    guard = Guard(lambda: PeerLostError("lost"), None)
    released = []
    guard.release = lambda: released.append(True)
    guard._ask_judge()
    assert str(guard.failure) == "lost" and released == [True]


def test_guard_survives_a_judge_and_a_release_with_faults():
    def fault():
        raise KeyError("x")

    guard = Guard(fault, None)
    guard.release = fault
    guard._ask_judge()
    assert str(guard.failure) == "internal error in the guard: KeyError('x')"
    assert isinstance(guard.failure, PsTrainError) and guard.failure.exit_status == 1


def test_nothing_is_judged_after_the_end():
    guard = Guard(lambda: PeerLostError("the others have ended, too"), None)
    guard.finish()
    guard._ask_judge()
    guard.check()


CHILD = """
    import signal, sys, threading, time
    from ps_train import logs
    from ps_train.errors import PeerLostError, PsTrainError
    from ps_train.guard import Guard

    logs.start("worker:0")
    kind = sys.argv[1]
    errors = {"judge": PeerLostError("ps:0 is gone"), "safe": PeerLostError("worker:1 is gone", is_model_safe=True)}
    rescue = lambda: print("rescue", flush=True)
    report = lambda status, reason: print("report", status, reason, flush=True)
    guard = Guard(lambda: errors.get(kind), report, grace_secs=0.5, rescue=rescue)
    released = threading.Event()
    guard.release = released.set
    guard.start()
    print("ready", flush=True)
    lock = threading.Lock()
    lock.acquire()
    if kind == "orderly":
        released.wait()                        # as a wait that the release ends
        try:
            guard.check()
        except PsTrainError as error:
            guard.finish()
            print("orderly", error.exit_status, error, flush=True)
            sys.exit(error.exit_status)
    while True:                                # as session.run on a frozen ps: runs no signal handler of Python
        lock.acquire()
"""


def run_child(kind, *signals):
    """(status, lines on stdout after "ready") of a process with a guard."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), kind],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "ready\n", child.communicate(timeout=10)[1]
        for number in signals:
            child.send_signal(number)
        out, err = child.communicate(timeout=30)
        assert "Traceback" not in err, err
        return child.returncode, out.splitlines(), err
    finally:
        child.kill()
        child.wait(10)


def test_signal_ends_a_wait_in_order():
    status, lines, err = run_child("orderly", signal.SIGTERM)
    assert (status, lines) == (143, ["orderly 143 stopped by SIGTERM"])
    assert "worker:0 SIGTERM: ending in order; a second signal ends at once" in err


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_sigterm_for_each_thread_of_a_lost_parent_is_one_request(monkeypatch, is_lost):
    now, left = [100.0], []
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(guard_module, "has_lost_parent", lambda: is_lost)
    guard = Guard(lambda: None, lambda *_: None)
    guard._leave = left.append
    guard._read_fd, write_fd = os.pipe()
    os.set_blocking(guard._read_fd, False)
    try:
        for secs in (0.0, 0.3, 2.0):
            now[0] = 100.0 + secs
            os.write(write_fd, bytes([signal.SIGTERM]))
            guard._read_signals()
        assert bool(left) == (not is_lost) and guard.stop_signal == signal.SIGTERM
        os.write(write_fd, bytes([signal.SIGINT]))
        guard._read_signals()
        assert left, "a person's second signal counts"
    finally:
        os.close(guard._read_fd)
        os.close(write_fd)


def test_a_save_that_is_going_on_when_it_is_decided_has_its_time(monkeypatch):
    """From the decision on, not from its own start; then the rest has the grace anew."""
    now = [100.0]
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    guard = Guard(lambda: None, lambda *_: None, grace_secs=6.0)
    with guard.granting(30.0):
        now[0] += 20
        guard.fail(PeerLostError("worker:1 is gone", is_model_safe=True))
        now[0] += 29
        assert not guard._is_overdue()
        now[0] += 2
        assert guard._is_overdue()
    assert not guard._is_overdue()
    now[0] += 7
    assert guard._is_overdue()
    with guard.granting(5.0):
        assert not guard._is_overdue(), "one that begins after the decision, too"


def test_signal_ends_a_main_thread_that_is_stuck():
    status, lines, err = run_child("stuck", signal.SIGINT)
    assert (status, lines) == (130, ["rescue", "report 130 stopped by SIGINT"])
    assert "error: stopped by SIGINT. The call that was running did not return in time: leaving" in err


def test_judge_ends_a_main_thread_that_is_stuck():
    status, lines, err = run_child("judge")
    assert (status, lines) == (138, ["report 138 ps:0 is gone"])
    assert "error: ps:0 is gone. The call that was running did not return in time: leaving" in err


def test_the_model_is_saved_if_only_workers_are_gone():
    status, lines, _ = run_child("safe")
    assert (status, lines) == (138, ["rescue", "report 138 worker:1 is gone"])
