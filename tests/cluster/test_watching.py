"""`python -m ps_train status` on jobs of real processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from harness import START_SECS, checkpoint_of, free_ports

from ps_train.board import Board
from ps_train.cluster import TaskId

pytestmark = pytest.mark.cluster
FLAGS = ["--train_steps=1000000", "--log_every_secs=0.2", "--stall_secs=4"]
NO_ANSWER = r"(no answer in 2 s \(.*\)|connection timed out)"


def run_status(*args, env=None):
    """(exit status, stdout, stderr, seconds)."""
    started = time.monotonic()
    base = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    run = subprocess.run(
        [sys.executable, "-m", "ps_train", "status", *args],
        capture_output=True, text=True, timeout=60, env={**base, **(env or {})},
    )  # fmt: skip
    assert "Traceback" not in run.stderr, run.stderr
    return run.returncode, run.stdout, run.stderr, time.monotonic() - started


def status_of(job, *args):
    """(tasks by name, all of it), from the JSON of a job in which a ps answers."""
    code, out, err, _ = run_status("--json", "--ps_hosts=" + ",".join(job.ps_hosts), *args)
    assert (code, err) == (0, "")
    found = json.loads(out)
    return {task["task"]: task for task in found["tasks"]}, found


def keys_on(job):
    board = Board(job.ps_hosts[0], TaskId("ps", 0))
    try:
        return set(board.exchange([], 10))
    finally:
        board.close()


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_job_that_trains(make_job, update):
    """Whoever looks leaves nothing behind on the boards."""
    job = make_job(2, 2, flags=[*FLAGS, f"--update={update}"], params="slow=all:20")
    *_, chief, other = job.start_all()
    for task in (chief, other):
        task.wait_for_line(r"step \d\d+/")
    before = keys_on(job)
    tasks, found = status_of(job)
    assert list(tasks) == job.names and keys_on(job) == before
    assert [tasks[name]["state"] for name in job.names] == ["serving", "serving", "training", "training"]
    assert not any(task["is_silent"] or task["remarks"] for task in tasks.values()), tasks
    assert tasks["worker:1"]["address"] == job.worker_hosts[1] and tasks["worker:1"]["pid"] == other.pid
    assert (found["train_steps"], found["update"], found["job_end"]) == (1000000, update, None)
    assert found["rate"] > 0 and found["step"] >= tasks["worker:0"]["local_steps"] > 0
    if update == "sync":
        assert found["quorum"] == 2 and found["rounds"][0]["num_done"] > 0
    else:
        assert 0.3 < tasks["worker:0"]["staleness"] < 3 and found["rounds"] == []
    code, out, err, _ = run_status(
        env={"TF_CONFIG": json.dumps({"cluster": {"ps": job.ps_hosts, "worker": ["w:1"]}})}
    )
    assert code == 0 and err == "" and re.search(r"\nmodel: step \d+/1000000, [\d.]+ steps/s, a?sync", out)
    assert out.rstrip().endswith(
        f"Job 'worker' differs: w:1 given here, {','.join(job.worker_hosts)} in the job."
    )


def test_sync_a_worker_is_stopped(make_job):
    """It is silent and owes; the other says itself what it waits for."""
    job = make_job(1, 3, flags=[*FLAGS, "--update=sync"])
    *_, chief, other, stopped = job.start_all()
    stopped.wait_for_line(r"step \d\d+/")
    stopped.send(signal.SIGSTOP)
    try:
        other.wait_for_line("  so: ")
        tasks, found = status_of(job)
        assert tasks["worker:2"]["is_silent"] and tasks["worker:2"]["silent_secs"] > 2
        step = found["step"] + 1
        assert tasks["worker:2"]["remarks"][1] == f"owes its gradient for step {step}"
        assert tasks["worker:1"]["remarks"] == [
            f"waiting for worker:2, which has not given its gradient for step {step} and is silent"
        ]
        assert found["rounds"][0]["owing"] == ["worker:2"] and found["rounds"][0]["num_done"] == 0
        assert found["rate"] == 0
    finally:
        stopped.send(signal.SIGCONT)
    other.wait_for_line("the wait is over")
    tasks, _ = status_of(job)
    assert not any(task["remarks"] for task in tasks.values())


def test_a_ps_is_stopped_and_then_dead(make_job):
    """The other one answers, whatever this one does, and no later for it than its call's deadline."""
    job = make_job(2, 1, flags=FLAGS)
    living, gone, chief = job.start_all()
    chief.wait_for_line(r"step \d\d+/")
    for number, reason in ((signal.SIGSTOP, NO_ANSWER), (signal.SIGKILL, r"connection refused .*")):
        gone.send(number)
        tasks, found = status_of(job)
        assert tasks["ps:1"]["state"] == "no answer" and re.fullmatch(reason, tasks["ps:1"]["remarks"][0])
        assert tasks["ps:0"]["state"] == "serving" and tasks["worker:0"]["state"] == "training"
        assert found["step"] > 0


def test_the_tables_are_those_of_traced_steps(make_job):
    """Watched to its end, from a terminal and from a page; a worker's own traces say what went over the line."""
    flags = ["--train_steps=3000", "--profile_steps=12", "--log_every_secs=0.2"]
    job = make_job(2, 2, flags=flags, model="ps_train.builtin_model")
    ps = job.start_all(["ps:0", "ps:1"])
    chief, other = job.start("worker:0"), job.start("worker:1", "--status_port=0")
    url = other.wait_for_line(r"status page: (http://127\.0\.0\.1:\d+/)")[1]
    hosts = "--ps_hosts=" + ",".join(job.ps_hosts)
    watching = subprocess.Popen(
        [sys.executable, "-m", "ps_train", "status", hosts, "--watch=0.5", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        page, deadline = {}, time.monotonic() + START_SECS
        while len(page.get("transport", ())) < 2:
            assert time.monotonic() < deadline, page
            with urllib.request.urlopen(f"{url}status.json", timeout=60) as answer:
                page = json.load(answer)
            time.sleep(0.2)
        job.expect_exits(0)
        out, err = watching.communicate(timeout=60)
    finally:
        watching.kill()
        watching.wait(10)
    looks = [json.loads(line) for line in out.splitlines()]
    steps = [look["step"] for look in looks if look["step"] is not None]
    assert len(set(steps)) > 2 and steps == sorted(steps)
    seen = [look for look in looks if look["transport"].keys() == {"worker:0", "worker:1"}][-1]
    assert (page["placement"], page["transport"]) == (seen["placement"], seen["transport"])
    is_over = looks[-1]["job_end"] is not None  # it is for a moment only
    assert (watching.returncode, "The job is gone" in err) == ((0, False) if is_over else (138, True)), err
    for worker in (chief, other):
        traced = {name: figures["traffic"] for name, figures in worker.report["profile"]["ps"].items()}
        assert list(traced) == [line["peer"] for line in seen["transport"][worker.name]]
        for line in seen["transport"][worker.name]:
            for figure in ("pull_messages", "pulled_bytes", "push_messages", "pushed_bytes"):
                assert line[figure] == traced[line["peer"]][figure], (worker.name, line, traced)
    saved = checkpoint_of(job.train_dir)
    assert {row["name"] for row in seen["placement"]} <= set(saved)
    assert sum(row["total_bytes"] for row in seen["placement"]) == sum(
        value.nbytes for value in saved.values()
    )
    assert {row["ps"] for row in seen["placement"]} == {task.name for task in ps}


def test_a_watch_is_ended_by_ctrl_c(make_job):
    """The job goes on; what was seen last counts."""
    job = make_job(1, 1, flags=FLAGS)
    ps, chief = job.start_all()
    chief.wait_for_line(r"step \d\d+/")
    watching = subprocess.Popen(
        [sys.executable, "-m", "ps_train", "status", f"--ps_hosts={job.ps_hosts[0]}", "--watch"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = ""
        while not line.startswith("model: step "):
            line = watching.stdout.readline()
            assert line, watching.stderr.read()
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=30)
    finally:
        watching.kill()
        watching.wait(10)
    assert (watching.returncode, err) == (0, "")
    assert ps.status is None and chief.status is None


def test_no_ps_answers_and_one_is_not_gone():
    with socket.create_server(("localhost", 0)) as silent:
        (port,) = free_ports(1)
        code, out, err, _ = run_status(f"--ps_hosts=localhost:{silent.getsockname()[1]},localhost:{port}")
    assert code == 138
    assert err.startswith(
        "ps_train: No ps answers, and not all of them are gone: the job waits for ps:0, which is stopped,"
    ), err


def test_no_ps_answers():
    ports = free_ports(2)
    hosts = f"--ps_hosts=localhost:{ports[0]},localhost:{ports[1]}"
    code, out, err, secs = run_status(hosts)
    assert code == 138 and secs < START_SECS
    assert err == "ps_train: No ps answers. The job has ended, or was not started yet; or check --ps_hosts.\n"
    assert out == (
        f"task  state      host\nps:0  no answer  localhost:{ports[0]}\nps:1  no answer  localhost:{ports[1]}\n"
        "ps:0: connection refused (nothing listens there)\nps:1: connection refused (nothing listens there)\n"
    )
    code, out, *_ = run_status(hosts, "--json")
    assert code == 138 and json.loads(out)["is_answered"] is False


def test_wrong_flags():
    code, out, err, _ = run_status("--ps_hosts=localhost", "--json")
    assert (code, out) == (1, "")
    assert err == (
        "ps_train: Address 'localhost' of ps:0 has no port. Expected host:port, such as host:2222. Check --ps_hosts.\n"
    )
