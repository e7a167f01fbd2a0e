"""Each model of the package and of examples/, in one process with a plain session: it builds, and its loss falls."""

import difflib
import gzip
import os
import struct
import sys

import numpy as np
import pytest

from ps_train import errors
from ps_train import model as model_lib
from ps_train.compat import tf, tf1
from ps_train.datasets import idx

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples")

pytestmark = pytest.mark.graph


@pytest.fixture(autouse=True)
def restored_sys_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def clothes_dir(tmp_path_factory):
    """Files like Fashion-MNIST's: 28x28 pictures whose class is where their bright rows are."""
    directory = tmp_path_factory.mktemp("clothes")
    rng = np.random.RandomState(0)
    for (images_name, labels_name), count in ((idx.TRAIN_FILES, 500), (idx.TEST_FILES, 100)):
        labels = rng.randint(0, 10, count).astype(np.uint8)
        images = rng.randint(0, 100, [count, 28, 28]).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 8] += 150
        header = struct.pack(">4I", 0x0803, *images.shape)
        (directory / images_name).write_bytes(gzip.compress(header + images.tobytes(), 1))
        (directory / labels_name).write_bytes(
            gzip.compress(struct.pack(">2I", 0x0801, count) + labels.tobytes())
        )
    return str(directory)


def train_and_evaluate(name, steps, params=None, batch_size=32, train_dir=None):
    """Losses [steps] of training, and the metrics' values over the held-out data."""
    model, params = model_lib.load_model(name), params or {}
    with tf.Graph().as_default():
        tf1.set_random_seed(1)

        def build(mode):
            context = model_lib.InputContext(
                mode, batch_size, seed=model_lib.worker_seed(1, 0), params=params
            )
            iterator = tf1.data.make_initializable_iterator(model_lib.call_input_fn(model, context))
            features, labels = model_lib.split_element(iterator.get_next())
            with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
                return iterator, model_lib.call_model_fn(model, features, labels, mode, params)

        train_data, train = build("train")
        train_op = train.train_op
        if train_op is None:
            train_op = train.optimizer.minimize(train.loss, tf1.train.get_or_create_global_step())
        eval_data, evaluation = build("eval")
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            session.run([train_data.initializer, eval_data.initializer])
            losses = [session.run([train_op, train.loss])[1] for _ in range(steps)]
            with pytest.raises(tf.errors.OutOfRangeError):
                while True:
                    session.run([update for _, update in evaluation.metrics.values()])
            metrics = {key: float(session.run(value)) for key, (value, _) in evaluation.metrics.items()}
            if train_dir:
                tf1.train.Saver().save(session, os.path.join(train_dir, "model.ckpt"), steps)
    return np.array(losses), metrics


def build_predictions(name, features, params=None):
    with tf.Graph().as_default():
        model = model_lib.load_model(name)
        return model_lib.call_model_fn(
            model, tf.constant(features), None, "predict", params or {}
        ).predictions


def assert_falls(losses, to_fraction):
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < to_fraction * losses[:5].mean()


def test_the_builtin_model_reads_digits():
    losses, metrics = train_and_evaluate("ps_train.builtin_model", 400)
    assert_falls(losses, 0.2)
    assert metrics["accuracy"] > 0.95
    predictions = build_predictions("ps_train.builtin_model", np.zeros([2, 64], np.float32))
    assert predictions["probabilities"].shape.as_list() == [2, 10]


def test_the_builtin_model_reads_its_shard_only():
    model = model_lib.load_model("ps_train.builtin_model")
    rows = []
    for shard in range(2):
        with tf.Graph().as_default():
            context = model_lib.InputContext("eval", 64, num_shards=2, shard_index=shard)
            batch = tf1.data.make_one_shot_iterator(model_lib.call_input_fn(model, context)).get_next()
            with tf1.Session() as session:
                rows.append(session.run(batch)[0])
    assert not (rows[0][:, None] == rows[1][None]).all(-1).any()


def test_linear_regression_finds_the_true_weights(tmp_path):
    name = os.path.join(EXAMPLES, "linear_regression.py")
    losses, metrics = train_and_evaluate(name, 100, {"learning_rate": 0.1}, train_dir=str(tmp_path))
    assert_falls(losses, 0.001)
    assert metrics["squared_error"] < 0.001
    module = sys.modules[model_lib.load_model(name).model_fn.__module__]
    assert module.max_error(str(tmp_path)) < 0.01


def test_digits_mlp_learns_with_its_own_train_op():
    losses, metrics = train_and_evaluate(os.path.join(EXAMPLES, "digits_mlp.py"), 300)
    assert_falls(losses, 0.3)
    assert metrics["accuracy"] > 0.95


@pytest.mark.parametrize(("name", "steps"), [("fashion_mnist_mlp.py", 60), ("fashion_mnist_cnn.py", 40)])
def test_fashion_mnist_models_learn_from_files(clothes_dir, name, steps):
    path = os.path.join(EXAMPLES, name)
    losses, metrics = train_and_evaluate(path, steps, {"data_dir": clothes_dir, "learning_rate": 0.003})
    assert_falls(losses, 0.6)
    assert metrics["accuracy"] > 0.5
    assert build_predictions(path, np.zeros([2, 28, 28], np.float32)).shape.as_list() == [2]


def test_a_missing_data_directory_is_told_in_one_line():
    model = model_lib.load_model(os.path.join(EXAMPLES, "fashion_mnist_mlp.py"))
    with pytest.raises(
        errors.PsTrainError, match=r"^Data directory nowhere does not exist; expected there: train"
    ):
        model_lib.call_input_fn(model, model_lib.InputContext(params={"data_dir": "nowhere"}))


def test_an_error_in_the_users_graph_names_the_users_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import tensorflow as tf\n"
        "def input_fn(context):\n"
        "    def bad(i):\n"
        "        if i > 1:\n"
        "            i = tf.reshape(tf.ones([3]), [2])\n"
        "        return i\n"
        "    return tf.data.Dataset.range(3).map(bad)\n"
        "def model_fn(features, labels):\n"
        "    return tf.matmul(tf.ones([2, 2]), tf.ones([3, 2]))\n"
    )
    model = model_lib.load_model(str(path))
    with tf.Graph().as_default():
        with pytest.raises(
            errors.ModelError, match=r"input_fn in .*mine\.py:5 raised ValueError: Cannot reshape"
        ):
            model_lib.call_input_fn(model, model_lib.InputContext())
        with pytest.raises(
            errors.ModelError, match=r"model_fn in .*mine\.py:9 raised ValueError: Dimensions must"
        ):
            model_lib.call_model_fn(model, None, None, "train", {})


def test_porting_a_legacy_script_changes_a_handful_of_lines():
    def lines(name):
        with open(os.path.join(EXAMPLES, name)) as file:
            return file.read().splitlines()

    diff = list(difflib.ndiff(lines("legacy_script_before.py"), lines("legacy_script.py")))
    assert sum(line.startswith("+ ") for line in diff) <= 8
    assert sum(line.startswith("- ") for line in diff) <= 8
