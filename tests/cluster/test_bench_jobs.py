"""`python -m ps_train bench` and `--profile_steps` with real processes."""

import json
import os
import pathlib
import signal

import pytest
from harness import START_SECS
from test_local_cluster import Launcher

from ps_train.plan import inputs
from ps_train.plan.simulate import simulate
from ps_train.step_trace import PARTS

pytestmark = pytest.mark.cluster
NEEDS_PROC = pytest.mark.skipif(
    not pathlib.Path("/proc/self/environ").exists(), reason="finds the tasks in /proc"
)
BENCH_SECS = 180
# Whatever else the processors do, a batch takes a tenth of a second.
MODEL = """\
import time
import ps_train
from ps_train.compat import tf, tf1

def input_fn(context):
    def nap(number):
        time.sleep(0.1)
        return number
    numbers = tf.data.Dataset.range(context.params.get("batches", 10**9))
    return numbers.map(lambda i: tf.ensure_shape(tf.numpy_function(nap, [i], tf.int64), []))

def model_fn(features):
    loss = 0.0 * tf.cast(features, tf.float32)
    for name in "ab":
        loss += tf.reduce_mean(tf1.get_variable(name, [250, 100]) ** 2)
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))
"""
VARIABLE_BYTES = 250 * 100 * 4


@pytest.fixture
def bench(tmp_path):
    """Starts a bench, whose tasks end with the test."""
    (tmp_path / "naps.py").write_text(MODEL)
    started = []

    def start(*args):
        args = ("bench", "--model=naps.py", "--log_dir=logs", *args)
        started.append(Launcher(tmp_path, *args).__enter__())
        return started[-1]

    yield start
    for launcher in started:
        launcher.__exit__()


@NEEDS_PROC
@pytest.mark.parametrize("update", ["async", "sync"])
def test_where_the_time_goes(bench, update):
    run = bench(
        "--json",
        "--report_file=r.json",
        "--bench_secs=2",
        "--num_ps=2",
        f"--update={update}",
        "--train_dir=t",
    )
    assert run.wait(BENCH_SECS) == 0, run.tails()
    found = json.loads(run.out)
    assert found == json.loads((run.folder / "r.json").read_text())
    # In sync, a worker's input goes on while it waits for the other one's.
    assert found["verdict"] in ("input-bound", *["waiting for others"] * (update == "sync")) and run.err == ""
    assert max(profile["parts"]["input"] for profile in found["workers"].values()) > 0.04
    assert list(found["workers"]) == ["worker:0", "worker:1"]
    assert (
        set(found["cpu_secs"]) == {"ps:0", "ps:1", "worker:0", "worker:1"}
        and min(found["cpu_secs"].values()) > 0
    )
    for profile in found["workers"].values():
        assert profile["num_traces"] >= 3 and profile["secs"] >= 2
        assert set(profile["parts"]) == set(PARTS)
        assert sum(profile["parts"].values()) == pytest.approx(profile["step_secs"])
        assert 0.09 < profile["step_secs"] < 1
        assert 0 < profile["cores_used"] < profile["cores"]
        for ps in profile["ps"].values():  # one of the two variables, and the global step
            assert VARIABLE_BYTES <= ps["traffic"]["pulled_bytes"] <= VARIABLE_BYTES + 64
            assert VARIABLE_BYTES <= ps["traffic"]["pushed_bytes"] <= VARIABLE_BYTES + 64
            assert ps["link_pull_rate"] > 1e6 and ps["link_push_rate"] > 1e6 and ps["is_local"]
            assert ps["cores_used"] is not None
    assert not (run.folder / "t").exists() and run.pids() == []
    setup = inputs.measured(str(run.folder / "r.json")).setup
    assert (setup.num_ps, setup.is_sync, setup.shares) == (
        2,
        update == "sync",
        pytest.approx((0.5, 0.5), abs=1e-3),
    )
    assert 2 * VARIABLE_BYTES <= setup.pull_bytes <= 2 * VARIABLE_BYTES + 128 and 0 <= setup.compute_cv <= 1
    assert 0.5 < simulate(setup).steps_per_sec / found["steps_per_sec"] < 2


@NEEDS_PROC
def test_the_table_on_a_terminal(bench):
    run = bench("--bench_secs=1", "--num_workers=1")
    assert run.wait(BENCH_SECS) == 0, run.tails()
    *_, head, row, link_head, link, bar, legend, verdict, first, second, logs = run.out.splitlines()
    assert head.split()[:3] == ["worker", "steps/s", "ms/step"] and row.startswith("worker:0 ")
    assert link_head.startswith("line ") and link.startswith("ps:0 - worker:0 ")
    assert bar.count("i") > 20 and "i input" in legend
    assert verdict.startswith("verdict: input-bound: ") and first.startswith("  ") and second.startswith("  ")
    assert logs == "Logs and reports: logs"


@NEEDS_PROC
def test_data_that_is_used_up_too_soon(bench):
    run = bench("--model_params=batches=5", "--num_workers=1")
    assert run.wait(BENCH_SECS) == 1, run.tails()
    assert "No step was traced: the data was used up too soon." in run.err


@NEEDS_PROC
def test_a_signal_ends_it_in_order(bench):
    run = bench("--bench_secs=500", "--num_workers=1")
    run.wait_for(lambda: "training" in run.out, "training")
    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.tails()
    assert run.pids() == [] and "verdict" not in run.out


def test_one_worker_of_a_job_profiles_itself(make_job):
    job = make_job(1, 2, flags=["--train_steps=60", "--update=sync"], params="slow=all:60")
    ps = job.start("ps:0")
    other, profiled = job.start("worker:0"), job.start("worker:1", "--profile_steps=5")
    job.expect_exits(0, secs=START_SECS)
    profile = profiled.report["profile"]
    assert 3 <= profile["num_traces"] <= 5 and profile["settings"]["update"] == "sync"
    assert sum(profile["parts"].values()) == pytest.approx(profile["step_secs"])
    assert "verdict: " in profiled.log and "line " in profiled.log
    assert other.report["profile"] is None and ps.report["profile"] is None and "verdict" not in other.log
    assert all(task.report["cpu_secs"] > 0 for task in job.tasks)
