"""The newest checkpoint is found in any directory, against what TensorFlow's own Saver writes there."""

import os

import numpy as np
import pytest

from ps_train import bring_up, checkpoints
from ps_train.compat import tf, tf1

pytestmark = pytest.mark.graph
NAMES = [
    "plain",
    "r[1] x/ü",
    "a*b?",
    'quo"te',
    "back\\slash",
    "new\nline",
    "🙂",
    "dollar$1 (2)",
    "-7",
    "x.ckpt-3",
]
PATTERN = set("[\\")  # TensorFlow reads a path with these as a pattern that does not match itself


def save(directory, steps=(1,), build=None, **options):
    """Checkpoints as CheckpointHook writes them; the paths."""
    os.makedirs(directory, exist_ok=True)
    with tf1.Graph().as_default(), tf1.Session() as sess:
        build() if build else tf1.get_variable("w", [2, 3])
        sess.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(**options)
        prefix = os.path.join(directory, "model.ckpt")
        return [saver.save(sess, prefix, global_step=step, write_meta_graph=False) for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_directory_of_any_name(tmp_path, name):
    directory = str(tmp_path / name)
    paths = save(directory, steps=(5, 20))
    found = checkpoints.latest_checkpoint(directory)
    assert found == paths[-1] == os.path.join(directory, "model.ckpt-20")
    assert checkpoints.checkpoint_step(found) == 20
    if not set(name) & PATTERN:
        assert tf.train.load_checkpoint(found).get_tensor("w").shape == (2, 3)


@pytest.mark.parametrize("name", ["r[1] x/ü", "plain"])
def test_relative_directory_and_trailing_slash(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    save(name, steps=(5, 20))
    assert checkpoints.latest_checkpoint(name) == f"{name}/model.ckpt-20"
    assert checkpoints.latest_checkpoint(name + "/") == f"{name}/model.ckpt-20"


def test_a_directory_that_was_moved(tmp_path):
    save(str(tmp_path / "old"), steps=(5,))
    (tmp_path / "old").rename(tmp_path / "new")
    assert checkpoints.latest_checkpoint(str(tmp_path / "new")) == str(tmp_path / "new" / "model.ckpt-5")


@pytest.mark.parametrize("name", [name for name in NAMES if not set(name) & PATTERN])
def test_old_ones_are_pruned(tmp_path, name):
    directory = str(tmp_path / name)
    save(directory, steps=range(6), max_to_keep=2)
    left = {file.split(".")[1] for file in os.listdir(directory) if file.startswith("model")}
    assert left == {"ckpt-4", "ckpt-5"}


def test_nothing_there(tmp_path):
    assert checkpoints.latest_checkpoint(None) is None
    assert checkpoints.latest_checkpoint("") is None
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None
    assert checkpoints.latest_checkpoint(str(tmp_path / "missing")) is None


@pytest.mark.parametrize("keep", [0, 10, 25])
def test_torn_state_file(tmp_path, keep):
    """Cut off by a full disk: not a reason to end with a traceback."""
    save(str(tmp_path))
    state = tmp_path / "checkpoint"
    state.write_bytes(state.read_bytes()[:keep])
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None


def test_state_file_of_bytes(tmp_path):
    save(str(tmp_path))
    (tmp_path / "checkpoint").write_bytes(b'\xff\xfe model_checkpoint_path: "\x00')
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None


def test_named_checkpoint_is_gone(tmp_path):
    save(str(tmp_path))
    (tmp_path / "model.ckpt-1.index").unlink()
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None


def test_finished_at(tmp_path):
    directory = str(tmp_path)
    assert checkpoints.finished_at(directory, 10) is None
    (path,) = save(directory, steps=(10,))
    assert checkpoints.finished_at(directory, 10) == path
    assert checkpoints.finished_at(directory, 9) == path
    assert checkpoints.finished_at(directory, 11) is None
    assert checkpoints.finished_at(directory, None) is None
    assert checkpoints.finished_at(None, 10) is None


# Why a restore failed, in words.


def variables(**shapes):
    return lambda: [tf1.get_variable(name, shape) for name, shape in shapes.items()]


def explain(checkpoint, build):
    with tf1.Graph().as_default() as graph:
        build()
    return bring_up.explain_restore_failure(
        checkpoint, graph, tf.errors.NotFoundError(None, None, "first\nsecond")
    )


def test_variables_that_do_not_fit(tmp_path):
    (path,) = save(str(tmp_path), build=variables(a=[2], b=[3, 4], c=[1]))
    assert explain(path, variables(a=[2], b=[3, 5], d=[])) == (
        f"{path} does not fit the model: b has shape [3, 4] there and [3, 5] in the model; d is not in it. "
        "Use another --train_dir, or the model that wrote it."
    )


def test_many_variables_that_do_not_fit(tmp_path):
    (path,) = save(str(tmp_path))
    text = explain(path, variables(**{f"v{i}": [1] for i in range(8)}))
    assert text.startswith(f"{path} does not fit the model: v0 is not in it; v1 is not in it; v2 ")
    assert "v4 is not in it and 3 more. Use another --train_dir" in text


def test_partitioned_variables_are_compared_whole(tmp_path):
    def table(rows, parts):
        return lambda: tf1.get_variable("table", [rows, 2], partitioner=tf1.fixed_size_partitioner(parts))

    (path,) = save(str(tmp_path), build=table(7, 3))
    assert explain(path, table(8, 2)) == (
        f"{path} does not fit the model: table has shape [7, 2] there and [8, 2] in the model. "
        "Use another --train_dir, or the model that wrote it."
    )
    assert explain(path, table(7, 2)) == f"{path} cannot be restored: first"


def test_checkpoint_that_cannot_be_read(tmp_path):
    (path,) = save(str(tmp_path))
    with open(path + ".index", "r+b") as file:
        file.truncate(10)
    text = explain(path, variables(w=[2, 3]))
    assert text.startswith(f"{path} cannot be read: ")
    assert text.endswith(". Move it away to start from an older one.") and "\n" not in text


def test_data_file_that_is_cut_off(tmp_path):
    """The index is whole, so that only the restore itself finds out."""
    (path,) = save(str(tmp_path), build=lambda: tf1.get_variable("w", initializer=np.ones(1000, np.float32)))
    with open(path + ".data-00000-of-00001", "r+b") as file:
        file.truncate(10)
    with tf1.Graph().as_default() as graph, tf1.Session() as sess:
        tf1.get_variable("w", [1000])
        with pytest.raises((tf.errors.OpError, ValueError)) as raised:
            tf1.train.Saver().restore(sess, path)
    text = bring_up.explain_restore_failure(path, graph, raised.value)
    assert text.startswith(f"{path} cannot be ") and "\n" not in text
