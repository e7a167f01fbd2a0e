"""Jobs whose large variables are split over the ps tasks, and what other jobs make of their checkpoints."""

import os
import subprocess
import sys

import numpy as np
import pytest
from harness import MODELS, checkpoint_of

pytestmark = pytest.mark.cluster
PARTS = (
    "emb/table [300000, 8], 9.6 MB: rows 0-149999 on ps:",
    "kernel [2048, 1100], 9.01 MB: rows 0-1023 on ps:",
)


def test_a_split_model_is_trained_resumed_whole_on_one_ps_and_evaluated(make_job):
    job = make_job(
        num_ps=2,
        num_workers=2,
        model="large.py",
        flags=["--partition=auto", "--update=sync", "--train_steps=8"],
    )
    _, _, chief, worker = job.start_all()
    job.expect_exits(0)
    for line in PARTS:
        assert f"split: {line}" in chief.log
    assert "the fullest has 1.0" in chief.log, "both ps hold as much"
    assert chief.report["global_step"] == 8
    first = checkpoint_of(job.train_dir)
    assert first["emb/table"].shape == first["emb/table/Momentum"].shape == (300_000, 8)
    assert not [name for name in first if "part_" in name]
    trained = np.abs(first["emb/table/Momentum"]).sum(1) > 0
    assert trained[:1000].any() and 0 < trained.sum() < 2000

    rest = make_job(num_ps=1, num_workers=1, model="large.py", flags=["--partition=none", "--train_steps=16"])
    rest.train_dir = job.train_dir
    _, chief = rest.start_all()
    rest.expect_exits(0)
    assert "restored" in chief.log and chief.report["global_step"] >= 16
    second = checkpoint_of(job.train_dir)
    assert second.keys() == first.keys()
    moved = np.abs(second["kernel"] - first["kernel"]).max()
    assert 0 < moved < 0.1, "it went on from there"

    done = subprocess.run(
        [sys.executable, "-m", "ps_train", "eval", f"--model={MODELS / 'large.py'}", f"--train_dir={job.train_dir}"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and "accuracy" in done.stdout, done.stdout + done.stderr


def test_a_worker_with_another_partition_is_refused(make_job):
    job = make_job(num_ps=2, num_workers=2, model="large.py", flags=["--train_steps=100000"])
    for name in ("ps:0", "ps:1", "worker:0"):
        job.start(name, "--partition=auto")
    other = job.start("worker:1")
    job.expect_exits(1, [other])
    assert (
        "worker:1 has --partition=none and the others have --partition=auto. Give all the same." in other.log
    )


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_small_variable_in_parts_is_the_same_for_all_workers(make_job, update):
    """A Saver, which the chief alone has, does more with parts than with a whole variable."""
    job = make_job(
        2, 2, model="slope.py", params="parts=2,pause=5", flags=["--train_steps=40", f"--update={update}"]
    )
    chief = job.start_all()[2]
    job.expect_exits(0)
    values = checkpoint_of(job.train_dir)
    for name in "vw":
        np.testing.assert_allclose(values[name], [-1.0 * chief.report["global_step"]] * 3)
