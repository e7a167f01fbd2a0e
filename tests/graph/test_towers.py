"""Towers: where their ops are, what they share, and what is refused."""

import os

import numpy as np
import pytest
from in_process import lend_servers
from stepping import Run, build

import ps_train.graph
from ps_train import server, towers
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.devices import DeviceOptions
from ps_train.errors import ModelError, UsageError
from ps_train.model import ModelSpec

pytestmark = pytest.mark.graph
TWO = DeviceOptions(towers=2)
START = np.float32([[1.0], [2.0], [3.0]])


def linear(features, labels):
    """A loss with a regularizer and a moving average; the table's gradient is sparse."""
    w = tf1.get_variable(
        "w", initializer=np.ones([12, 1], "float32"), regularizer=lambda v: 0.01 * tf.reduce_sum(v * v)
    )
    table = tf1.get_variable("table", initializer=START)
    mean = tf1.get_variable("mean", [], initializer=tf1.zeros_initializer(), trainable=False)
    rows = tf.gather(table, [0, 2])
    logits = tf.squeeze(tf.matmul(features, w), 1) + tf.reduce_sum(rows)
    tf1.losses.mean_squared_error(tf.cast(labels, tf.float32), logits)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, mean.assign_add(1.0).op)
    tf1.summary.scalar("rows", tf.reduce_sum(rows))
    return ModelSpec(loss=tf1.losses.get_total_loss(), optimizer=tf1.train.GradientDescentOptimizer(0.1))


@pytest.fixture
def on_one_device(monkeypatch):
    """Servers of this process have one CPU device each."""
    monkeypatch.setattr(
        ps_train.graph, "tower_devices", lambda context: ("/device:CPU:0",) * context.devices.towers
    )


def make(model_fn=linear, devices=TWO, **settings):
    return build(lend_servers(num_ps=1, num_workers=1), model_fn, devices=devices, **settings)


def test_each_tower_is_on_a_device_of_its_own_and_variables_are_shared():
    ops, _, _ = make()
    graph = ops.graph
    products = [op for op in graph.get_operations() if op.type == "MatMul" and "gradients" not in op.name]
    assert [op.device for op in products] == [f"/job:worker/task:0/device:CPU:{i}" for i in range(2)]
    gradients = [op.device for op in graph.get_operations() if op.type == "MatMul" and "gradients" in op.name]
    assert set(gradients) == {f"/job:worker/task:0/device:CPU:{i}" for i in range(2)}
    names = [v.op.name for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)]
    assert names == ["global_step", "w", "table", "mean"]
    assert {v.device for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)} == {"/job:ps/task:0"}
    assert len(graph.get_collection(tf1.GraphKeys.UPDATE_OPS)) == 1
    assert len(graph.get_collection(tf1.GraphKeys.SUMMARIES)) == 1
    assert len(graph.get_collection(tf1.GraphKeys.LOSSES)) == 1


@pytest.mark.parametrize("settings", [{}, {"fuse_bytes": 1 << 20, "pack_bytes": 4096}, {"local_steps": 1}])
def test_the_mean_gradient_of_all_towers_is_applied(on_one_device, settings):
    """Both towers read the same batches, so their mean is the gradient of one, moved by what `losses` of each is."""
    one, two = (
        Run(lend_servers(num_ps=1, num_workers=1), make(devices=d, **settings))
        for d in (DeviceOptions(), TWO)
    )
    found = []
    for run in (one, two):
        losses, values = run.steps(3)
        found.append((losses, values["w"], values["table"], values["mean"]))
    for alone, both in zip(*found, strict=True):
        np.testing.assert_allclose(both, alone, rtol=1e-5)


def test_examples_of_all_towers_count(on_one_device):
    run = Run(lend_servers(num_ps=1, num_workers=1), make(devices=TWO))
    assert run.session.run(run.ops.examples) == 32
    assert ps_train.global_batch_size(16) == 32


def test_gradients_that_only_one_tower_has_are_halved():
    v = tf.constant([2.0, 4.0])
    sparse = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), tf.constant([2]))
    found = towers.mean_gradients(
        [[(v, "a"), (None, "b"), (sparse, "c")], [(None, "a"), (None, "b"), (v, "c")]]
    )
    assert [variable for _, variable in found] == ["a", "b", "c"]
    with tf1.Session() as session:
        np.testing.assert_allclose(session.run(found[0][0]), [1, 2])
        np.testing.assert_allclose(session.run(found[2][0]), [1, 3])
    assert found[1][0] is None


@pytest.mark.parametrize(
    ("make_weights", "message"),
    [
        (
            lambda: tf.Variable(np.ones([12, 1], "float32"), name="own"),
            "tower 1 makes variables of its own: tower_1/own. With --towers all have to be made by",
        ),
        (lambda: tf.keras.layers.Dense(1), "tower 1 makes variables of its own: "),
    ],
)
def test_variables_that_a_tower_cannot_share_are_named(make_weights, message):
    def model_fn(features, labels):
        weights = make_weights()
        logits = weights(features) if callable(weights) else tf.matmul(features, weights)
        return ModelSpec(loss=tf.reduce_mean(logits), optimizer=tf1.train.GradientDescentOptimizer(0.1))

    with pytest.raises(ModelError, match=message):
        make(model_fn)


def test_a_train_op_of_the_models_own_is_refused():
    def model_fn(features, labels):
        loss = tf.reduce_mean(tf.matmul(features, tf1.get_variable("w", [12, 1])))
        optimizer = ps_train.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1))
        return ModelSpec(loss=loss, train_op=optimizer.minimize(loss, tf1.train.get_global_step()))

    with pytest.raises(ModelError, match="it makes its own train_op, and with --towers"):
        make(model_fn)


def test_more_towers_than_gpus():
    with pytest.raises(UsageError, match="--towers=3 is more than the 2 GPUs of this task"):
        DeviceOptions(towers=3).tower_devices(2)


def test_what_a_server_is_given():
    options = DeviceOptions(
        towers=2, gpu_memory_fraction=0.25, allow_growth=True, inter_op_threads=3, intra_op_threads=2,
        log_device_placement=True, allow_soft_placement=True,
    )  # fmt: skip
    mine = tf1.ConfigProto(operation_timeout_in_ms=5)
    worker = server.device_config(options, TaskId("worker", 0), mine)
    expected = tf1.ConfigProto(
        inter_op_parallelism_threads=3, intra_op_parallelism_threads=2, log_device_placement=True,
        allow_soft_placement=True, device_count={"CPU": 2}, operation_timeout_in_ms=5,
        gpu_options={"allow_growth": True, "per_process_gpu_memory_fraction": 0.25},
    )  # fmt: skip
    assert worker == expected
    ps = server.device_config(options, TaskId("ps", 0))
    assert ps == tf1.ConfigProto(
        inter_op_parallelism_threads=3, intra_op_parallelism_threads=2, allow_soft_placement=True
    )
    assert server.device_config(DeviceOptions(), TaskId("worker", 0)) == tf1.ConfigProto()


@pytest.mark.parametrize(
    ("task", "gpus", "seen"),
    [("worker", "1,2", "1,2"), ("worker", "none", "-1"), ("ps", "0", "-1"), ("ps", None, "-1")],
)
def test_gpus_are_hidden(monkeypatch, task, gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    server.prepare_environment(TaskId(task, 0), gpus)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
