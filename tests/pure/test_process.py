"""Child processes, forked and spawned, with work that needs no TensorFlow."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from ps_train import process
from ps_train.errors import PeerLostError


def wait(task, secs=10.0):
    deadline = time.monotonic() + secs
    while task.poll() is None:
        assert time.monotonic() < deadline, f"{task.name} still runs"
        time.sleep(0.005)
    return task.poll()


@pytest.fixture
def start(tmp_path):
    """`process.start` with a log in tmp_path; what still runs at the end is killed."""
    tasks = []

    def start_one(run, args=(), **options):
        tasks.append(process.start("worker:0", run, args, str(tmp_path / "worker0.log"), **options))
        return tasks[-1]

    yield start_one
    for task in tasks:
        task.kill()


def sleep_for_ever():
    print("asleep")
    while True:
        time.sleep(1)


def wait_for_line(task, line):
    deadline = time.monotonic() + 10
    while task.last_line() != line:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_its_status_and_its_output(start):
    def run():
        os.write(2, b"from C\n")
        print("from Python")
        return 7

    task = start(run)
    assert wait(task) == 7
    assert open(task.log_path).read() == "from C\nfrom Python\n"
    assert task.last_line() == "from Python"
    assert wait(start(lambda: 0)) == 0
    task = start(lambda: 138)
    assert (wait(task), task.ended_by) == (138, None), "not SIGUSR1, whose number it would be"


def test_a_log_is_appended_to_and_the_last_line_is_its_own(start):
    assert wait(start(lambda: print("one") or 0)) == 0
    task = start(lambda: 0)
    assert wait(task) == 0
    assert task.last_line() == ""
    assert open(task.log_path).read() == "one\n"


def test_each_line_of_a_log_is_new_once(start):
    assert wait(start(lambda: print("of an earlier run") or 0)) == 0
    task = start(lambda: 0)
    assert wait(task) == 0 and task.new_lines() == []
    for written, new in (
        ("one\ntw", ["one"]),
        ("", []),
        ("o\nthree\n", ["two", "three"]),
        ("\nfour\n", ["", "four"]),
    ):
        with open(task.log_path, "a") as file:
            file.write(written)
        assert task.new_lines() == new


def test_errors_are_in_the_log_and_never_reach_the_parents_code(start):
    def fail():
        raise PeerLostError("Lost ps:0.")

    task = start(fail)
    assert (wait(task), task.last_line()) == (138, "Lost ps:0.")
    task = start(lambda: 1 // 0)
    assert (wait(task), task.last_line()) == (1, "ZeroDivisionError: integer division or modulo by zero")
    assert task.has_traceback()
    task = start(lambda: sys.exit(0))
    assert wait(task) == 1
    task = start(lambda: print("no Traceback (most recent call last)") or 0)
    assert (wait(task), task.has_traceback()) == (0, False), (
        "that of an earlier run in the same log does not count"
    )


def test_an_error_before_the_tasks_own_code_is_in_the_log(start, monkeypatch):
    def fail(parent, linger_secs):
        raise OSError("no prctl here")

    monkeypatch.setattr(process, "tie_to_parent", fail)
    task = start(lambda: 0)
    assert (wait(task), task.last_line()) == (1, "OSError: no prctl here")
    assert open(task.log_path).read().startswith("Traceback")


def test_the_exit_handlers_of_the_parent_are_not_run_by_the_child(start):
    handler = functools.partial(print, "handler of the parent")
    atexit.register(handler)
    try:
        task = start(lambda: print("done") or 0)
        assert (wait(task), task.last_line()) == (0, "done")
    finally:
        atexit.unregister(handler)


def test_a_program_ends_with_its_handlers_and_output_but_not_its_threads():
    code = (
        "import atexit, threading, time; from ps_train import process; atexit.register(print, 'handler')\n"
        "threading.Thread(target=time.sleep, args=(60,)).start(); print('out', end=' '); process.end(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out handler\n", "")


def test_signals(start):
    task = start(sleep_for_ever)
    wait_for_line(task, "asleep")
    task.terminate()
    assert (wait(task), task.ended_by) == (143, signal.SIGTERM)
    task.send(signal.SIGTERM)  # nothing, as it has ended
    task = start(sleep_for_ever)
    task.kill()
    assert task.poll() == 137


def test_it_has_a_session_of_its_own_and_no_terminal_input(start):
    task = start(lambda: print(os.getsid(0) == os.getpgrp() == os.getpid(), repr(sys.stdin.read())) or 0)
    assert wait(task) == 0
    assert task.last_line() == "True ''"


def test_what_it_leaves_behind_is_ended(start):
    def run():
        pid = os.fork()
        if pid == 0:
            sleep_for_ever()
        print(pid)
        return 0

    task = start(run)
    assert wait(task) == 0
    pid = int(next(word for word in open(task.log_path).read().split() if word.isdigit()))
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_held_task_waits_for_its_release(start):
    task = start(lambda: 3, is_held=True)
    time.sleep(0.05)
    assert task.poll() is None
    task.release()
    assert wait(task) == 3
    task.release()


@pytest.mark.parametrize("linger_secs", [0.0, 0.1])
def test_it_ends_with_its_parent(tmp_path, linger_secs):
    log = str(tmp_path / "log")
    parent = os.fork()
    if parent == 0:
        task = process.start("ps:0", sleep_for_ever, (), log, linger_secs=linger_secs)
        wait_for_line(task, "asleep")
        (tmp_path / "pid").write_text(str(task.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_parent_that_is_dying_is_lost(monkeypatch):
    parent = os.fork()
    if parent == 0:
        os._exit(0)
    monkeypatch.setattr(process, "_tied_to", None)
    assert not process.has_lost_parent()
    monkeypatch.setattr(process, "_tied_to", os.getppid())
    assert not process.has_lost_parent()
    monkeypatch.setattr(os, "getppid", lambda: parent)
    monkeypatch.setattr(process, "_tied_to", parent)
    deadline = time.monotonic() + 5
    while not process.has_lost_parent():  # it becomes a zombie, as one whose other threads are being ended
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.waitpid(parent, 0)
    monkeypatch.setattr(process, "_tied_to", parent - 1)
    assert process.has_lost_parent()


def test_forked_tasks_draw_different_random_numbers(start):
    numpy = pytest.importorskip("numpy")
    import random

    def draw():
        print(numpy.random.rand(), random.random())
        return 0

    tasks = [start(draw) for _ in range(3)]
    assert [wait(task) for task in tasks] == [0, 0, 0]
    lines = open(tasks[0].log_path).read().split()
    assert len(set(lines)) == 6


def test_spawned(start, monkeypatch):
    monkeypatch.setenv(process.START_VARIABLE, "spawn")
    assert not process.can_fork()
    task = start(None, ["--version"], is_held=True)
    assert task.poll() is None and task.pid is None
    task.kill()
    task.terminate()
    task.release()
    assert wait(task) == 0
    assert task.last_line().startswith("ps_train ")
    task = start(None, ["--num_ps=0"])
    assert wait(task) == 1
    assert task.last_line() == "ps_train: --num_ps=0 is out of range. Expected a whole number from 1."


def test_the_inbox_gives_signals_and_wakes_up_for_children(start):
    with process.SignalInbox() as inbox:
        assert inbox.wait(0) == []
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert sorted(inbox.wait(1) + inbox.wait(0)) == [signal.SIGINT, signal.SIGTERM]
        task = start(lambda: 0)
        begin = time.monotonic()
        assert inbox.wait(10) == []
        assert time.monotonic() - begin < 5
        assert wait(task) == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
