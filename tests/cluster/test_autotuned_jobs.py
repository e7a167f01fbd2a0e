"""Jobs that try transports while they train: their weights against NumPy's, and who keeps what."""

import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of

sys.path.insert(0, str(MODELS))
from steps import trajectory

pytestmark = pytest.mark.cluster
EXACT = ("--noprefetch", "--wire_dtype=float32")


def tables(task):
    return task.log.count("steps of a trial")


def test_a_trial_of_exact_ways_changes_no_number(make_job):
    steps = 120
    job = make_job(num_workers=1, num_ps=2, flags=[f"--train_steps={steps}", "--autotune"])
    *_, worker = job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for value, expected in zip((values["w"], values["b"]), trajectory(1, steps), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    report = worker.report
    assert (report["local_steps"], report["global_step"], report["examples"]) == (steps, steps, 4 * steps)
    assert report["restored_from"] is None
    assert tables(worker) == 1 and "cut short" not in worker.log
    assert all(flag in report["transport"] for flag in EXACT)
    assert f"without a trial: {report['transport']}" in worker.log


def test_each_worker_of_an_asynchronous_job_decides(make_job):
    steps = 600
    flags = [f"--train_steps={steps}", "--autotune", "--wire_dtype=bfloat16", "--prefetch"]
    job = make_job(num_workers=2, model="wide.py", flags=flags)
    _, *workers = job.start_all()
    job.expect_exits(0)
    assert sum(worker.report["local_steps"] for worker in workers) == workers[0].report["global_step"]
    assert steps <= workers[0].report["global_step"] <= steps + 1
    for worker in workers:
        assert tables(worker) == 1
        assert worker.report["transport"].startswith("--pack_bytes=")


def test_a_synchronous_job_keeps_what_its_chief_has_found(make_job):
    steps = 400
    flags = [f"--train_steps={steps}", "--autotune", "--update=sync"]
    job = make_job(num_workers=2, params="slow=all:20", flags=flags)
    _, chief, worker = job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for value, expected in zip((values["w"], values["b"]), trajectory(2, steps), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert (tables(chief), tables(worker)) == (1, 0)
    assert "cut short" not in chief.log
    assert "as the chief has decided" in worker.log
    assert chief.report["transport"] == worker.report["transport"]
    assert {task.report["local_steps"] for task in (chief, worker)} == {steps}
