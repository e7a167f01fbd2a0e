"""The newest checkpoint is found in any directory, against what TensorFlow's own Saver writes there."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ps_train import checkpoints, graph, restoring, task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.errors import ModelError
from ps_train.model import load_model

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


# Restoring what fits, and only that.


def variables(**shapes):
    return lambda: [tf1.get_variable(name, shape) for name, shape in shapes.items()]


def restored(checkpoint, build):
    """The error's text, or variable name -> value."""
    with tf1.Graph().as_default(), tf1.Session() as sess:
        build()
        try:
            restoring.restore(sess, tf1.train.Saver(), checkpoint)
        except ModelError as error:
            assert "\n" not in str(error)
            return str(error)
        return {v.op.name: sess.run(v) for v in tf1.global_variables()}


def test_what_fits(tmp_path):
    (path,) = save(str(tmp_path), build=lambda: tf1.get_variable("w", initializer=[1.0, 2.0]))
    assert restored(path, variables(w=[2]))["w"].tolist() == [1.0, 2.0]


def test_variables_that_do_not_fit(tmp_path):
    (path,) = save(str(tmp_path), build=variables(a=[2], b=[3, 4], c=[1]))
    assert restored(path, variables(a=[2], b=[3, 5], d=[])) == (
        f"{path} does not fit the model: b has shape [3, 4] there and [3, 5] in the model; d is not in it. "
        "Use another --train_dir, or the model and --model_params that wrote it."
    )


@pytest.mark.parametrize(("model", "is_told"), [(None, True), ("ps_train.builtin_model", False)])
def test_the_checkpoint_of_another_model_where_no_model_is_given(tmp_path, model, is_told):
    (path,) = save(str(tmp_path))
    config, builtin = TrainConfig(model=model), load_model("ps_train.builtin_model")
    context = task_context.TaskContext(TaskId("worker", 0), Cluster.from_hosts("p0:1", "w0:1"), "async")
    task_context.set_current(context)
    for ops in (graph.build_train(context, config, builtin), graph.build_eval(config, builtin)):
        with ops.graph.as_default(), tf1.Session() as sess, pytest.raises(ModelError) as caught:
            restoring.restore(sess, tf1.train.Saver(), path)
        hint = "that wrote it. No --model is given, so this is the built-in model."
        assert str(caught.value).endswith(hint if is_told else "that wrote it.")


def test_what_tensorflow_cannot_restore_is_told_in_its_own_words(tmp_path):
    """Slices of float16, as of a variable that a partitioner of the user's has split."""

    def parts():
        tf1.get_variable("half", [4], tf.float16, partitioner=tf1.fixed_size_partitioner(2))

    (path,) = save(str(tmp_path), build=parts)
    text = restored(path, lambda: tf1.get_variable("half", [4], tf.float16))
    assert text.startswith(f"{path} cannot be restored: ") and "graph" not in text and "half" in text.lower()


def test_another_shape_alone_is_refused(tmp_path):
    """TensorFlow's Saver restores it without a word."""
    (path,) = save(str(tmp_path), build=variables(a=[16]))
    assert "a has shape [16] there and [32] in the model" in restored(path, variables(a=[32]))
    with tf1.Graph().as_default(), tf1.Session() as sess:
        tf1.get_variable("a", [32])
        tf1.train.Saver().restore(sess, path)


def test_another_type_is_refused(tmp_path):
    (path,) = save(str(tmp_path), build=lambda: tf1.get_variable("a", [1], tf.float64))
    assert "a is float64 there and float32 in the model" in restored(path, variables(a=[1]))


def test_a_shape_that_is_not_known_fits(tmp_path):
    (path,) = save(str(tmp_path), build=variables(a=[2]))

    def of_any_shape():
        tf1.get_variable("a", initializer=tf1.placeholder_with_default([0.0], [None]), validate_shape=False)

    assert restored(path, of_any_shape)["a"].shape == (2,)


def test_many_variables_that_do_not_fit(tmp_path):
    (path,) = save(str(tmp_path))
    text = restored(path, variables(**{f"v{i}": [1] for i in range(8)}))
    assert text.startswith(f"{path} does not fit the model: v0 is not in it; v1 is not in it; v2 ")
    assert "v4 is not in it and 3 more. Use another --train_dir" in text


def test_partitioned_variables_are_compared_whole(tmp_path):
    def table(rows, parts):
        return lambda: tf1.get_variable("table", [rows, 2], partitioner=tf1.fixed_size_partitioner(parts))

    (path,) = save(str(tmp_path), build=table(7, 3))
    assert "table has shape [7, 2] there and [8, 2] in the model." in restored(path, table(8, 2))
    assert len(restored(path, table(7, 2))) == 2


def test_checkpoint_that_cannot_be_read(tmp_path):
    (path,) = save(str(tmp_path))
    with open(path + ".index", "r+b") as file:
        file.truncate(10)
    text = restored(path, variables(w=[2, 3]))
    assert text.startswith(f"{path} cannot be read: ")
    assert text.endswith(". Move it away to start from an older one.")


def test_data_file_that_is_cut_off(tmp_path):
    """The index is whole, so that only the restore itself finds out."""
    (path,) = save(str(tmp_path), build=lambda: tf1.get_variable("w", initializer=np.ones(1000, np.float32)))
    with open(path + ".data-00000-of-00001", "r+b") as file:
        file.truncate(10)
    assert restored(path, variables(w=[1000])).startswith(f"{path} cannot be read: ")


# A writer that is killed at any moment.

SAVES = """
import os, random, signal, sys, time
from ps_train.compat import tf, tf1
from ps_train.checkpoint_hook import CheckpointHook
from ps_train.cluster import TaskId
from ps_train.reports import Report


def save_for_ever(folder):
    # On from what is there, a checkpoint after the other: w is all step.
    from ps_train.checkpoints import checkpoint_step, latest_checkpoint
    first = (checkpoint_step(latest_checkpoint(folder)) or 0) + 1
    w = tf1.get_variable("w", [200_000], tf.int64)
    step = tf1.train.get_or_create_global_step()
    number = tf1.placeholder(tf.int64, [])
    assign = tf.group(w.assign(tf.fill([200_000], number)), step.assign(number))
    hook = CheckpointHook(tf1.train.Saver(max_to_keep=2), folder, step, Report(TaskId("worker", 0)), save_steps=1)
    hook.begin()
    with tf1.Session() as session:
        session.run(assign, {number: first})
        hook.after_create_session(session, None)
        os.write(1, b"!")
        for value in range(first + 1, 10**9):
            session.run(assign, {number: value})
            hook.save_if_due(session)


for _ in range(int(sys.argv[2])):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        save_for_ever(sys.argv[1])
    assert os.read(read, 1) == b"!"
    time.sleep(random.uniform(0, 0.1))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read), os.close(write)
    print("killed", flush=True)
    sys.stdin.readline()  # until it has been looked at
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """After each of 25 kills the newest checkpoint is readable, of one step throughout, and never an older one."""
    writer = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(tmp_path), "25"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    try:
        steps = [0]
        for line in writer.stdout:
            assert line == "killed\n"
            newest = checkpoints.latest_checkpoint(str(tmp_path))
            reader = tf.train.load_checkpoint(newest)
            step = int(reader.get_tensor("global_step"))
            assert step == checkpoints.checkpoint_step(newest) >= steps[-1]
            assert (reader.get_tensor("w") == step).all()
            steps.append(step)
            print(file=writer.stdin, flush=True)
        assert writer.wait(10) == 0
    finally:
        writer.kill()
    assert len(steps) == 26 and len(set(steps)) > 10, steps
    assert len([*tmp_path.glob("*tempstate*")]) <= 2, (
        "what a save that was cut off has left stays for one start"
    )
