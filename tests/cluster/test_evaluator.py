"""The evaluator job and `eval` on real checkpoints of a real job."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from ps_train.evaluation_watch import read_result

pytestmark = pytest.mark.cluster


def run_eval(*flags, timeout=60):
    return subprocess.run(
        [sys.executable, "-m", "ps_train", "eval", *flags],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """train_dir of a finished local run of the built-in model, 300 steps, a checkpoint every 100."""
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run(
        [
            sys.executable, "-m", "ps_train", "--train_steps=300", "--save_checkpoint_steps=100", "--seed=1",
            "--update=sync", f"--train_dir={folder}/train", "--noevaluate",
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return str(folder / "train")


def test_the_evaluator_follows_a_job_to_its_last_checkpoint(make_job):
    flags = ["--train_steps=600", "--save_checkpoint_steps=50", "--keep_checkpoint_max=2"]
    job = make_job(num_ps=1, num_workers=1, flags=flags)
    job.model = "ps_train.builtin_model"
    evaluator = job.start("evaluator:0", ps_hosts=None, worker_hosts=None)
    evaluator.wait_for_line("waiting for a new checkpoint")
    job.start_all()
    job.expect_exits(0)
    report = evaluator.report
    assert report["outcome"] == "done" and report["global_step"] == 600, report
    assert report["metrics"]["accuracy"] > 0.9, report
    assert report["reason"] == "evaluated the last checkpoint, at step 600"
    told = f"step 600: accuracy {report['metrics']['accuracy']:.4f}, loss {report['metrics']['loss']:.4f} (300 examples)"
    assert read_result(job.train_dir) == told, "for the chief to tell the boards"


def test_an_evaluator_that_is_killed_or_stopped_holds_nobody_up(make_job):
    """The job does not know of it; started again it goes on with the newest checkpoint."""
    flags = ["--train_steps=300", "--save_checkpoint_steps=20", "--eval_steps=3", "--log_every_secs=0.2"]
    job = make_job(num_ps=1, num_workers=1, flags=flags, params="slow=all:20")
    numbers = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
    evaluators = {number: job.start("evaluator:0", ps_hosts=None, worker_hosts=None) for number in numbers}
    for evaluator in evaluators.values():
        evaluator.wait_for_line("waiting for a new checkpoint")
    ps, chief = job.start_all()
    for number, evaluator in evaluators.items():
        evaluator.wait_for_line(r"step \d+: loss")
        evaluator.send(number)
    job.expect_exits(143, [evaluators[signal.SIGTERM]], secs=10)
    job.expect_exits(0, [ps, chief])
    last = job.start("evaluator:0", ps_hosts=None, worker_hosts=None)
    evaluators[signal.SIGSTOP].send(signal.SIGCONT)
    job.expect_exits(0, [last, evaluators[signal.SIGSTOP]])
    assert last.report["global_step"] == evaluators[signal.SIGSTOP].report["global_step"] == 300


def test_the_evaluator_ends_when_the_data_is_used_up(make_job):
    job = make_job(
        num_ps=1, num_workers=1, flags=["--train_steps=100000", "--eval_steps=3"], params="batches=12"
    )
    job.start_all()
    job.expect_exits(0)
    evaluator = job.start("evaluator:0", ps_hosts=None, worker_hosts=None)
    job.expect_exits(0)
    assert evaluator.report["global_step"] == 12


def test_a_checkpoint_that_vanishes_is_passed_over(trained, tmp_path):
    """The state file names one that is gone; the evaluator waits for a next one, which then comes."""
    from ps_train.config import TrainConfig
    from ps_train.evaluator import Evaluation, Vanished

    copy = tmp_path / "train"
    shutil.copytree(trained, copy)
    evaluation = Evaluation(TrainConfig(train_dir=str(copy)))
    step, metrics, examples = evaluation.run(str(copy / "model.ckpt-300"))
    assert (step, examples) == (300, 300) and metrics["accuracy"] > 0.8
    for path in copy.glob("model.ckpt-300*"):
        path.unlink()
    with pytest.raises(Vanished, match="model.ckpt-300 has vanished: going on to the next"):
        evaluation.run(str(copy / "model.ckpt-300"))


def test_all_checkpoints_are_evaluated_the_oldest_first(trained, tmp_path):
    report = tmp_path / "report.json"
    flags = [f"--train_dir={trained}", "--eval_checkpoints=all", f"--report_file={report}"]
    done = run_eval(*flags)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert [one["global_step"] for one in found["evaluations"]] == [0, 100, 200, 300]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "step 0",
        "step 100",
        "step 200",
        "step 300",
    ]
    assert {one["examples"] for one in found["evaluations"]} == {300} and found["examples"] == 1200
    losses = [one["metrics"]["loss"] for one in found["evaluations"]]
    assert losses == sorted(losses, reverse=True) and found["metrics"] == found["evaluations"][-1]["metrics"]
    alone = run_eval(f"--train_dir={trained}")
    assert alone.stdout.splitlines() == done.stdout.splitlines()[-1:]


def test_eval_prints_metrics_and_writes_report_and_summary(trained, tmp_path):
    report = tmp_path / "report.json"
    done = run_eval(f"--train_dir={trained}", f"--report_file={report}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 300: accuracy 0."), done.stdout
    assert done.stdout.endswith("(300 examples)\n")
    content = json.loads(report.read_text())
    assert content["metrics"]["accuracy"] > 0.8 and content["global_step"] == 300
    assert os.listdir(os.path.join(trained, "eval"))


def test_a_checkpoint_of_another_shape_is_refused(trained):
    done = run_eval(f"--train_dir={trained}", "--model_params=hidden=7")
    assert done.returncode == 1
    assert re.fullmatch(
        rf"ps_train: {trained}/model.ckpt-300 does not fit the model: hidden_1/biases has shape \[\d+\] there and \[7\] "
        r"in the model; .*\n",
        done.stderr,
    ), done.stderr


def test_eval_mistakes_are_one_line(trained, tmp_path):
    report = tmp_path / "report.json"
    done = run_eval(f"--train_dir={tmp_path}", f"--report_file={report}")
    content = json.loads(report.read_text())
    assert (content["job"], content["outcome"], content["exit_status"]) == ("evaluator", "failed", 1)
    assert content["reason"].endswith("holds no checkpoint. Train first, or check the directory.")
    assert done.returncode == 1
    assert done.stderr == (
        f"ps_train: --train_dir={tmp_path} holds no checkpoint. Train first, or check the directory.\n"
    )
    other = tmp_path / "other.py"
    other.write_text(
        "import tensorflow as tf, ps_train\ntf1 = tf.compat.v1\n"
        "def input_fn(context): return tf.data.Dataset.from_tensors(([1.0], [1.0]))\n"
        "def model_fn(features, labels):\n"
        "    return ps_train.ModelSpec(loss=tf.reduce_sum(tf1.get_variable('w', [3]) * features))\n"
    )
    done = run_eval(f"--train_dir={trained}", f"--model={other}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "model.ckpt-300 does not fit the model: w is not in it." in done.stderr
    other.write_text(
        other.read_text().replace("from_tensors(([1.0], [1.0]))", "from_tensors(([1.0], [1.0])).repeat()")
    )
    other.write_text(other.read_text().replace("'w', [3]", "'hidden/weights', [64, 64]"))
    done = run_eval(f"--train_dir={trained}", f"--model={other}")
    assert "Traceback" not in done.stderr and done.returncode == 1


WITH = """\
import tensorflow as tf
from ps_train import builtin_model

def input_fn(context):
    data = builtin_model.input_fn(context)
    fail = lambda label: {}["unitz"] if PIPELINE_FAILS else label
    return data.map(lambda image, label: (image, tf.ensure_shape(tf.numpy_function(fail, [label], tf.int64), [None])))

def model_fn(features, labels, mode, params):
    spec = builtin_model.model_fn(features, labels, mode, params)
    tf1 = tf.compat.v1
    spec.metrics["per_class"] = tf1.metrics.mean_tensor(tf.reduce_mean(tf.one_hot(labels, 10), 0))
    spec.metrics["bad"] = tf1.metrics.mean(tf.gather(tf.ones([3 if GRAPH_FAILS else 10]), labels, name="week"))
    return spec
"""


@pytest.mark.parametrize("what, message", [
    ("PIPELINE_FAILS", r"<lambda> in .*with\.py:\d+ raised KeyError: 'unitz'"),
    ("GRAPH_FAILS", r"InvalidArgumentError in op week \(made at .*with\.py:\d+\): indices\[\d+\] = \d+ is not in \[0, 3\)"),
])  # fmt: skip
def test_an_error_of_the_users_graph_is_one_line(trained, tmp_path, what, message):
    model, report = tmp_path / "with.py", tmp_path / "report.json"
    model.write_text(f"PIPELINE_FAILS = GRAPH_FAILS = False\n{what} = True\n{WITH}")
    done = run_eval(f"--train_dir={trained}", f"--model={model}", f"--report_file={report}")
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(f"ps_train: {message}\n", done.stderr), done.stderr
    assert re.fullmatch(message, json.loads(report.read_text())["reason"])


def test_a_metric_that_is_no_number_is_left_out(trained, tmp_path):
    model = tmp_path / "with.py"
    model.write_text(f"PIPELINE_FAILS = GRAPH_FAILS = False\n{WITH}")
    done = run_eval(f"--train_dir={trained}", f"--model={model}")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"step 300: accuracy [\d.]+, bad [\d.]+, loss [\d.]+ \(300 examples\)\n", done.stdout)
    assert "the metric per_class is left out: it is of shape [10], not a number" in done.stderr
