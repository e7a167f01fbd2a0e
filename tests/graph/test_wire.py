"""What is left of a tensor after it travelled, and that what a gradient loses comes with the next one."""

import numpy as np
import pytest
from in_process import lend_servers
from stepping import PACK, Run, build

from ps_train.compat import tf, tf1
from ps_train.model import ModelSpec
from ps_train.wire import BLOCK, MIN_QUANTIZED, SAMPLE, decode, encode, select, spread

pytestmark = pytest.mark.graph


@pytest.fixture
def servers():
    return lend_servers(num_ps=1, num_workers=1)


def there_and_back(values, wire_dtype):
    with tf1.Graph().as_default(), tf1.Session() as session:
        parts = encode(tf.constant(values), wire_dtype)
        return session.run([parts, decode(parts, values.shape, values.dtype)])


def quantized(values):
    """What int8 leaves of float32 values, in NumPy."""
    blocks = np.concatenate([values.ravel(), np.zeros(-values.size % BLOCK, np.float32)]).reshape(-1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(1, keepdims=True) / np.float32(127.0), np.float32(1e-30))
    return (np.round(blocks * (1 / scales)) * scales).ravel()[: values.size].reshape(values.shape)


@pytest.mark.parametrize("shape", [(MIN_QUANTIZED,), (37, 53), (3, 16, 64), (5000,)])
def test_int8_errs_by_half_a_level_of_the_block(shape):
    values = (np.random.default_rng(0).normal(size=shape) * 10.0 ** np.arange(shape[-1]).clip(0, 6)).astype(
        np.float32
    )
    (numbers, scales), back = there_and_back(values, "int8")
    assert numbers.dtype == np.int8 and numbers.nbytes + scales.nbytes < values.nbytes / 3.5
    np.testing.assert_allclose(back, quantized(values), rtol=1e-6)
    blocks = np.concatenate([np.abs(values.ravel()), np.zeros(-values.size % BLOCK)]).reshape(-1, BLOCK)
    bound = np.repeat(blocks.max(1), BLOCK)[: values.size].reshape(shape) / 254
    assert (np.abs(back - values) <= bound * 1.0001).all() and (back != values).any()


@pytest.mark.parametrize("value", [0.0, 1e-38, -3e38])
def test_int8_of_blocks_of_one_value(value):
    values = np.full([2 * MIN_QUANTIZED], value, np.float32)
    _, back = there_and_back(values, "int8")
    np.testing.assert_allclose(back, values, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [1e-5, 1.0, 1e4])
def test_int8_of_other_types(dtype, size):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    values = (np.random.default_rng(0).uniform(-1, 1, size=[MIN_QUANTIZED]) * size).astype(dtype)
    _, back = there_and_back(values, "int8")
    assert back.dtype == dtype
    error = np.abs(back.astype(np.float64) - values.astype(np.float64)).max()
    assert error <= size * (1 / 254 + 2.0**-8)


def test_what_is_small_or_of_integers_travels_as_it_is():
    for values in (np.ones([MIN_QUANTIZED - 1], np.float32), np.ones([4096], np.int64)):
        (part,), back = there_and_back(values, "int8")
        assert part.dtype == values.dtype and (back == values).all()


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_16_bits_err_by_as_much_as_they_say(dtype, error):
    values = np.random.default_rng(0).normal(size=[5000]).astype(np.float32)
    (part,), back = there_and_back(values, dtype)
    assert part.nbytes * 2 == values.nbytes
    assert (np.abs(back - values) <= np.abs(values) * error).all()


def slope(size, rate=1.0):
    """A model whose gradient is one part of a hundredth in most places: below half a level of int8."""
    gradient = np.full([size], 0.001, np.float32)
    gradient[::BLOCK] = 1.0

    def model_fn(features, labels):
        with tf1.device("/job:ps/task:0"):
            w = tf1.get_variable("w", initializer=np.zeros([size], np.float32))
        return ModelSpec(loss=tf.reduce_sum(w * gradient), optimizer=tf1.train.GradientDescentOptimizer(rate))

    return model_fn, gradient


@pytest.mark.parametrize("fuse_bytes", [0, 1 << 20])
def test_variables_that_travel_together_do_not_share_a_scale(servers, fuse_bytes):
    def model_fn(features, labels):
        with tf1.device("/job:ps/task:0"):
            gamma = tf1.get_variable("gamma", initializer=np.full([600], 1.0, np.float32))
            beta = tf1.get_variable("beta", initializer=np.full([600], 0.002, np.float32))
        loss = 1000 * tf.reduce_mean(beta) + 0.0 * tf.reduce_sum(gamma)
        return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.0))

    (loss,), _ = Run(servers, build(servers, model_fn, PACK, wire_dtype="int8", fuse_bytes=fuse_bytes)).steps(
        1
    )
    np.testing.assert_allclose(loss, 2.0, rtol=2.0**-8)


@pytest.mark.parametrize("fuse_bytes", [0, 1 << 20])
def test_what_a_gradient_loses_comes_later(servers, fuse_bytes):
    model_fn, gradient = slope(2048)
    run = Run(servers, build(servers, model_fn, PACK, wire_dtype="int8", fuse_bytes=fuse_bytes))
    _, values = run.steps(1)
    assert (values["w"][1:BLOCK] == 0).all(), "all of it was lost, for now"
    _, values = run.steps(39)
    np.testing.assert_allclose(values["w"], -40 * gradient, atol=1 / 254 * 1.1)


def test_sparse_gradients_travel_in_16_bits(servers):
    def model_fn(features, labels):
        table = tf1.get_variable("table", initializer=np.ones([8, 512], np.float32))
        rows = tf.nn.embedding_lookup(table, [1, 3])
        return ModelSpec(loss=tf.reduce_sum(rows) * 0.1, optimizer=tf1.train.GradientDescentOptimizer(1.0))

    _, values = Run(servers, build(servers, model_fn, PACK, wire_dtype="int8")).steps(1)
    np.testing.assert_allclose(values["table"][[1, 3]], 0.9, rtol=2.0**-8)
    assert (values["table"][[0, 2]] == 1.0).all()


@pytest.mark.parametrize("shape", [(1, 7), (50, 40), (3 * SAMPLE + 5,)])
def test_about_so_many_of_the_largest_are_selected(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with tf1.Graph().as_default(), tf1.Session() as session:
        places, chosen, rest = select(tf.constant(values), 0.1)
        places, chosen, rest, whole = session.run([places, chosen, rest, spread(places, chosen, shape)])
    assert abs(len(places) - max(1, values.size * 0.1)) <= max(1, values.size * 0.01)
    np.testing.assert_array_equal(whole + rest, values)
    np.testing.assert_array_equal(values.ravel()[places], chosen)
    assert np.abs(chosen).min() >= np.abs(rest).max()


def test_nothing_is_selected_of_zeros():
    with tf1.Graph().as_default(), tf1.Session() as session:
        places, _, _ = select(tf.zeros([100]), 0.5)
        assert session.run(places).size == 0


@pytest.mark.parametrize("wire_dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("fuse_bytes", [0, 1 << 20])
def test_what_is_not_among_the_largest_comes_later(servers, fuse_bytes, wire_dtype):
    size = 2000
    gradient = np.linspace(0.5, 1.0, size).astype(np.float32)

    def model_fn(features, labels):
        with tf1.device("/job:ps/task:0"):
            w = tf1.get_variable("w", initializer=np.zeros([size], np.float32))
        return ModelSpec(loss=tf.reduce_sum(w * gradient), optimizer=tf1.train.GradientDescentOptimizer(1.0))

    run = Run(
        servers, build(servers, model_fn, PACK, wire_dtype=wire_dtype, fuse_bytes=fuse_bytes, topk=0.25)
    )
    rtol = 2.0**-8
    _, values = run.steps(1)
    np.testing.assert_allclose(values["w"][1500:], -gradient[1500:], rtol=rtol)
    assert (values["w"][:1499] == 0).all()
    _, values = run.steps(11)
    lacks = 1 + values["w"] / (12 * gradient)  # of what plain steps would have come to
    assert (lacks < 0.5).all() and lacks.mean() < 0.25 and (values["w"] != 0).all()
