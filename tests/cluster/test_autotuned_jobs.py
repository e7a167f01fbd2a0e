"""Jobs that try transports while they train: their weights against NumPy's, who keeps what, and tasks lost meanwhile."""

import re
import signal
import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of

sys.path.insert(0, str(MODELS))
from steps import trajectory

pytestmark = pytest.mark.cluster
TABLE, TRYING = "steps of a trial", "trying some steps each of"


def assert_exact(job, num_workers, steps, batches=1):
    values, wanted = checkpoint_of(job.train_dir), trajectory(num_workers, steps, batches=batches)
    for value, expected in zip((values["w"], values["b"]), wanted, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def assert_told(task):
    """The table is there once, whole, and the report tells what it has kept."""
    assert task.log.count(TABLE) == 1 and "cut short" not in task.log
    assert len(re.findall(r"  packed.* steps/s .*|  plain .* steps/s .*", task.log)) >= 2
    assert len(re.findall(r"steps/s +[0-9.]+  [(][0-9.-]+[)]  kept", task.log)) == 1
    assert f"without a trial: {task.report['transport']}" in task.log


@pytest.mark.parametrize("batches", [1, 2])
def test_a_trial_of_exact_ways_changes_no_number(make_job, batches):
    steps = 700 // batches
    flags = [f"--train_steps={steps}", "--autotune", f"--accumulate_steps={batches}"]
    job = make_job(num_workers=1, num_ps=2, params="slow=all:5", flags=flags)
    *_, worker = job.start_all()
    job.expect_exits(0)
    assert_exact(job, 1, steps, batches)
    report = worker.report
    assert (report["local_steps"], report["global_step"]) == (steps, steps)
    assert report["examples"] == 4 * batches * steps
    assert report["restored_from"] is None
    assert "--wire_dtype=float32 --noprefetch" in report["transport"]
    assert_told(worker)


def test_each_worker_of_an_asynchronous_job_decides(make_job):
    steps = 3000
    flags = [f"--train_steps={steps}", "--autotune", "--wire_dtype=bfloat16"]
    job = make_job(num_workers=2, model="wide.py", flags=flags)
    _, *workers = job.start_all()
    job.expect_exits(0)
    last = workers[0].report["global_step"]
    assert sum(worker.report["local_steps"] for worker in workers) == last
    assert steps <= last <= steps + 1
    for worker in workers:
        assert_told(worker)


def test_a_synchronous_job_keeps_what_its_chief_has_found(make_job):
    steps = 900
    flags = [f"--train_steps={steps}", "--autotune", "--update=sync"]
    job = make_job(num_workers=2, params="slow=all:20", flags=flags)
    _, chief, worker = job.start_all()
    job.expect_exits(0)
    assert_exact(job, 2, steps)
    assert_told(chief)
    assert TABLE not in worker.log and "as the chief has decided" in worker.log
    assert chief.report["transport"] == worker.report["transport"]
    assert {task.report["local_steps"] for task in (chief, worker)} == {steps}


def test_a_ps_of_an_asynchronous_job_may_be_lost_in_the_trial(make_job):
    steps = 3000
    flags = [f"--train_steps={steps}", "--autotune", "--wire_dtype=bfloat16", "--save_checkpoint_steps=100"]
    job = make_job(num_workers=1, num_ps=2, model="wide.py", flags=flags)
    first, other, worker = job.start_all()
    worker.wait_for_line(TRYING)
    other.send(signal.SIGKILL)
    other.wait(10)
    again = job.start("ps:1")
    job.expect_exits(0, [first, again, worker])
    assert checkpoint_of(job.train_dir)["global_step"] == steps
    assert "the session was lost with a ps" in worker.log
    assert_told(worker)


@pytest.mark.parametrize("name", ["worker:1", "worker:0", "ps:0"])
def test_a_task_of_a_synchronous_job_may_be_lost_in_the_trial(make_job, name):
    steps = 900
    flags = [f"--train_steps={steps}", "--autotune", "--update=sync", "--save_checkpoint_steps=50"]
    job = make_job(num_workers=2, params="slow=all:20", flags=flags)
    tasks = dict(zip(job.names, job.start_all(), strict=True))
    tasks["worker:0"].wait_for_line(TRYING)
    tasks["worker:1"].wait_for_line("step [0-9]+/")
    tasks[name].send(signal.SIGKILL)
    tasks[name].wait(10)
    tasks[name] = job.start(name)
    job.expect_exits(0, tasks.values())
    chief, worker = tasks["worker:0"], tasks["worker:1"]
    assert checkpoint_of(job.train_dir)["global_step"] == steps
    assert_told(chief)
    assert chief.report["transport"] == worker.report["transport"]


@pytest.mark.parametrize(
    ("pack_bytes", "line"), [(131072, "steps of a trial, cut short"), (0, "there is nothing to choose from")]
)
def test_what_the_flags_say_is_kept_if_nothing_else_is_known(make_job, pack_bytes, line):
    job = make_job(num_workers=1, flags=["--train_steps=30", "--autotune", f"--pack_bytes={pack_bytes}"])
    _, worker = job.start_all()
    job.expect_exits(0)
    assert_exact(job, 1, 30)
    assert worker.log.count(line) == 1
    assert worker.report["transport"] == f"--pack_bytes={pack_bytes} --wire_dtype=float32 --noprefetch"


def test_a_signal_in_the_trial_ends_the_job_in_order(make_job):
    job = make_job(num_workers=2, params="slow=all:20", flags=["--autotune", "--update=sync"])
    tasks = job.start_all()
    tasks[1].wait_for_line(TRYING)
    for task in tasks:
        task.send(signal.SIGTERM)
    job.expect_exits(143, tasks[1:])
    assert checkpoint_of(job.train_dir)["global_step"] == tasks[1].report["global_step"]
