"""Jobs that pull ahead, add up gradients or train copies before they push: their weights against NumPy's."""

import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of

sys.path.insert(0, str(MODELS))
from steps import local_trajectory, trajectory

pytestmark = pytest.mark.cluster
STEPS = 12


def train(make_job, num_workers, *flags):
    """The reports of a job's workers and the weights of its checkpoint."""
    job = make_job(num_workers=num_workers, flags=[f"--train_steps={STEPS}", *flags])
    job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    return [task.report for task in job.tasks[1:]], (values["w"], values["b"])


@pytest.mark.parametrize(("update", "num_workers"), [("async", 1), ("sync", 2)])
def test_a_step_can_have_several_batches(make_job, update, num_workers):
    reports, found = train(make_job, num_workers, f"--update={update}", "--accumulate_steps=3")
    for value, expected in zip(found, trajectory(num_workers, STEPS, batches=3), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    for report in reports:
        assert (report["local_steps"], report["examples"]) == (STEPS, STEPS * 3 * 4)


@pytest.mark.parametrize(("update", "num_workers"), [("async", 1), ("sync", 2)])
def test_a_worker_can_train_a_copy_of_its_own(make_job, update, num_workers):
    reports, found = train(make_job, num_workers, f"--update={update}", "--local_steps=3")
    rounds = [range(3 * step, 3 * step + 3) for step in range(STEPS)]
    for value, expected in zip(found, local_trajectory(num_workers, rounds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    for report in reports:
        assert (report["local_steps"], report["examples"]) == (STEPS, STEPS * 3 * 4)


@pytest.mark.parametrize("flag", ["--accumulate_steps", "--local_steps"])
def test_batches_that_fill_no_step_are_told_of_and_not_counted(make_job, flag):
    job = make_job(num_workers=2, params="batches=6:3", flags=[f"{flag}=4"])
    _, chief, other = job.start_all()
    job.expect_exits(0)
    assert [(task.report["local_steps"], task.report["examples"]) for task in (chief, other)] == [
        (1, 16),
        (0, 0),
    ]
    for task, left in (chief, 8), (other, 12):
        assert (
            f"the last {left} examples of this worker's data were not trained on: a step takes 4 batches ({flag})"
            in task.log
        )


@pytest.mark.parametrize("flag", ["--accumulate_steps=2", "--local_steps=2"])
def test_a_hook_does_not_feed_one_of_a_step_s_batches_alone(make_job, flag):
    job = make_job(num_workers=1, model="zoo.py", params="trouble=feed:0:0", flags=["--train_steps=2", flag])
    _, worker = job.start_all()
    job.expect_exits(1)
    assert "FeedFnHook feeds target:0, and a step of 2 batches takes no feeds" in worker.log


def test_nan_in_one_of_its_batches_drops_what_a_copy_has_learnt(make_job):
    job = make_job(
        num_workers=1, params="nan=0:4", flags=["--train_steps=4", "--local_steps=3", "--on_nan=skip"]
    )
    job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    rounds = [range(0, 3), range(5, 8), range(8, 11), range(11, 14)]
    for name, expected in zip("wb", local_trajectory(1, rounds), strict=True):
        np.testing.assert_allclose(values[name], expected, rtol=1e-12)
    assert job.tasks[1].report["skipped_steps"] == 1


@pytest.mark.parametrize("batches", [1, 2])
def test_variables_can_be_pulled_a_step_ahead(make_job, batches):
    reports, found = train(make_job, 1, "--prefetch", f"--accumulate_steps={batches}")
    for value, expected in zip(found, trajectory(1, STEPS, batches=batches, delay=1), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert reports[0]["staleness"] == pytest.approx((STEPS - 1) / STEPS), "the first step has nothing to lack"


def test_sparse_gradients_are_not_added_up(make_job):
    job = make_job(num_workers=1, model="table.py", params="parts=1", flags=["--accumulate_steps=2"])
    _, worker = job.start_all()
    job.expect_exits(1)
    assert "is sparse, and cannot be added up over batches. Leave out --accumulate_steps" in worker.log
