"""`tf.compat.v1.layers` and `rnn_cell`: with tf_keras they train in a model_fn, without it the error says what to do.

Which Keras TensorFlow uses is settled when it is imported, so each case has a process of its own.
"""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.graph

MODEL = """
import numpy as np
import tensorflow as tf
import ps_train

tf1 = tf.compat.v1

def input_fn(context):
    x = np.random.RandomState(0).randn(64, 5, 8).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, (x.sum((1, 2)) > 0).astype("int64")))
    return data.repeat().batch(context.batch_size, drop_remainder=True)

def model_fn(features, labels, mode, params):
    cell = tf1.nn.rnn_cell.LSTMCell(16)
    _, state = tf1.nn.dynamic_rnn(cell, features, dtype=tf.float32)
    hidden = tf1.layers.batch_normalization(tf1.layers.dense(state.h, 16), training=mode == "train")
    logits = tf1.layers.dense(tf.nn.relu(hidden), 2)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.AdamOptimizer(0.01))
"""

BUILD = """
import sys
from ps_train import graph
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.errors import ModelError
from ps_train.checkpoint_hook import export_meta
from ps_train.model import load_model
from ps_train.task_context import TaskContext, set_current

cluster = Cluster.from_hosts(ps="localhost:2222,localhost:2223", worker="localhost:2224")
context = TaskContext(TaskId("worker", 0), cluster)
set_current(context)
try:
    ops = graph.build_train(context, TrainConfig(seed=1), load_model(sys.argv[1]))
except ModelError as error:
    print("ModelError:", error)
    sys.exit()
with ops.graph.as_default():
    print("devices:", sorted({v.device for v in tf1.global_variables()}))
    print("updates:", len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)))
    meta = tf1.MetaGraphDef.FromString(export_meta(tf1.train.Saver()))
with tf1.Session(graph=tf.Graph()) as session:
    with session.graph.as_default():
        tf1.train.import_meta_graph(meta)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run([op for op in session.graph.get_operations() if op.type == "MakeIterator"])
        moving = next(v for v in tf1.global_variables() if "moving_mean" in v.name)
        loss = session.graph.get_tensor_by_name(ops.loss.name)
        step = session.graph.get_operation_by_name(ops.step.name)
        losses = [session.run([loss, step])[0] for _ in range(60)]
        print("falls:", bool(losses[-1] < losses[0]), "moved:", bool(abs(session.run(moving)).max() > 0))
"""


SPLIT = """
from ps_train import placement, splitting
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.task_context import TaskContext

splitting.MIN_PART_BYTES = 64
cluster = Cluster.from_hosts(ps="localhost:2222,localhost:2223", worker="localhost:2224")
context = TaskContext(TaskId("worker", 0), cluster, partition="auto")
with tf1.Graph().as_default(), placement.scope(context):
    x, l2 = tf.ones([3, 8]), tf1.keras.regularizers.l2(0.5)
    layer = tf1.layers.Dense(16, kernel_regularizer=l2, name="d")
    y = layer(x)
    again = tf1.layers.dense(x, 16, kernel_regularizer=l2, name="d", reuse=True)
    print(layer.kernel)
    print(sorted(v.op.name for v in layer.weights))
    whole = 0.5 * tf.nn.l2_loss(layer.kernel) * 2
    same = [tf.reduce_max(tf.abs(y - again)), whole - tf.add_n(tf1.losses.get_regularization_losses())]
    init = tf1.global_variables_initializer().name
    names, meta = [t.name for t in same], tf1.train.export_meta_graph(clear_devices=True)
with tf1.Graph().as_default(), tf1.Session() as session:
    tf1.train.import_meta_graph(meta)
    session.run(init)
    print([abs(float(value)) < 1e-5 for value in session.run(names)])
"""


def build(tmp_path, code=BUILD, **env):
    path = tmp_path / "layers.py"
    path.write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **env},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_layers_and_cells_train_with_tf_keras(tmp_path):
    pytest.importorskip("tf_keras", reason="tf_keras is not installed: pip install tf_keras")
    out = build(tmp_path, TF_USE_LEGACY_KERAS="1")
    assert "devices: ['/job:ps/task:0', '/job:ps/task:1']" in out
    assert "updates: 2" in out
    assert "falls: True moved: True" in out


def test_kernels_of_layers_are_split(tmp_path):
    """A layer takes the parts one by one, and so knows that a kernel that is used again is regularized once."""
    pytest.importorskip("tf_keras", reason="tf_keras is not installed: pip install tf_keras")
    out = build(tmp_path, SPLIT, TF_USE_LEGACY_KERAS="1")
    assert "<Split 'd/kernel:0' shape=(8, 16) dtype=float32 in 2 parts>" in out
    assert "['d/bias', 'd/kernel/part_0', 'd/kernel/part_1']" in out
    assert "[True, True]" in out


def test_without_tf_keras_the_error_says_what_to_install(tmp_path):
    out = build(tmp_path, TF_USE_LEGACY_KERAS="0")
    assert (
        "layers.py:14 uses LSTMCell, a TensorFlow 1 layer that Keras 3 lacks. Run pip install tf_keras,"
        in out
    ), out
    assert "TF_USE_LEGACY_KERAS=1" in out, out
