"""Jobs of workers with several towers each: in-graph replication within between-graph replication, against NumPy."""

import re
import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of

sys.path.insert(0, str(MODELS))
from steps import trajectory

pytestmark = pytest.mark.cluster
STEPS = 12


@pytest.mark.parametrize(
    ("update", "num_workers", "towers"), [("async", 1, 3), ("sync", 2, 2)], ids=["async", "sync"]
)
def test_the_mean_of_all_towers_of_all_workers_is_applied(make_job, update, num_workers, towers):
    job = make_job(
        num_workers=num_workers, flags=[f"--train_steps={STEPS}", f"--update={update}", f"--towers={towers}"]
    )
    workers = job.start_all()[1:]
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for name, expected in zip("wb", trajectory(num_workers * towers, STEPS), strict=True):
        np.testing.assert_allclose(values[name], expected, rtol=1e-12)
    for worker in workers:
        assert worker.report["examples"] == STEPS * 4 * towers


@pytest.mark.parametrize("towers", [1, 2])
def test_the_devices_of_one_process_are_one_device_with_the_whole_batch(make_job, towers):
    """As flags/one_host.flags: no ps of its own."""
    flags = [f"--train_steps={STEPS}", "--colocate_ps", f"--towers={towers}"]
    job = make_job(num_ps=0, num_workers=1, flags=flags)
    (worker,) = job.start_all()
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for name, expected in zip("wb", trajectory(towers, STEPS), strict=True):
        np.testing.assert_allclose(values[name], expected, rtol=1e-12)
    assert worker.report["examples"] == STEPS * 4 * towers


def test_a_worker_prints_where_its_ops_are(make_job):
    flags = [
        "--train_steps=3",
        "--towers=2",
        "--log_device_placement",
        "--intra_op_threads=1",
        "--inter_op_threads=2",
    ]
    job = make_job(num_workers=1, flags=flags)
    _, worker = job.start_all()
    job.expect_exits(0)
    devices = set(re.findall(r"MatVec\S*/MatMul\S*: \(\w+\): (\S+)", worker.log))
    assert {device.rpartition("/")[2] for device in devices} == {"device:CPU:0", "device:CPU:1"}
