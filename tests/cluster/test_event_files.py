"""What real jobs have written for TensorBoard, against what their reports count by themselves."""

import pathlib
import re
import sys
import time

import pytest
from harness import START_SECS

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from events import counts, curves, files

pytestmark = pytest.mark.cluster
RATE = 0.5


@pytest.fixture(scope="module", autouse=True)
def tensorflow():
    """Imported before there is a job that is to be read while it runs."""
    from ps_train.compat import tf

    return tf.__version__


def run_of(job, index):
    """The directory of a worker's curves."""
    return pathlib.Path(job.train_dir, *([f"worker_{index}"] if index else []))


def wait_for_points(task, directory, condition):
    """Reads while the task runs, until the steps of the points of its loss are enough."""
    deadline = time.monotonic() + START_SECS
    while not condition([step for step, _ in curves(directory, is_growing=True).get("loss", ())]):
        assert time.monotonic() < deadline and task.status is None, "not there while the job runs"
        time.sleep(0.1)
    assert task.status is None


def check_speeds(found, steps_of_points, report):
    """The points' speeds, each over its own steps, add up to the time of the training."""
    rates = [rate for _, rate in found["local_steps/sec"]]
    assert len(rates) == len(steps_of_points) > 2
    secs = sum(steps / rate for steps, rate in zip(steps_of_points, rates, strict=True))
    assert secs == pytest.approx(report["train_secs"], rel=0.01, abs=0.02)
    examples = report["examples"] / report["local_steps"]
    for (_, per_sec), rate in zip(found["examples/sec"], rates, strict=True):
        assert per_sec == pytest.approx(examples * rate, rel=1e-5)


def check_losses(found, least_behind, most_behind):
    """The model's loss is -6 times the rate times the updates that it has had when it was pulled."""
    for step, loss in found["loss"]:
        behind = step - 1 - round(-loss / (6 * RATE))
        assert least_behind <= behind <= most_behind, (step, loss)


def last(points):
    return points[-1][1]


def test_async_with_a_bound_of_staleness_profile_and_evaluator(make_job):
    flags = [
        "--train_steps=800", "--max_staleness=1", "--save_summaries_steps=50", "--profile_steps=4", "--eval_steps=1",
        "--save_checkpoint_steps=300",
    ]  # fmt: skip
    job = make_job(1, 2, model="slope.py", params=f"pause=10,rate={RATE},summary=1", flags=flags)
    evaluator = job.start("evaluator:0", ps_hosts=None, worker_hosts=None)
    workers = job.start_all()[1:]
    for index, worker in enumerate(workers):
        wait_for_points(worker, run_of(job, index), lambda steps: len(steps) > 2)
    job.expect_exits(0)
    for index, worker in enumerate(workers):
        found, report = curves(run_of(job, index)), worker.report
        expected = {int(value): count for value, count in report["staleness_counts"].items()}
        assert counts(found["staleness/histogram"]) == expected and set(expected) == {0, 1}
        assert sum(expected.values()) + report["dropped_gradients"] == report["local_steps"]
        dropped = [0, *(count for _, count in found["dropped_gradients"])]
        assert dropped[-1] == report["dropped_gradients"] > 0
        taken = dict(found["staleness/histogram"])
        new = [after - before for before, after in zip(dropped, dropped[1:], strict=False)]
        taken = [taken[step].num if step in taken else 0 for step, _ in found["dropped_gradients"]]
        check_speeds(found, [a + b for a, b in zip(taken, new, strict=True)], report)
        check_losses(found, 0, 100)
        for step, mean in found["staleness/mean"]:
            histogram = dict(found["staleness/histogram"])[step]
            assert mean == pytest.approx(histogram.sum / histogram.num)
        profile = report["profile"]
        for part, secs in profile["parts"].items():
            assert last(found[f"step_ms/{part}"]) == pytest.approx(1000 * secs, rel=1e-5, abs=1e-9), part
        traffic = profile["ps"]["ps:0"]["traffic"]
        for name in ("pulled", "pushed"):
            assert last(found[f"{name}_bytes/ps_0/step"]) == traffic[f"{name}_bytes"] > 0
            per_sec = traffic[f"{name}_bytes"] * last(found["local_steps/sec"])
            assert last(found[f"{name}_bytes/ps_0/sec"]) == pytest.approx(per_sec, rel=1e-5)
    chief, other = curves(job.train_dir), curves(run_of(job, 1))
    assert {value for _, value in chief["shard"]} == {0.0} and len(chief["shard"]) >= 8
    assert {value for _, value in chief["learning_rate"]} == {RATE}
    assert not {"shard", "learning_rate", "global_step/sec"} & set(other)
    rates = [rate for _, rate in chief["global_step/sec"]]
    assert max(rates) < 400 and sum(rates) / len(rates) > last(chief["local_steps/sec"])
    evaluated = re.findall(r"step (\d+): loss (-?[\d.]+)", evaluator.log)
    points = curves(pathlib.Path(job.train_dir, "eval"))["loss"]
    assert [(str(step), f"{value:.4f}") for step, value in points] == evaluated
    report = evaluator.report
    assert points[-1] == (report["global_step"], pytest.approx(report["metrics"]["loss"], rel=1e-6))
    assert all(len(files(folder)) == 1 for folder in (job.train_dir, run_of(job, 1)))


def test_sync_with_a_backup_worker(make_job):
    flags = ["--train_steps=150", "--update=sync", "--replicas_to_aggregate=2", "--save_summaries_steps=20"]
    job = make_job(1, 3, model="slope.py", params=f"pause=5,rate={RATE}", flags=flags)
    workers = job.start_all()[1:]
    job.expect_exits(0)
    reports = [worker.report for worker in workers]
    assert sum(report["dropped_gradients"] for report in reports) > 20
    for index, report in enumerate(reports):
        found = curves(run_of(job, index))
        assert last(found["dropped_gradients"]) == report["dropped_gradients"]
        assert found["loss"][-1] == (150, pytest.approx(report["loss"]))
        assert not any(tag.startswith("staleness") for tag in found)
        check_losses(found, -1, 3)  # a gradient that was dropped made no step
    assert {value for _, value in curves(job.train_dir)["learning_rate"]} == {RATE}


def test_curves_of_a_model_that_went_back_do_not_overlap(make_job):
    """First in the job, with a ps that is lost; then the job, started again from a checkpoint, to a later target."""
    flags = ["--train_steps=400", "--save_summaries_steps=5", "--save_checkpoint_steps=1000"]
    job = make_job(1, 2, model="slope.py", params=f"pause=10,rate={RATE}", flags=flags)
    ps, chief, other = job.start_all()
    wait_for_points(chief, run_of(job, 1), lambda steps: steps and steps[-1] > 160)
    ps.kill()
    ps = job.start("ps:0")
    job.expect_exits(0, [ps, chief, other])
    assert re.search(r"\d+ steps? after it (is|are) lost", chief.log)
    assert "are not written" not in chief.log
    job.flags[0] = "--train_steps=460"
    job.expect_exits(0, job.start_all())
    for index in range(2):
        found, folder = curves(run_of(job, index)), run_of(job, index)
        assert len(files(folder)) == 2
        steps = [step for step, _ in found["loss"]]
        assert steps == sorted(set(steps)) and steps[-1] >= 460 - index and any(100 < s <= 400 for s in steps)
        check_losses(found, 0, 8)  # none is of the model that is gone
