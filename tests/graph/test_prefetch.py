"""That a step's variables are those of the step before, no older, and all of them."""

import numpy as np
import pytest
from in_process import lend_servers
from stepping import PACK, Run, build, deep

from ps_train.compat import tf, tf1
from ps_train.model import ModelSpec

pytestmark = pytest.mark.graph
WAYS = {"apart": (0, 0), "packed": (PACK, 0), "fused": (PACK, 1 << 20)}


def run_on_own_servers(model_fn, *args, **kwargs):
    """What is kept is a worker's, by the name of its place in the graph: one graph for each process, as in a job."""
    servers = lend_servers(num_ps=2, num_workers=1)
    return Run(servers, build(servers, model_fn, *args, **kwargs))


def pair(features, labels):
    """Two vectors, each the gradient of the other, and a counter that is not trained."""
    with tf1.device("/job:ps/task:0"):
        a, b = (
            tf1.get_variable(name, initializer=np.float32([1.0, 2.0, 3.0]) * k)
            for name, k in (("a", 1), ("b", 2))
        )
        turns = tf1.get_variable("turns", [], tf.int64, tf1.zeros_initializer(), trainable=False)
    loss = tf.reduce_sum(a * b) + 0.0 * tf.cast(turns, tf.float32)
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))


@pytest.mark.parametrize("way", WAYS)
def test_each_gradient_lacks_the_last_update(way):
    pack_bytes, fuse_bytes = WAYS[way]
    run = run_on_own_servers(pair, pack_bytes, fuse_bytes=fuse_bytes, prefetches=True)
    assert (run.fused is not None) == (way == "fused")
    a = np.float32([1.0, 2.0, 3.0])
    now, before = (a, 2 * a), None
    expected = []
    for _ in range(5):
        used = before or now
        expected.append((used[0] * used[1]).sum())
        before, now = now, (now[0] - np.float32(0.1) * used[1], now[1] - np.float32(0.1) * used[0])
    losses, values = run.steps(5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(values["a"], now[0], rtol=1e-5)
    np.testing.assert_allclose(values["b"], now[1], rtol=1e-5)


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
def test_all_ways_prefetch_the_same(wire_dtype):
    plain, *others = (
        run_on_own_servers(
            deep(), pack_bytes, wire_dtype=wire_dtype, fuse_bytes=fuse_bytes, prefetches=True
        ).steps(6)
        for pack_bytes, fuse_bytes in WAYS.values()
    )
    for losses, values in others:
        assert losses == plain[0]
        for name, value in values.items():
            np.testing.assert_array_equal(value, plain[1][name], name)


def test_nothing_that_is_not_trained_is_kept():
    def model_fn(features, labels):
        a, b = (tf1.get_variable(name, initializer=np.float32(2.0)) for name in "ab")
        turns = tf1.get_variable("turns", [], tf.float32, tf1.zeros_initializer(), trainable=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, turns.assign_add(1.0).op)
        loss = 0.0 * (a + b) + tf.stop_gradient(turns)
        return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))

    run = run_on_own_servers(model_fn, PACK, fuse_bytes=PACK, prefetches=True)
    run.steps(3)
    kept = [op for op in run.ops.graph.get_operations() if op.type == "VarHandleOp" and "kept" in op.name]
    assert kept and run.session.run(run.ops.loss) == 3.0


def test_a_variable_of_no_known_shape_is_pulled_when_it_is_needed():
    def model_fn(features, labels):
        free = tf1.get_variable("free", initializer=tf.ones([2]), validate_shape=False)
        a = tf1.get_variable("a", initializer=np.float32([1.0, 2.0]))
        return ModelSpec(loss=tf.reduce_sum(free * a), optimizer=tf1.train.GradientDescentOptimizer(0.1))

    losses, _ = run_on_own_servers(model_fn, PACK, fuse_bytes=PACK, prefetches=True).steps(3)
    assert losses[0] == 3.0 and losses[2] < losses[0]
