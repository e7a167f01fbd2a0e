"""`python -m ps_train chaos` with real processes: verdicts that are right, and nothing that is left behind."""

import json
import os
import pathlib
import signal
import time

import pytest
from test_local_cluster import Launcher

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not pathlib.Path("/proc/self/environ").exists(), reason="finds the tasks in /proc"),
]
REHEARSAL_SECS = 240
MODEL = """\
import time
from ps_train.builtin_model import input_fn, model_fn as builtin_model_fn
from ps_train.compat import tf

def model_fn(features, labels, mode, params):
    def nap(images):
        time.sleep(0.03)
        return images
    return builtin_model_fn(tf.ensure_shape(tf.numpy_function(nap, [features], tf.float32), [None, 64]), labels, mode, params)
"""


@pytest.fixture
def rehearse(tmp_path):
    """Starts a rehearsal, whose tasks end with the test."""
    (tmp_path / "slow.py").write_text(MODEL)
    started = []

    def start(*args):
        args = ("chaos", "--model=slow.py", "--train_dir=t", "--report_file=r.json", *args)
        started.append(Launcher(tmp_path, *args).__enter__())
        return started[-1]

    yield start
    for launcher in started:
        launcher.__exit__()


def report(launcher):
    return json.loads((launcher.folder / "r.json").read_text())


def test_a_ps_is_killed_and_a_worker_stopped_in_sync(rehearse):
    run = rehearse(
        "--num_ps=2", "--num_workers=2", "--update=sync", "--train_steps=150", "--kill=ps:0@67", "--stop=worker:1@100:3s"
    )  # fmt: skip
    assert run.wait(REHEARSAL_SECS) == 0, run.tails()
    found = report(run)
    assert (found["outcome"], found["final_step"]) == ("PASS", 150)
    assert set(found["statuses"].values()) == {0}
    killed, stopped = found["faults"]
    # There is a checkpoint every 15 steps: one at 60 or 61, the next not before 75.
    assert killed["fault"] == "kill=ps:0@67:1s" and 67 <= killed["struck_at_step"] < 74
    assert 0 < killed["steps_lost"] <= 14
    assert stopped["recovery_secs"] >= 2.9 and stopped["steps_lost"] == 0
    assert "\nPASS: 2 faults; every task ended with 0; checkpoint at step 150.\n" in run.out
    assert run.pids() == []


def test_a_sync_job_ends_without_its_worker(rehearse):
    run = rehearse("--update=sync", "--train_steps=300", "--kill=worker:1@20:never", "--peer_timeout_secs=6")
    assert run.wait(REHEARSAL_SECS) == 0, run.tails()
    found = report(run)
    assert found["statuses"] == {"ps:0": 138, "worker:0": 138, "worker:1": 137}
    assert found["faults"][0]["note"] == "the job ended with 138"


def test_a_fault_that_cannot_be_survived_fails(rehearse):
    """The peer timeout is shorter than a start of a ps."""
    run = rehearse("--train_steps=300", "--kill=ps:0@20:3.9s", "--peer_timeout_secs=4")
    assert run.wait(REHEARSAL_SECS) == 1, run.tails()
    assert "FAIL: kill=ps:0@20:3.9s: no new step came after it\n" in run.out
    assert report(run)["outcome"] == "FAIL"


def test_its_end_is_that_of_all_tasks_the_stopped_one_too(rehearse):
    run = rehearse("--train_steps=2000", "--stop=worker:1@10:600s")
    run.wait_for(lambda: "SIGSTOP to worker:1" in run.err, "fault")
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait_for(lambda: not run.pids(), "end of all tasks", 60)


def test_a_signal_ends_it_in_order_and_a_second_one_at_once(rehearse):
    run = rehearse("--train_steps=2000", "--stop=ps:0@10:600s")
    run.wait_for(lambda: "SIGSTOP to ps:0" in run.err, "fault")
    os.kill(run.process.pid, signal.SIGINT)
    time.sleep(1)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.tails()
    assert run.err.endswith("ps_train: Stopped by SIGINT.\n")
    assert run.pids() == [] and not (run.folder / "r.json").exists()
