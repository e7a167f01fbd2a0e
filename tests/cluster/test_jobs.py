"""Whole jobs from start to end: any start order, exact synchronous updates, uneven data, ends that need no help."""

import os
import signal

import numpy as np
import pytest
from harness import checkpoint_of
from models import steps

pytestmark = pytest.mark.cluster
IS_FRESH = True


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("first", ["ps", "worker"])
def test_any_start_order_and_every_task_ends_by_itself(make_job, update, first):
    job = make_job(2, 2, flags=[f"--update={update}", "--train_steps=30"])
    if first == "ps":
        ps = job.start_all(["ps:1", "ps:0"])
        for task in ps:
            task.wait_for_line("listening at")
        workers = job.start_all(["worker:0", "worker:1"])
    else:
        workers = job.start_all(["worker:1", "worker:0"])
        for task in workers:
            line = task.wait_for_line(r"waiting for (.*): \d+ s so far, giving up after \d+ s")[1]
            assert f"ps:0 at {job.ps_hosts[0]} (connection refused (nothing listens there))" in line
            assert f"ps:1 at {job.ps_hosts[1]}" in line
        ps = job.start_all(["ps:0", "ps:1"])
    job.expect_exits(0, workers)
    job.expect_exits(0, ps, secs=10)
    over = 0 if update == "sync" else 1
    step = int(checkpoint_of(job.train_dir)["global_step"])
    assert 30 <= step <= 30 + over
    for task in job.tasks:
        report = task.report
        assert (report["outcome"], report["exit_status"]) == ("done", 0), report
    chiefs = [task.name for task in workers if task.report["is_chief"]]
    assert chiefs == ["worker:0"]
    local_steps = sum(task.report["local_steps"] for task in workers)
    if update == "sync":
        assert local_steps == 2 * 30
    else:  # a worker that was at its first step when the others had ended is not in the last checkpoint
        assert step <= local_steps == max(task.report["global_step"] for task in workers) <= 31


def test_sync_is_in_lock_step_with_a_slow_worker(make_job):
    job = make_job(1, 2, flags=["--update=sync", "--train_steps=40"], params="slow=1:30")
    job.start_all()
    job.expect_exits(0)
    found = checkpoint_of(job.train_dir)
    w, b = steps.trajectory(shards=2, steps=40)
    assert found["global_step"] == 40
    np.testing.assert_allclose(found["w"], w, rtol=1e-5)
    np.testing.assert_allclose(found["b"], b, rtol=1e-5)


@pytest.mark.parametrize("batches", ["5:20:10", "20:5:10"])
def test_sync_with_uneven_data(make_job, batches):
    """Whose data ends leaves the rounds; the others go on, the chief's update serving them."""
    job = make_job(1, 3, flags=["--update=sync"], params=f"batches={batches}")
    job.start_all()
    job.expect_exits(0)
    assert checkpoint_of(job.train_dir)["global_step"] == 20
    expected = [int(count) for count in batches.split(":")]
    assert [task.report["local_steps"] for task in job.tasks[1:]] == expected
    assert "data used up" in job.tasks[1].report["reason"]


def test_async_when_the_chiefs_data_ends_first(make_job):
    """Nobody is cut off, and the last checkpoint holds the last step of the last worker."""
    job = make_job(1, 3, params="batches=3:40:30,slow=1:100")
    job.start_all()
    job.expect_exits(0)
    assert [task.report["local_steps"] for task in job.tasks[1:]] == [3, 40, 30]
    assert checkpoint_of(job.train_dir)["global_step"] == 73
    assert job.tasks[1].report["checkpoint"].endswith("model.ckpt-73")
    job.tasks[1].wait_for_line(r"waiting for .*worker:1 \(training at step \d+\).* to finish", 1)


def test_each_example_is_used_once(make_job):
    job = make_job(1, 3, model="ids.py", flags=["--batch_size=4"], params="count=50")
    job.start_all()
    job.expect_exits(0)
    np.testing.assert_array_equal(checkpoint_of(job.train_dir)["seen"], np.ones(50))
    assert sum(task.report["examples"] for task in job.tasks[1:]) == 50


def tf_config_roles(form, job):
    """(cluster of TF_CONFIG, tasks in it): each form has one ps and one to three training tasks."""
    ps, (a, b) = job.ps_hosts, job.worker_hosts
    return {
        "chief": ({"ps": ps, "chief": [a], "worker": [b]}, [("chief", 0), ("worker", 0)]),
        "master": ({"ps": ps, "master": [a], "worker": [b]}, [("master", "0"), ("worker", "0")]),
        "no chief": ({"ps": ps, "worker": {"0": a, "1": b}}, [("worker", 0), ("worker", 1)]),
        "chief alone": ({"ps": ps, "chief": [a], "evaluator": [b]}, [("chief", 0)]),
    }[form]


@pytest.mark.parametrize("form", ["chief", "master", "no chief", "chief alone"])
def test_tf_config(make_job, form):
    job = make_job(1, 2, flags=["--train_steps=20", "--update=sync"])
    cluster, roles = tf_config_roles(form, job)
    for kind, index in [("ps", 0), *roles]:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
        job.start(f"{kind.replace('master', 'chief')}:{index}", tf_config=config)
    job.expect_exits(0)
    chiefs = [task.name for task in job.tasks if task.report["is_chief"]]
    assert chiefs == ["worker:0" if form == "no chief" else "chief:0"]
    found = checkpoint_of(job.train_dir)
    np.testing.assert_allclose(found["w"], steps.trajectory(len(roles), 20)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "params", "told"),
    [
        (["--train_steps=30"], "", "has reached the target of 30 steps: nothing to do"),
        ([], "batches=20", "the job ended while this task was starting"),
    ],
    ids=["target", "data used up"],
)
def test_a_worker_that_is_ready_only_when_the_job_is_over(make_job, flags, params, told):
    """It stood still while it was imported, say: there is no ps any more, but a checkpoint that says why."""
    job = make_job(1, 2, flags=flags, params=params, timeout_secs=8)
    late = job.start("worker:1")
    late.wait_for_line("waiting for ps:0")
    late.send(signal.SIGSTOP)
    job.start_all(["ps:0", "worker:0"])
    job.expect_exits(0, job.tasks[1:])
    late.send(signal.SIGCONT)
    job.expect_exits(0, [late], secs=20)
    assert told in late.report["reason"]


def test_worker_that_never_comes_and_one_that_comes_after_the_end(make_job):
    """It holds nobody up, and ends with 0 when it is started at last; nothing is rewritten, by none started again."""
    job = make_job(1, 2, flags=["--train_steps=20"])
    job.start_all(["ps:0", "worker:0"])
    job.expect_exits(0)
    before = listing(job.train_dir)
    again = job.start_all(["worker:1", "worker:0", "ps:0"])
    job.expect_exits(0, again)
    assert listing(job.train_dir) == before
    for task in again:
        assert "has reached the target of 20 steps: nothing to do" in task.report["reason"], task.report
        assert task.report["global_step"] == 20


def listing(train_dir):
    """Name -> (time of change, size) of each file of checkpoints."""
    return {
        entry.name: (entry.stat().st_mtime_ns, entry.stat().st_size)
        for entry in os.scandir(train_dir)
        if not entry.name.startswith("events")
    }
