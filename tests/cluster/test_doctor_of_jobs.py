"""`python -m ps_train doctor` beside a job of real processes, and with hosts that are not there."""

import json
import os
import subprocess
import sys
import time

import pytest
from harness import free_ports

pytestmark = pytest.mark.cluster
BOUND_SECS = 15
START_SECS = 5  # of the interpreter, on a busy machine


def run_doctor(*args):
    """(exit status, (topic, level, text) of each finding, seconds)."""
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "ps_train", "doctor", "--json", *args], capture_output=True, text=True, timeout=60,
        env={key: value for key, value in os.environ.items() if key != "TF_CONFIG"},
    )  # fmt: skip
    assert run.stderr == ""
    found = [(one["topic"], one["level"], one["what"]) for one in json.loads(run.stdout)["findings"]]
    return run.returncode, found, time.monotonic() - started


def problems(found):
    return [(topic, what) for topic, level, what in found if level == "PROBLEM"]


def test_a_job_that_trains(make_job):
    job = make_job(1, 2, flags=["--train_steps=1000000", "--log_every_secs=0.2"], params="slow=all:20")
    *_, chief, other = job.start_all()
    for task in (chief, other):
        task.wait_for_line(r"step \d\d+/")
    ps_hosts, worker_hosts = ("--ps_hosts=" + ",".join(job.ps_hosts)), ",".join(job.worker_hosts)
    code, found, _ = run_doctor(ps_hosts, f"--worker_hosts={worker_hosts}")
    assert (code, problems(found)) == (0, [])
    told = {(topic, what) for topic, level, what in found if level == "OK"}
    assert ("peer", f"{job.ps_hosts[0]} (ps:0) is a ps of this cluster.") in told
    assert ("peer", f"something listens at {job.worker_hosts[1]} (worker:1).") in told
    assert ("clock", "ps:0, worker:0, worker:1 have this host's time, to 2 s.") in told

    place = ("--job_name=worker", "--task_index=1")
    code, found, _ = run_doctor(ps_hosts, f"--worker_hosts={worker_hosts}", *place)
    ((topic, what),) = problems(found)
    assert (code, topic) == (1, "own port") and what.startswith(f"{job.worker_hosts[1]} (worker:1) is in use")

    code, found, _ = run_doctor(ps_hosts, f"--worker_hosts={worker_hosts},w:1", *place[:1], "--task_index=0")
    assert any("is a ps of another cluster: Job 'worker' differs" in what for _, what in problems(found))


def test_hosts_that_are_not_there(tmp_path):
    (port,) = free_ports(1)
    hosts = ",".join(f"192.0.2.{number}:{port}" for number in range(1, 40))  # a network for documentation
    code, found, secs = run_doctor(
        f"--ps_hosts=localhost:{port}", f"--worker_hosts={hosts}", "--job_name=ps", f"--train_dir={tmp_path}"
    )
    assert secs < BOUND_SECS + START_SECS
    peers = [(level, what) for topic, level, what in found if topic == "peer"]
    assert len(peers) == 39
    tensorflow = [what for topic, _, what in found if topic == "tensorflow"]
    assert len(tensorflow) == 1 and ("own port", "OK", f"{port} is free for ps:0.") in found
    assert code == (1 if problems(found) else 0)
