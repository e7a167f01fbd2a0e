"""The examples of other replication schemes: each with all its processes, which end by themselves, against what can be known of it."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from harness import checkpoint_of, free_ports

from ps_train.datasets import load_digits

pytestmark = pytest.mark.cluster

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
ENV = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
SECS = 240


def run_tasks(folder, name, num_workers, *flags, left_out=(), status=0, shows_tracebacks=False):
    """Runs an example's ps and workers, all of which have to end with `status`; their logs by task."""
    ps, *workers = (f"localhost:{port}" for port in free_ports(1 + num_workers))
    names = ["ps:0", *(f"worker:{index}" for index in range(num_workers))]
    tasks, logs = {}, {}
    try:
        for task in set(names) - set(left_out):
            job, index = task.split(":")
            command = [
                sys.executable, str(EXAMPLES / name), f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}",
                f"--job_name={job}", f"--task_index={index}", *flags,
            ]  # fmt: skip
            with open(folder / f"{job}{index}.log", "wb") as log:
                tasks[task] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=ENV, start_new_session=True
                )
        deadline = time.monotonic() + SECS
        for task in tasks.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.wait(max(deadline - time.monotonic(), 0.1))
        statuses = {name: task.poll() for name, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.kill()
            task.wait(10)
    logs = {name: (folder / f"{name.replace(':', '')}.log").read_text() for name in tasks}
    shown = "\n".join(f"--- {name}: {statuses[name]}\n{log[-2000:]}" for name, log in logs.items())
    assert set(statuses.values()) == {status}, shown
    assert shows_tracebacks or not any("Traceback" in log for log in logs.values()), shown
    return logs


def regress(num_workers, num_steps, batch_size=32, rate=0.5):
    """Weights and biases of softmax regression after steps with the mean of the workers' gradients, from zero."""
    digits, _ = load_digits()
    weights, biases = np.zeros([64, 10]), np.zeros([10])
    for step in range(num_steps):
        gradients = []
        for index in range(num_workers):
            images, labels = digits.images[index::num_workers], digits.labels[index::num_workers]
            rows = (step * batch_size + np.arange(batch_size)) % len(labels)
            exps = np.exp(images[rows] @ weights + biases)
            errors = (exps / exps.sum(1, keepdims=True) - np.eye(10)[labels[rows]]) / batch_size
            gradients.append((images[rows].T @ errors, errors.sum(0)))
        weights = weights - rate * np.mean([gradient for gradient, _ in gradients], 0)
        biases = biases - rate * np.mean([gradient for _, gradient in gradients], 0)
    return weights, biases


def test_in_graph_sync_is_what_numpy_says(tmp_path):
    logs = run_tasks(tmp_path, "in_graph.py", 3, f"--train_dir={tmp_path / 'train'}", "--train_steps=60")
    assert all("the job is over: global step 60" in logs[name] for name in ("ps:0", "worker:1", "worker:2"))
    found, (weights, biases) = checkpoint_of(tmp_path / "train"), regress(3, 60)
    assert found["global_step"] == 60
    np.testing.assert_allclose(found["model/weights"], weights, atol=1e-4)
    np.testing.assert_allclose(found["model/biases"], biases, atol=1e-4)


def test_in_graph_async_trains_each_tower_in_a_thread(tmp_path):
    flags = ["--update=async", f"--train_dir={tmp_path / 'train'}", "--train_steps=400"]
    logs = run_tasks(tmp_path, "in_graph.py", 2, *flags)
    match = re.search(r"step (\d+): ([\d.]+)% of the held-out digits", logs["worker:0"])
    assert match and int(match[1]) in (400, 401) and float(match[2]) > 90, logs["worker:0"]
    assert checkpoint_of(tmp_path / "train")["global_step"] == int(match[1]), "a thread went on"
    count = re.search(r"steps of the threads: (\d+)\n", logs["worker:0"])
    assert count and 20 < int(count[1]) < 380, logs["worker:0"]


def write_digits(tmp_path):
    """The flags that name the pipeline's CSV files, which it writes, and a train_dir."""
    flags = [f"--data_dir={tmp_path / 'csv'}", f"--train_dir={tmp_path / 'train'}"]
    command = [sys.executable, str(EXAMPLES / "queue_pipeline.py"), "--write_files", *flags]
    assert subprocess.run(command, env=ENV, capture_output=True, timeout=120).returncode == 0
    return flags


def test_a_queue_pipeline_trains_each_digit_once(tmp_path):
    """With two producers, which end at different times, and two trainers; again, for a second pass from the checkpoint."""
    flags = write_digits(tmp_path)
    for passes in (1, 2):
        logs = run_tasks(tmp_path, "queue_pipeline.py", 4, "--producers=2", *flags)
        found = checkpoint_of(tmp_path / "train")
        np.testing.assert_array_equal(found["seen"], passes)
        assert len(found["seen"]) == 1497 and found["global_step"] == 47 * passes
    accuracy = re.search(r"2 to 2 times; ([\d.]+)% of the held-out", logs["worker:0"])
    assert accuracy and float(accuracy[1]) > 80, logs["worker:0"]


def test_a_queue_pipeline_without_its_producer_says_so(tmp_path):
    flags = [*write_digits(tmp_path), "--wait_secs=2"]
    logs = run_tasks(tmp_path, "queue_pipeline.py", 2, *flags, left_out=["worker:1"], status=1)
    assert "No batch for 2 s: are all 1 producers running?" in logs["worker:0"]


def test_a_broken_file_of_a_queue_pipeline_ends_the_job(tmp_path):
    """It is a QueueRunner's thread that fails; all tasks have to know."""
    flags = write_digits(tmp_path)
    (tmp_path / "csv" / "part-3.csv").write_text("1,2,3\n")
    logs = run_tasks(tmp_path, "queue_pipeline.py", 2, *flags, status=1, shows_tracebacks=True)
    for name in ("ps:0", "worker:0"):
        assert "error: worker:1 failed: InvalidArgumentError: " in logs[name], logs[name]
        assert "Expect 66 fields but have 3" in logs[name], logs[name]


def test_model_parallel_has_the_losses_of_one_task(tmp_path):
    losses = []
    for num_workers in (2, 1):
        folder = tmp_path / f"{num_workers}"
        folder.mkdir()
        flags = [f"--train_dir={folder / 'train'}", "--train_steps=101"]
        log = run_tasks(folder, "model_parallel.py", num_workers, *flags)["worker:0"]
        losses.append([float(loss) for loss in re.findall(r"^loss ([\d.]+)$", log, re.M)])
        # 8 rows of [32, 64] float32, and the labels; the rows' gradients.
        expected = {"worker:0 -> worker:1": "65,792", "worker:1 -> worker:0": "65,540"}
        arrows = dict(re.findall(r"^(\S+ -> \S+): ([\d,]+) bytes", log, re.M))
        assert arrows == (expected if num_workers == 2 else {})
    assert len(losses[0]) == 6 and losses[0][-1] < losses[0][0] - 0.5, losses
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)
    weights = [checkpoint_of(tmp_path / folder / "train")["upper/weights"] for folder in "12"]
    np.testing.assert_allclose(*weights, atol=1e-5)


def test_model_parallel_has_each_layer_on_its_task():
    """Variables and matrix products, forward and back; the checkpoints' graphs name no devices."""
    script = """import model_parallel, tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
tf.train.get_or_create_global_step()
model_parallel.build_step(["/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0"])
for op in tf.get_default_graph().get_operations():
    if op.type in ("MatMul", "VariableV2"):
        print(op.name, op.device or "anywhere")"""
    env = {**ENV, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent)])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    devices = dict(line.split() for line in done.stdout.splitlines())
    # A product for each of eight rows, for its gradient two (the first row needs that of the weights alone).
    for layer, task, count in (("lower", 0, 2 + 8 + 16), ("upper", 1, 2 + 8 + 16), ("logits", 1, 1 + 1 + 2)):
        names = [name for name in devices if re.match(rf"(gradients/)?{layer}/", name)]
        assert abs(len(names) - count) <= 1, names
        assert {devices[name] for name in names} == {f"/job:worker/task:{task}/device:CPU:0"}, names


def search(directory, *flags):
    """Output of a search with three rates, the first of which is too small."""
    done = subprocess.run(
        [
            sys.executable, str(EXAMPLES / "many_models.py"), f"--dir={directory}", "--learning_rates=0.001,0.3,1",
            *flags,
        ],
        env=ENV, capture_output=True, text=True, timeout=SECS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_many_models_are_divided_and_not_done_twice(tmp_path):
    """The first task has two of three experiments; the same command again runs nothing, more steps go on from the checkpoints."""
    head, *rows = search(tmp_path, "--num_tasks=2", "--train_steps=200")
    assert head.split() == ["learning", "rate", "step", "accuracy"]
    assert [row.split()[0] for row in rows] == ["0.001", "0.3", "1"]
    assert rows[1].split() == ["0.3", "not", "done"], rows
    accuracies = [float(row.split()[2].rstrip("%")) for row in rows[::2]]
    assert accuracies[0] < 70 < 90 < accuracies[1], rows
    outputs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/output.txt")}
    assert len(outputs) == 2 and search(tmp_path, "--num_tasks=2", "--train_steps=200") == [head, *rows]
    assert outputs == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/output.txt")}
    _, *rows = search(tmp_path, "--train_steps=250")
    assert [row.split()[1] for row in rows] == ["250", "250", "250"], rows
    report = json.loads((tmp_path / "learning_rate_1" / "report.json").read_text())
    assert report["restored_from"].endswith("model.ckpt-200")


def test_an_experiment_that_is_killed_is_the_searchs_failure(tmp_path, monkeypatch):
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    search = importlib.util.spec_from_file_location("search", EXAMPLES / "many_models.py")
    module = importlib.util.module_from_spec(search)
    search.loader.exec_module(module)
    monkeypatch.setattr(sys, "executable", str(killed))
    monkeypatch.setattr(sys, "argv", ["many_models.py", f"--dir={tmp_path}", "--learning_rates=1,2"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 137


def test_shared_variables_share_what_is_in_no_container(tmp_path):
    """And a reset of one container leaves the rest, and the other client's session, alone."""
    logs = run_tasks(tmp_path, "shared_variables.py", 2)
    lines = re.findall(r"^(?:before|after) .*$", logs["worker:0"], re.M)
    assert lines == ["before the reset: total 1497, own 749", "after the reset: total 1497, own 0"]
    assert "rejoined the living model" in logs["worker:0"]
    assert "after the other's reset: total 1497, own 748\n" in logs["worker:1"]
    assert "session was lost" not in logs["worker:1"]
