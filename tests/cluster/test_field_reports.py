"""What users of this kind of system have run into, and no other test has: hooks with a will of their own, tables, names."""

import os
import re

import pytest
from harness import checkpoint_of

pytestmark = pytest.mark.cluster
ENDLESS = ["--train_steps=1000000", "--log_every_secs=0.2"]


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_hook_of_the_chief_s_ends_the_job(make_job, update):
    """In sync at the very step: no update is made of the others' gradients alone."""
    job = make_job(1, 3, "zoo.py", [*ENDLESS, f"--update={update}"], "trouble=stop:0:15")
    tasks = job.start_all()
    job.expect_exits(0)
    step = int(checkpoint_of(job.train_dir)["global_step"])
    assert step == 15 if update == "sync" else step >= 15
    chief, other = tasks[1:3]
    assert chief.report["reason"] == f"global step {step}: a hook asked to stop"
    assert other.report["reason"].endswith(": a hook of the chief's, worker:0, asked to stop")


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_hook_of_another_worker_ends_that_one(make_job, update):
    steps = 100 if update == "sync" else 600  # in async the others may be far before it has started
    flags = [f"--train_steps={steps}", "--log_every_secs=0.2", f"--update={update}"]
    job = make_job(1, 3, "zoo.py", flags, "trouble=stop:2:15")
    other = job.start_all()[3]
    job.expect_exits(0)
    assert other.report["local_steps"] == 15
    assert other.report["reason"].endswith(": a hook asked to stop")
    assert checkpoint_of(job.train_dir)["global_step"] >= steps


def test_a_hook_that_makes_ops_ends_the_job_with_its_line(make_job):
    job = make_job(1, 2, "zoo.py", ENDLESS, "trouble=assign:1:5")
    job.start_all()
    job.expect_exits(1)
    for task in job.tasks:
        assert "after_run in tests/cluster/models/zoo.py:" in task.log or "/models/zoo.py:" in task.log, (
            task.tail()
        )
        assert "Graph is finalized" in task.report["reason"], task.tail()


def test_tables_and_iterators_are_there_again_after_a_ps_was_lost(make_job):
    """And two mutable tables that have no name are two in the checkpoint."""
    job = make_job(2, 1, "zoo.py", [*ENDLESS, "--save_checkpoint_steps=20"])
    ps, second, worker = job.start_all()
    worker.wait_for_line(r"step ([4-9]\d|\d{3,})/")
    second.kill()
    job.start("ps:1")
    worker.wait_for_line("restored")
    mark = len(worker.log)
    while not worker.log[mark:].count(" step "):
        worker.wait_for_line("step")
    worker.send(2)
    assert worker.wait(15) == 130
    saved = checkpoint_of(job.train_dir)
    tables = sorted(name for name in saved if name.endswith("-keys"))
    assert len(tables) == 2, sorted(saved)
    for number, keys in enumerate(tables):
        values = saved[keys.removesuffix("-keys") + "-values"]
        assert dict(zip(saved[keys].tolist(), values.tolist(), strict=True)) == {
            word: 10 * word + number for word in range(3)
        }


def test_more_ps_than_variables(make_job):
    """One that holds nothing starts, is saved and ends like the others."""
    job = make_job(4, 1, flags=["--train_steps=30"])
    *_, chief = job.start_all()
    job.expect_exits(0)
    assert re.search(
        r"placement: ps:0 8 B in 1 variable, .* ps:3 0 B in 0 variables; the fullest has ", chief.log
    ), chief.tail()
    assert checkpoint_of(job.train_dir)["global_step"] == 30


def test_one_address_by_two_names(make_job):
    """localhost in one task's list, 127.0.0.1 in the others'."""
    job = make_job(1, 2, flags=["--train_steps=30"])
    other = job.ps_hosts[0].replace("127.0.0.1", "localhost")
    job.start("ps:0")
    job.start("worker:0")
    job.start("worker:1", ps_hosts=other)
    job.expect_exits(0)


def test_only_the_chief_writes_into_train_dir(make_job, tmp_path):
    """The same hooks and settings everywhere; a non-chief that saved would fail in a directory of nobody's."""
    job = make_job(1, 2, flags=["--train_steps=60", "--save_checkpoint_steps=20"])
    job.start("ps:0", train_dir=tmp_path / "of_the_ps")
    job.start("worker:0")
    job.start("worker:1", train_dir=tmp_path / "of_another")
    job.expect_exits(0)
    assert checkpoint_of(job.train_dir)["global_step"] >= 60
    assert not os.path.exists(tmp_path / "of_the_ps")
    assert not os.path.exists(tmp_path / "of_another") or not os.listdir(tmp_path / "of_another")


def test_logs_are_no_flood(make_job):
    """With the defaults, a long start included: less than a line a second and task, and no line of TensorFlow's."""
    job = make_job(1, 3, flags=["--train_steps=800", "--update=sync"], params="slow=all:10")
    job.start_all()
    job.expect_exits(0)
    for task in job.tasks:
        lines = task.log.splitlines()
        assert len(lines) <= 8, task.tail()
        assert all(task.name in line for line in lines), task.tail()
