"""What a job leaves in its train_dir: plain TensorFlow reads it, whatever the number of ps or parts, wherever it was started."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from harness import checkpoint_of

pytestmark = pytest.mark.cluster


def train(job, status=0):
    job.start_all()
    job.expect_exits(status)


def test_table_in_any_number_of_parts_over_any_number_of_ps(make_job):
    """Saved by three parts on two ps; restored and saved again bit for bit, Adam's slots and all."""
    train(make_job(2, 1, "table.py", ["--train_steps=10"], "parts=3"))
    job = None
    for step, parts, num_ps in ((11, 1, 1), (12, 2, 3), (13, 5, 2)):
        if job is None:
            job = make_job(1, 1)
            first = checkpoint_of(job.train_dir)
            assert first["table"].shape == first["table/Adam"].shape == (11, 3)
            assert np.abs(first["table/Adam_1"]).max() > 0
        train(make_job(num_ps, 1, "table.py", [f"--train_steps={step}"], f"parts={parts},frozen=1"))
        again = checkpoint_of(job.train_dir)
        assert again.pop("global_step") == step
        assert set(again) == set(first) - {"global_step"}
        for name, value in again.items():
            np.testing.assert_array_equal(value, first[name], err_msg=f"{name} in {parts} parts")


def test_a_model_of_another_shape_is_refused_everywhere_and_changes_nothing(make_job):
    train(make_job(1, 2, "ps_train.builtin_model", ["--train_steps=10"]))
    job = make_job(1, 2, "ps_train.builtin_model", ["--train_steps=20"], "hidden=7")
    before = checkpoint_of(job.train_dir)
    train(job, status=1)
    for task in job.tasks:
        assert "hidden_1/biases has shape [" in task.log, task.tail()
    after = checkpoint_of(job.train_dir)
    assert after.keys() == before.keys()
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a disk of its own of 400 kB, and a function that changes its size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("a disk of a test's own needs the right to mount one (root)")
    yield folder, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_costs_checkpoints_and_no_training(make_job, small_disk):
    folder, resize = small_disk
    flags = ["--train_steps=100000", "--save_checkpoint_steps=20", "--keep_checkpoint_max=0"]
    job = make_job(1, 2, "wide.py", flags)
    job.train_dir = str(folder / "train")
    ps, chief, other = job.start_all()
    chief.wait_for_line(
        r"error: step \d+ is not saved: .*No space left on device; training goes on, next try in 10 s"
    )
    resize("40m")
    chief.wait_for_line(r"step (\d+)", 1)
    before = len(os.listdir(job.train_dir))
    deadline = time.monotonic() + 30
    while len(os.listdir(job.train_dir)) <= before:
        assert time.monotonic() < deadline, chief.tail()
        time.sleep(0.2)
    other.send(signal.SIGTERM)
    chief.send(signal.SIGTERM)
    job.expect_exits(143, [chief, other])
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"]


def test_a_disk_that_stays_full_at_the_end(make_job, small_disk):
    """The job ends for good, saying so, and an older checkpoint stands whole."""
    folder, _ = small_disk
    flags = ["--train_steps=300", "--save_checkpoint_steps=20", "--keep_checkpoint_max=0"]
    job = make_job(1, 1, "wide.py", flags, timeout_secs=5)
    job.train_dir = str(folder / "train")
    ps, chief = job.start_all()
    job.expect_exits(1)
    assert re.search(r"Step \d+ cannot be saved: .*No space left on device\. ", chief.report["reason"])
    assert ps.report["reason"] == f"worker:0 failed: {chief.report['reason']}"
    assert 0 < checkpoint_of(job.train_dir)["global_step"] < 300


def test_a_full_disk_of_the_record_ends_the_job_with_the_model_saved(make_job, small_disk):
    folder, _ = small_disk
    flags = ["--train_steps=1000000", "--save_checkpoint_secs=1000", f"--record={folder / 'record'}"]
    job = make_job(1, 2, "noisy.py", flags, params="pause=0")
    _, chief, other = job.start_all()
    job.expect_exits(1)
    said = r"--record cannot be written any more: .*No space left on device\. Make room there"
    assert re.search(said, chief.report["reason"] + other.report["reason"])
    assert checkpoint_of(job.train_dir)["global_step"] >= chief.report["global_step"] > 100


READ = """
import json, sys
import tensorflow as tf
tf1 = tf.compat.v1
reader = tf.train.load_checkpoint(sys.argv[1])
values = {name: reader.get_tensor(name).tolist() for name in reader.get_variable_to_shape_map()}
with tf1.Graph().as_default() as graph, tf1.Session() as session:
    saver = tf1.train.import_meta_graph(sys.argv[1] + ".meta")
    saver.restore(session, sys.argv[1])
    again = {v.op.name: session.run(v).tolist() for v in tf1.global_variables()}
    devices = sorted({node.device for node in graph.as_graph_def().node})
print(json.dumps([values, again, devices]))
"""


def test_relative_train_dir_and_plain_tensorflow(make_job, tmp_path):
    """Each task is started in another directory; only the chief's holds the checkpoint."""
    job = make_job(2, 2, flags=["--train_steps=20"], params="optimizer=adam")
    folders = {}
    for name in job.names:
        folders[name] = tmp_path / name.replace(":", "")
        folders[name].mkdir()
        job.start(name, cwd=folders[name], train_dir="out/run 1")
    job.expect_exits(0)
    assert [name for name in job.names if list(folders[name].rglob("*.index"))] == ["worker:0"]
    path = job.tasks[2].report["checkpoint"]
    path = str(folders["worker:0"] / path)
    run = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    values, again, devices = json.loads(run.stdout.splitlines()[-1])
    assert set(values) == {
        "w", "b", "global_step", "beta1_power", "beta2_power", "w/Adam", "w/Adam_1", "b/Adam", "b/Adam_1",
    }  # fmt: skip
    assert again == values
    assert devices == [""]


def test_model_that_does_not_fit_its_checkpoint(make_job):
    """Every task says which variable, and why, and ends for good."""
    train(make_job(1, 1, flags=["--train_steps=5"]))
    job = make_job(1, 2, "ids.py", ["--train_steps=10"], "count=5")
    job.start_all()
    job.expect_exits(1)
    text = (
        f"{job.train_dir}/model.ckpt-5 does not fit the model: w has shape [2] there and [] in the model; seen "
        "is not in it. Use another --train_dir, or the model and --model_params that wrote it."
    )
    ps, chief, other = job.tasks
    assert chief.report["reason"] == text
    assert ps.report["reason"] == other.report["reason"] == f"worker:0 failed: {text}"


def test_periods_and_number_of_checkpoints(make_job):
    job = make_job(1, 1, flags=["--train_steps=50", "--save_checkpoint_steps=10", "--keep_checkpoint_max=2"])
    train(job)
    files = os.listdir(job.train_dir)
    steps = sorted(int(name.split("-")[1].split(".")[0]) for name in files if name.endswith(".index"))
    assert len(steps) == 2 and 40 <= steps[0] < steps[1] == 50
    assert not [name for name in files if "tmp" in name or "temp" in name]
