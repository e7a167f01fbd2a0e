"""Jobs whose workers hold the variables: no ps has a process of its own."""

import json
import signal
import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of
from test_watching import run_status

sys.path.insert(0, str(MODELS))
from steps import trajectory

pytestmark = pytest.mark.cluster


@pytest.fixture
def make_colocated(make_job):
    """As make_job, without ps; the variables, small as they are, are shared evenly."""

    def make(num_workers, *flags, **kwargs):
        flags = ["--colocate_ps", "--first_ps_bytes=0", *flags]
        return make_job(num_ps=0, num_workers=num_workers, flags=flags, **kwargs)

    return make


@pytest.mark.parametrize("first_ps_bytes", ["auto", "0"])
@pytest.mark.parametrize(
    "order", [("worker:0", "worker:1", "worker:2"), ("worker:2", "worker:1", "worker:0")]
)
def test_sync_is_lock_step(make_colocated, order, first_ps_bytes):
    job = make_colocated(3, "--train_steps=20", "--update=sync", f"--first_ps_bytes={first_ps_bytes}")
    job.start_all(order)
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for value, expected in zip((values["w"], values["b"]), trajectory(3, 20), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_a_worker_keeps_serving_when_its_data_is_used_up(make_colocated):
    job = make_colocated(2, "--train_steps=300", params="batches=5000:20,slow=0:10")
    chief, other = job.start_all()
    job.expect_exits(0)
    assert (chief.report["global_step"], other.report["local_steps"]) == (300, 20)
    assert "data used up" in other.report["reason"]


def test_its_own_part_of_the_variables_does_not_travel(make_colocated):
    job = make_colocated(2, "--train_steps=400", "--profile_steps=5", params="slow=all:15")
    job.start_all()
    job.expect_exits(0)
    for index, task in enumerate(job.tasks):
        profile = task.report["profile"]
        assert list(profile["ps"]) == [f"ps:{1 - index}"]


def test_the_wait_for_a_slow_worker_is_no_input(make_colocated):
    """The first worker takes its token from a queue of its own process."""
    job = make_colocated(2, "--train_steps=100", "--update=sync", "--profile_steps=5", params="slow=1:60")
    job.start_all()
    job.expect_exits(0)
    parts = job.tasks[0].report["profile"]["parts"]
    assert (
        parts["wait"] > 0.03 and parts["wait"] > 2 * parts["input"]
    )  # on a busy machine input takes its time, too


@pytest.mark.parametrize("victim", ["worker:0", "worker:1"])
def test_a_worker_that_was_killed_comes_back(make_colocated, victim):
    flags = ["--train_steps=400", "--save_checkpoint_steps=50", "--log_every_secs=0.2"]
    job = make_colocated(2, *flags, params="slow=all:10")
    tasks = dict(zip(job.names, job.start_all(), strict=True))
    tasks["worker:0"].wait_for_line(r"step [1-9]\d{2}")
    tasks[victim].kill()
    tasks[victim] = job.start(victim)
    job.expect_exits(0, tasks.values())
    assert tasks["worker:0"].report["global_step"] == checkpoint_of(job.train_dir)["global_step"] >= 400
    assert "model.ckpt-" in tasks["worker:0"].report["restored_from"]


@pytest.mark.parametrize("victim", ["worker:0", "worker:1"])
def test_a_small_model_is_the_first_worker_s_alone(make_job, victim):
    """And is lost only with that one; the other comes back to it."""
    flags = [
        "--colocate_ps",
        "--update=sync",
        "--train_steps=300",
        "--save_checkpoint_steps=50",
        "--log_every_secs=0.2",
    ]
    job = make_job(num_ps=0, num_workers=2, flags=flags, params="slow=all:10")
    tasks = dict(zip(job.names, job.start_all(), strict=True))
    tasks["worker:0"].wait_for_line("ps:1 0 B in 0 variables")
    tasks["worker:0"].wait_for_line(r"step [1-9]\d{2}")
    tasks[victim].kill()
    tasks[victim] = job.start(victim)
    job.expect_exits(0, tasks.values())
    assert checkpoint_of(job.train_dir)["global_step"] == 300
    restored_from = tasks["worker:0"].report["restored_from"]
    assert restored_from is None if victim == "worker:1" else "model.ckpt-" in restored_from


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_small_model_is_saved_when_a_worker_stays_away(make_job, update):
    flags = ["--colocate_ps", f"--update={update}", "--save_checkpoint_secs=600"]
    job = make_job(num_ps=0, num_workers=2, flags=flags, params="slow=all:10", timeout_secs=4)
    chief, other = job.start_all()
    chief.wait_for_line(r"step \d+")
    other.kill()
    job.expect_exits(138, [chief], secs=30)
    assert "ps:1" in chief.report["reason"]
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"] > 0


def test_a_worker_that_stays_away_ends_the_job(make_colocated):
    job = make_colocated(2, params="slow=all:10", timeout_secs=4)
    chief, other = job.start_all()
    chief.wait_for_line(r"step \d+")
    other.kill()
    job.expect_exits(138, [chief], secs=30)
    assert "ps:1" in chief.report["reason"]


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_signal_to_all_saves_the_last_step(make_colocated, update):
    job = make_colocated(3, f"--update={update}", params="slow=all:10")
    tasks = job.start_all()
    tasks[0].wait_for_line(r"step [1-9]\d")
    for task in reversed(tasks):
        task.send(signal.SIGTERM)
    job.expect_exits(143, secs=20)
    last = max(task.report["global_step"] for task in tasks)
    assert checkpoint_of(job.train_dir)["global_step"] == last


def test_a_mistake_of_one_worker_ends_all_and_the_chief_saves(make_colocated):
    job = make_colocated(2, "--on_nan=stop", params="nan=1:30,slow=all:10")
    job.start_all()
    job.expect_exits(1, secs=40)
    assert "worker:1" in job.tasks[0].report["reason"]


def test_status_of_it(make_colocated):
    job = make_colocated(2, params="slow=all:10")
    tasks = job.start_all()
    tasks[0].wait_for_line(r"step \d+")
    code, out, err, _ = run_status("--json", "--colocate_ps", "--worker_hosts=" + ",".join(job.worker_hosts))
    assert code == 0, err
    status = json.loads(out)
    found = {task["task"]: task["state"] for task in status["tasks"]}
    assert found == {"ps:0": "serving", "ps:1": "serving", "worker:0": "training", "worker:1": "training"}
    assert {(row["name"], row["ps"], row["total_bytes"]) for row in status["placement"]} == {
        ("global_step", "ps:0", 8),
        ("w", "ps:1", 16),
        ("b", "ps:0", 8),
    }
    pulled = {  # two global steps among it; and what a worker has itself does not travel
        worker: [(line["peer"], line["pulled_bytes"]) for line in lines]
        for worker, lines in status["transport"].items()
    }
    assert pulled == {"worker:0": [("ps:1", 16)], "worker:1": [("ps:0", 24)]}
    for task in tasks:
        task.send(signal.SIGINT)
    job.expect_exits(130, secs=20)


def test_one_without_the_flag_is_refused(make_colocated):
    job = make_colocated(2, params="slow=all:10")
    chief = job.start("worker:0")
    chief.wait_for_line("listening")
    stray = job.start(
        "worker:1",
        "--nocolocate_ps",
        "--first_ps_bytes=auto",
        ps_hosts=job.worker_hosts[0],
        worker_hosts="127.0.0.1:1," + job.worker_hosts[1],
    )
    stray.wait(60)
    assert stray.status == 1
    assert "The workers hold the variables (--colocate_ps or --update=allreduce)" in stray.log


def test_the_chief_of_a_job_that_is_over_waits_for_nobody(make_colocated):
    job = make_colocated(2, "--train_steps=20")
    job.start_all()
    job.expect_exits(0)
    again = job.start("worker:0")
    job.expect_exits(0, [again], secs=40)
    assert again.report["local_steps"] == 0


def test_large_variables_are_split_over_the_workers(make_job):
    flags = ["--colocate_ps", "--partition=auto", "--train_steps=8", "--update=sync"]
    job = make_job(num_ps=0, num_workers=2, flags=flags, model="large.py")
    chief, _ = job.start_all()
    job.expect_exits(0)
    assert "split: emb/table [300000, 8], 9.6 MB: rows 0-149999 on ps:" in chief.log
    assert checkpoint_of(job.train_dir)["emb/table"].shape == (300_000, 8)


def test_a_worker_without_variables_comes_back_to_a_living_model(make_colocated):
    job = make_colocated(
        4, "--train_steps=300", "--update=sync", "--log_every_secs=0.2", params="slow=all:10"
    )
    tasks = job.start_all()
    tasks[0].wait_for_line(r"step [1-9]\d")
    tasks[3].kill()
    again = job.start("worker:3")
    job.expect_exits(0, [*tasks[:3], again])
    assert "ps:3 came back, and held nothing of the model" in tasks[0].log
    values = checkpoint_of(job.train_dir)
    assert values["global_step"] == 300 and "restored" not in tasks[0].log, "no step was lost"
