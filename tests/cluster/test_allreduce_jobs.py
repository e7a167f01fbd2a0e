"""Jobs without a ps, whose workers add up their gradients by collectives: weights against NumPy's, ends, and losses."""

import json
import re
import sys
import time

import numpy as np
import pytest
from harness import MODELS, START_SECS, checkpoint_of
from test_watching import run_status

sys.path.insert(0, str(MODELS))
from steps import batch, trajectory

pytestmark = pytest.mark.cluster
ALLREDUCE = "--update=allreduce"


@pytest.fixture
def make(make_job):
    """Makes a job of workers that all hold all variables."""

    def make_one(num_workers, *flags, **more):
        return make_job(0, num_workers, flags=[ALLREDUCE, "--log_every_secs=0.5", *flags], **more)

    return make_one


def assert_weights(job, expected):
    values = checkpoint_of(job.train_dir)
    for name, value in zip("wb", expected, strict=True):
        np.testing.assert_allclose(values[name], value, rtol=1e-10)


def wait_for_step(task, step, secs=60):
    deadline = time.monotonic() + secs
    while True:
        assert time.monotonic() < deadline, task.tail()
        found = [int(number) for number in re.findall(r"step (\d+)/", task.log)]
        if found and found[-1] >= step:
            return found[-1]
        time.sleep(0.1)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("flags", [(), ("--pack_bytes=0", "--fuse_bytes=0")], ids=["joined", "apart"])
def test_weights_are_those_of_synchronous_updates(make, num_workers, flags):
    job = make(num_workers, "--train_steps=20", *flags)
    workers = job.start_all()
    job.expect_exits(0)
    assert_weights(job, trajectory(num_workers, 20))
    assert [worker.report["global_step"] for worker in workers] == [20] * num_workers
    assert [worker.report["examples"] for worker in workers] == [80] * num_workers
    assert sorted(checkpoint_of(job.train_dir)) == ["b", "global_step", "w"]


@pytest.mark.parametrize("params", ["own=1", "parts=2", "own=1,parts=2"])
def test_a_model_with_its_own_train_op_or_a_partitioner(make, params):
    job = make(2, "--train_steps=20", model="slope.py", params=params)
    job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    np.testing.assert_allclose(values["v"], [-20.0] * 3)
    np.testing.assert_allclose(values["w"], [-20.0] * 3)


def test_it_goes_on_from_the_chiefs_checkpoint(make):
    job = make(2)
    for steps in (7, 20):
        tasks = [job.start(name, f"--train_steps={steps}") for name in ("worker:0", "worker:1")]
        job.expect_exits(0, tasks)
    w, b = trajectory(2, 7)
    for step in range(13):  # the input begins anew
        errors = [(x, x @ w + b - y) for x, y in (batch(shard, step) for shard in range(2))]
        w = w - 0.0625 * sum(2 * x.T @ e / 4 for x, e in errors) / 2
        b = b - 0.0625 * sum(2 * e.mean() for _, e in errors) / 2
    assert_weights(job, (w, b))


def test_a_worker_without_data_takes_part_until_all_are_done(make):
    counts = (4, 9, 6)
    job = make(3, params=f"batches={':'.join(map(str, counts))}")
    workers = job.start_all()
    job.expect_exits(0)
    w, b = np.zeros(2), 0.0
    for step in range(max(counts)):
        batches = [batch(shard, step) for shard, count in enumerate(counts) if step < count]
        errors = [(x, x @ w + b - y) for x, y in batches]
        w = w - 0.0625 * sum(2 * x.T @ e / 4 for x, e in errors) / len(batches)
        b = b - 0.0625 * sum(2 * e.mean() for _, e in errors) / len(batches)
    assert_weights(job, (w, b))
    assert [worker.report["examples"] for worker in workers] == [4 * count for count in counts]


def test_a_worker_without_any_data(make):
    job = make(2, model="ids.py", params="count=1")
    job.start_all()
    job.expect_exits(1)
    for task in job.tasks:
        assert "this worker's shard of the data is empty" in task.report["reason"]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_lost_worker_ends_all_and_all_go_on_from_the_checkpoint(make, victim, comes_back):
    flags = ["--train_steps=400", "--peer_timeout_secs=5", "--save_checkpoint_steps=50"]
    job = make(3, *flags, params="slow=all:30")
    workers = job.start_all()
    wait_for_step(workers[0], 20)
    workers[victim].kill()
    started = time.monotonic()
    others = [worker for worker in workers if worker is not workers[victim]]
    back = [job.start(f"worker:{victim}", model_params="lr=0.0625")] if comes_back else []
    job.expect_exits(138, others, secs=START_SECS)
    assert time.monotonic() - started < 5 + 20
    for other in others:  # what was lost first, whoever heard only of the other's end
        assert re.match(rf"(lost: )?worker:{victim} ", other.report["reason"]), job.tails()
    if victim != 0:
        saved = workers[0].report["checkpoint"]
        assert saved and saved.endswith(f"-{workers[0].report['global_step']}"), (
            "the chief has all there is, and saves it"
        )
    names = [f"worker:{number}" for number in range(3) if not (comes_back and number == victim)]
    again = [*back, *(job.start(name, model_params="lr=0.0625") for name in names)]
    job.expect_exits(0, again)
    assert {worker.report["global_step"] for worker in again} == {400}


def test_a_signal_to_one_ends_all_at_the_same_step(make):
    job = make(3, "--train_steps=100000", params="slow=all:5")
    workers = job.start_all()
    wait_for_step(workers[1], 20)
    code, out, err, _ = run_status("--json", ALLREDUCE, "--worker_hosts=" + ",".join(job.worker_hosts))
    assert code == 0, err
    status = json.loads(out)
    assert {(row["ps"], row["name"], row["total_bytes"]) for row in status["placement"]} == {
        ("every worker", "global_step", 8), ("every worker", "w", 16), ("every worker", "b", 8),
    }  # fmt: skip
    assert status["shares"] == [["every worker", 32, 3]] and set(status["transport"]) == set(job.names)
    for lines in status[
        "transport"
    ].values():  # w and b as one, and three numbers that all agree on: a third each, four times
        (line,) = lines
        assert (line["peer"], line["pushed_bytes"], line["push_messages"]) == (
            "other workers",
            4 * 8 + 4 * 4,
            8,
        )
    workers[1].send(15)
    assert workers[1].wait(20) == 143
    job.expect_exits(138, [workers[0], workers[2]], secs=30)
    steps = {worker.report["global_step"] for worker in workers}
    assert len(steps) == 1, "none has made a step without the others"
    assert workers[0].report["checkpoint"].endswith(f"-{steps.pop()}")
    assert "another worker has stopped" in workers[2].log or "stopped by SIGTERM" in workers[2].log
    assert "start all tasks again" in workers[2].report["reason"].lower()


def test_a_signal_to_all(make):
    job = make(3, "--train_steps=100000", params="slow=all:5")
    workers = job.start_all()
    wait_for_step(workers[1], 20)
    for worker in workers:
        worker.send(2)
    job.expect_exits(130, secs=30)
    assert workers[0].report["checkpoint"].endswith(f"-{workers[0].report['global_step']}")


@pytest.mark.parametrize("who", [0, 1])
def test_a_hook_that_asks_to_stop_ends_the_job(make, who):
    job = make(2, "--train_steps=100000", model="zoo.py", params=f"trouble=stop:{who}:5")
    workers = job.start_all()
    job.expect_exits(0)
    assert workers[0].report["global_step"] == workers[1].report["global_step"] < 20
    assert all("asked to stop" in worker.report["reason"] for worker in workers)


def test_nan_in_one_workers_gradient_ends_all(make):
    job = make(2, "--train_steps=100000", params="nan=1:6")
    job.start_all()
    job.expect_exits(1, secs=START_SECS)
    assert "NaN in the loss on worker:1" in job.tasks[0].report["reason"]


def test_the_chiefs_values_of_every_type_are_given_to_all(make, tmp_path):
    job = make(3, "--train_steps=4", model="kinds.py", params=f"out={tmp_path}")
    job.start_all()
    job.expect_exits(0)
    first, *others = [dict(np.load(path)) for path in sorted(tmp_path.glob("*.npz"))]
    assert len(others) == 2 and len(first) >= 18, sorted(first)
    for name, value in first.items():
        assert np.any(value != 0), f"{name} would be the same without a broadcast"
        for other in others:
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_a_trained_variable_that_cannot_be_given_to_all_is_refused(make, tmp_path):
    job = make(2, "--train_steps=4", model="kinds.py", params=f"out={tmp_path},shape=unknown")
    job.start_all()
    job.expect_exits(1)
    assert (
        "an all-reduce cannot give the chief's initial value to the others" in job.tasks[0].report["reason"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--model_params=rate=0.25,out=."],
            r"\S*learning_rate\S* is 0.25 for worker:1 and 0.5 for the others",
        ),
        (
            ["--model_params=later=0.25,out=."],
            r"cond\S*/else_branch/\S* is 0.25 for worker:1 and 0.125 for the others",
        ),
        (
            ["--bucket_bytes=8"],
            "updates other variables together than the others do. Give all the same --fuse_bytes",
        ),
        (
            ["--pack_bytes=0", "--fuse_bytes=0"],
            "updates other variables together than the others do. Give all the same --fuse_bytes",
        ),
    ],
)
def test_one_with_other_settings_is_refused(make, tmp_path, flags, message):
    """Each would train a model of its own, or wait in a collective that no other has."""
    later = ",later=0.125" if "later" in flags[0] else ""
    job = make(2, "--train_steps=100000", model="kinds.py", params=f"out={tmp_path}{later}")
    chief = job.start("worker:0")
    other = job.start("worker:1", *flags)
    job.expect_exits(1, [other], secs=START_SECS)
    assert re.search(message, other.report["reason"]), other.tail()
    job.expect_exits(138, [chief], secs=START_SECS)
    assert re.search(
        f"worker:1 was refused, and an all-reduce does not go on without it: .*{message}",
        chief.report["reason"],
    ), chief.tail()
