"""The programs in the README, saved under the names that they give themselves, do what it says."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster
README = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
DEADLINE_SECS = 120
MODELS = {
    "mine.py": "async",
    "estimator_style.py": "sync",
    "keras_layers.py": "sync",
    "old_layers.py": "async",
}
OLD_LAYERS = """\
import tensorflow as tf
from mine import input_fn
import ps_train

tf1 = tf.compat.v1


def model_fn(features, labels, mode):
    net = tf1.layers.batch_normalization(tf1.layers.dense(features, 32), training=mode == "train")
    logits = tf1.layers.dense(tf.nn.relu(net), 10)
    return ps_train.ModelSpec(
        loss=tf1.losses.sparse_softmax_cross_entropy(labels, logits),
        optimizer=tf1.train.AdamOptimizer(0.003),
        metrics={"accuracy": tf1.metrics.accuracy(labels, tf.argmax(logits, 1))},
    )
"""  # what the README says of tf.compat.v1.layers


def programs():
    """File name -> text of each `python` block."""
    found = {}
    for indent, body in re.findall(r"(?ms)^( *)```python\n(.*?)^ *```$", README):
        text = re.sub(rf"(?m)^{indent}", "", body)
        found[text.splitlines()[0].removeprefix("# ")] = text
    return found


@pytest.fixture
def folder(tmp_path):
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "old_layers.py").write_text(OLD_LAYERS)
    return tmp_path


def run(folder, *args, **env):
    """What a program prints; fails unless it ends with 0."""
    full_env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    full_env |= {"CUDA_VISIBLE_DEVICES": "-1", **env}
    done = subprocess.run(
        [sys.executable, *args], cwd=folder, env=full_env, capture_output=True, text=True, timeout=DEADLINE_SECS
    )  # fmt: skip
    logs = "".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in folder.rglob("*.log"))
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def test_every_program_is_run_here():
    assert set(programs()) | {"old_layers.py"} == {*MODELS, "read_checkpoint.py"}


@pytest.mark.parametrize("name, update", MODELS.items())
def test_model_trains(folder, name, update):
    env = {}
    if name == "old_layers.py":
        if importlib.util.find_spec("tf_keras") is None:
            pytest.skip("tf_keras is not installed: pip install 'ps_train[legacy-layers]'")
        env["TF_USE_LEGACY_KERAS"] = "1"
    out = run(
        folder, "-m", "ps_train", f"--model={name}", f"--update={update}", "--train_steps=300", "--seed=1",
        "--train_dir=runs/it", "--evaluate", **env,
    )  # fmt: skip
    assert float(re.search(r"Held-out data: accuracy ([\d.]+)", out)[1]) > 0.9, out
    if name == "mine.py":
        shapes = run(folder, "read_checkpoint.py", "runs/it")
        assert {"global_step []", "weights [64, 10]", "biases/Adam [10]"} <= set(shapes.splitlines())
    if name == "keras_layers.py":
        assert "norm/moving_mean [64]" in run(folder, "read_checkpoint.py", "runs/it")
