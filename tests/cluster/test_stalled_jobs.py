"""Tasks that complete no step say what they wait for, once, and how long it was."""

import re
import signal

import pytest
from harness import MODELS, START_SECS
from test_scripts import Script

pytestmark = pytest.mark.cluster
FLAGS = ["--train_steps=1000000", "--log_every_secs=0.2", "--stall_secs=3"]
OVER = r"the wait is over after (\d+) s, at global step (\d+)"


def conclusion(task, secs=START_SECS):
    """What the task says last of its wait."""
    return task.wait_for_line(r"  so: (.*)\n", secs)[1]


def expect_one_wait(task, min_secs):
    """It goes on, and has told of one wait in all."""
    over = task.wait_for_line(OVER, 30)
    assert int(over[1]) >= min_secs
    task.wait_for_line(rf"step (?!{over[2]}\b)\d+/[^\n]*\n\Z", 30)
    assert len(re.findall("no step for ", task.log)) == len(re.findall(OVER, task.log)) == 1, task.tail(60)
    assert "error" not in task.log and "Traceback" not in task.log


def test_sync_a_worker_is_stopped(make_job):
    """All others name it; the ledger, the accumulators and the boards are read while they are blocked."""
    job = make_job(2, 3, flags=[*FLAGS, "--update=sync"])
    *_, chief, other, stopped = job.start_all()
    stopped.wait_for_line(r"step \d\d+/")
    stopped.send(signal.SIGSTOP)
    try:
        for task in (chief, other):
            assert re.fullmatch(
                r"waiting for worker:2, which has not given its gradient for step \d+ and was last heard of \d s ago",
                conclusion(task),
            )
            log = task.log
            # It gave nothing, or was stopped halfway through its push.
            found = re.search(
                r"  round for step \d+: 2 of 3 gradients; given by worker:0, worker:1; (owed by|on the way from) worker:2\n",
                log,
            )
            assert found, task.tail()
            counts = "2" if found[1] == "owed by" else "(?:2|3|2 to 3)"
            assert re.search(rf"  accumulators: {counts} gradients in each of 2\n", log), task.tail()
            assert "  tokens here: 0\n" in log
            assert "  ps:0 answers; ps:1 answers\n" in log and "    session.run\n" in log
        assert "  the chief's update loop runs\n" in chief.log
    finally:
        stopped.send(signal.SIGCONT)
    for task in (chief, other):
        expect_one_wait(task, 3)
    assert "no step for" not in stopped.log, "it stood still itself"


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_worker_s_input_is_stuck(make_job, update):
    """It knows that it is its own; in sync the others know that it is that worker's."""
    job = make_job(1, 2, flags=[*FLAGS, f"--update={update}"], params="slow=all:10,stuck=1:30:9")
    _, chief, stuck = job.start_all()
    line = re.search(r"(?s)^.*time\.sleep\(stuck_secs\)", (MODELS / "line.py").read_text())[0].count("\n") + 1
    place = rf"make in \S*models/line\.py:{line}"
    assert re.fullmatch(f"this worker's own input gives no data: {place} has not returned", conclusion(stuck))
    if update == "sync":
        assert conclusion(chief).startswith(
            "waiting for worker:1, which has not given its gradient for step "
        )
        expect_one_wait(chief, 3)
    expect_one_wait(stuck, 8)
    if update == "async":
        assert "no step for" not in chief.log


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_ps_is_stopped(make_job, update):
    job = make_job(2, 2, flags=[*FLAGS, f"--update={update}"])
    _, frozen, *workers = job.start_all()
    for worker in workers:
        worker.wait_for_line(r"step \d\d+/")
    frozen.send(signal.SIGSTOP)
    try:
        for worker in workers:
            assert conclusion(worker) == (
                f"ps:1 at {job.ps_hosts[1]} does not answer: no answer in 2 s (host down, port filtered, process stopped, or "
                "not a TensorFlow server)"
            )
            if update == "sync":
                assert re.search(r"  round for step \d+: ", worker.log), (
                    "ps:0, with the ledger, is read all the same"
                )
    finally:
        frozen.send(signal.SIGCONT)
    for worker in workers:
        expect_one_wait(worker, 3)


def test_a_script_is_held_up_by_code_of_its_own(tmp_path):
    script = Script(tmp_path, "async", script=MODELS / "pausing_script.py")
    try:
        script.expect(ps0=0, worker0=0, worker1=0)
        log = script.log("worker:0")
        assert re.search(
            r"  so: this task is not in session\.run but in code of its own: fetch_points in \S*pausing_script\.py:\d+\n",
            log,
        )
        assert re.search(OVER, log) and "no step for" not in script.log("worker:1")
    finally:
        for task in script.tasks.values():
            task.kill()
            task.wait(10)
