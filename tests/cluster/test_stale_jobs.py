"""Jobs that watch how old gradients are: what was applied, by the weights, against what the workers report."""

import signal

import numpy as np
import pytest
from harness import checkpoint_of

pytestmark = pytest.mark.cluster
STEPS = 120


def train(make_job, num_workers, *flags, params="pause=10,rate=0.5", num_ps=2):
    """(weights, reports of the workers, the workers) of a job of slope.py at its target."""
    job = make_job(num_ps=num_ps, num_workers=num_workers, model="slope.py", params=params, flags=flags)
    workers = job.start_all()[num_ps:]
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    np.testing.assert_array_equal(values["v"], values["w"])
    return values["w"], [worker.report for worker in workers], workers


def counts_of(report):
    return {int(staleness): count for staleness, count in report["staleness_counts"].items()}


def test_old_gradients_are_dropped(make_job):
    weights, reports, workers = train(make_job, 3, f"--train_steps={STEPS}", "--max_staleness=1")
    step = max(report["global_step"] for report in reports)
    dropped = sum(report["dropped_gradients"] for report in reports)
    np.testing.assert_allclose(weights, -0.5 * step, rtol=1e-12)
    assert sum(report["local_steps"] for report in reports) - dropped == step
    assert dropped > STEPS / 10, "with three workers every third or so is two updates old"
    for report, worker in zip(reports, workers, strict=True):
        counts = counts_of(report)
        assert set(counts) == {0, 1}
        assert sum(counts.values()) == report["local_steps"] - report["dropped_gradients"]
        assert (
            f"{report['dropped_gradients']} of {report['local_steps']} gradients were dropped: they were too old"
            in (worker.log)
        )
        assert "staleness of this worker's gradients: mean 0." in worker.log


def test_one_worker_alone_has_fresh_gradients(make_job):
    weights, (report,), _ = train(make_job, 1, f"--train_steps={STEPS}", "--scale_by_staleness")
    assert counts_of(report) == {0: STEPS}
    np.testing.assert_allclose(weights, -0.5 * STEPS, rtol=1e-6)


@pytest.mark.parametrize("flags", [[], ["--fuse_bytes=0", "--pack_bytes=0"]], ids=["fused", "apart"])
def test_the_rate_is_divided_by_each_gradients_staleness(make_job, flags):
    weights, reports, _ = train(make_job, 3, f"--train_steps={STEPS}", "--scale_by_staleness", *flags)
    counts = [item for report in reports for item in counts_of(report).items()]
    expected = sum(count / max(staleness, 1) for staleness, count in counts)
    np.testing.assert_allclose(weights, -0.5 * expected, rtol=1e-6)
    assert expected < STEPS * 0.9, "gradients with three workers are mostly two updates old"


@pytest.mark.parametrize("flags", [[], ["--prefetch", "--max_staleness=80"]], ids=["plain", "prefetch"])
def test_the_chief_trains_alone_at_first(make_job, flags):
    _, (chief, other), (_, worker) = train(
        make_job, 2, f"--train_steps={STEPS}", "--warmup_steps=60", *flags, num_ps=1
    )
    assert "warm-up: worker:0 trains alone up to step 60" in worker.log
    assert chief["local_steps"] >= 60 and 0 < other["local_steps"] <= STEPS + 1 - 60
    assert max(counts_of(other)) < 60, "the first gradient is none of the variables from before the wait"


def test_a_chief_without_data_is_not_waited_for(make_job):
    _, (chief, other), _ = train(
        make_job, 2, "--warmup_steps=60", params="pause=10,rate=0.5,batches=10:20", num_ps=1
    )
    assert (chief["local_steps"], other["local_steps"]) == (10, 20)


def test_the_chief_is_lost_in_the_warm_up(make_job):
    job = make_job(
        num_workers=2,
        model="slope.py",
        params="pause=50",
        flags=["--warmup_steps=1000", "--peer_timeout_secs=5"],
    )
    _, chief, other = job.start_all()
    other.wait_for_line("warm-up: worker:0 trains alone up to step 1000")
    chief.kill()
    assert other.wait(30) == 138
    assert "gone for 5 s: worker:0" in other.log


def test_the_rate_is_multiplied_by_the_number_of_workers(make_job):
    weights, reports, _ = train(
        make_job, 2, "--train_steps=10", "--update=sync", "--scale_rate=linear", params="rate=0.5", num_ps=1
    )
    np.testing.assert_allclose(weights, -0.5 * 2 * 10, rtol=1e-6)


SLOW = "pause=5,slow=2:10"


@pytest.mark.parametrize(
    "flags", [[], ["--prefetch"], ["--local_steps=2"]], ids=["plain", "prefetch", "local"]
)
def test_nobody_is_further_ahead_than_allowed(make_job, tmp_path, flags):
    params = f"{SLOW},gather=3:{tmp_path}"
    weights, reports, _ = train(make_job, 3, "--train_steps=60", "--max_lead=3", *flags, params=params)
    steps = [report["local_steps"] for report in reports]
    assert 2 <= max(steps) - min(steps) <= 3, (
        f"the slow one, which makes the last, takes ten times as long: {steps}"
    )
    assert sum(steps) == max(report["global_step"] for report in reports)
    batches = 2 if "--local_steps=2" in flags else 1
    np.testing.assert_allclose(weights, -1.0 * batches * sum(steps), rtol=1e-12)
    slowest = counts_of(reports[2])
    assert max(slowest) <= 2 * (2 * 3 + 1), "while it makes a step, each of the others can make so many"


def test_the_others_go_on_without_one_that_has_used_up_its_data(make_job):
    _, reports, _ = train(make_job, 3, "--max_lead=2", params=SLOW + ",batches=40:40:5")
    assert [report["local_steps"] for report in reports] == [40, 40, 5]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_slow_worker_is_killed(make_job, comes_back):
    flags = ["--train_steps=2000", "--max_lead=2", "--peer_timeout_secs=4", "--stall_secs=2"]
    job = make_job(num_workers=3, model="slope.py", params="pause=5,slow=2:4", flags=flags)
    workers = job.start_all()[1:]
    workers[2].wait_for_line(r"step \d+/2000")
    workers[2].kill()
    workers[0].wait_for_line(
        r"so: as far ahead as it may be \(--max_lead\), 2 steps, of worker:2, which (is|was) "
    )
    if comes_back:
        workers[2] = job.start("worker:2")
        job.expect_exits(0, [job.tasks[0], *workers])
        steps = [worker.report["local_steps"] for worker in workers]
        assert steps[2] > 2, steps
    else:
        job.expect_exits(0, [job.tasks[0], *workers[:2]])
        assert "worker:2 has been silent for 4 s: going on without it" in workers[0].log


def test_one_that_waits_for_a_slow_one_hears_a_signal(make_job):
    job = make_job(
        num_workers=2,
        model="slope.py",
        params="pause=5,slow=1:2000",
        flags=["--train_steps=400", "--max_lead=1"],
    )
    _, chief, _ = job.start_all()
    chief.wait_for_line(r"step \d+/400")
    chief.send(15)
    assert chief.wait(10) == 143


def test_one_that_is_taken_for_lost_while_it_waits_joins_in_again(make_job, tmp_path):
    """It is frozen between two steps of the slow one, which takes longer than the chief waits."""
    flags = ["--train_steps=9", "--max_lead=1", "--peer_timeout_secs=3", "--stall_secs=1"]
    params = f"pause=5,slow=2:1600,gather=3:{tmp_path}"
    job = make_job(num_workers=3, model="slope.py", params=params, flags=flags)
    ps, chief, frozen, slow = job.start_all()
    frozen.wait_for_line("so: as far ahead as it may be")
    frozen.send(signal.SIGSTOP)
    chief.wait_for_line("worker:1 has been silent for 3 s: going on without it")
    frozen.send(signal.SIGCONT)
    job.expect_exits(0, [ps, chief, frozen, slow])
    steps = [worker.report["local_steps"] for worker in (chief, frozen, slow)]
    assert sum(steps) == chief.report["global_step"], steps
    assert steps[1] >= 2 and steps[1] >= steps[2], steps
    assert "did not leave" not in chief.log
