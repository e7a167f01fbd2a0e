"""What travels together, read off the partitions that run, and that it changes no bit of any update."""

import numpy as np
import pytest
from in_process import lend_servers
from stepping import OPTIMIZERS, PACK, Run, build, deep

from ps_train import transport
from ps_train.choices import BUCKET_BYTES
from ps_train.compat import tf, tf1
from ps_train.model import ModelSpec
from ps_train.transport import pack

pytestmark = pytest.mark.graph


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_packing_changes_no_bit(servers, name):
    found = [
        Run(servers, build(servers, deep(OPTIMIZERS[name]), pack_bytes)).steps(8) for pack_bytes in (0, PACK)
    ]
    (plain_losses, plain), (packed_losses, packed) = found
    assert plain_losses == packed_losses and len(set(plain_losses)) == 8
    assert plain.keys() == packed.keys()
    for key in plain:
        np.testing.assert_array_equal(plain[key], packed[key], key)
    assert plain["turns"] == 16 and plain["shift"] != 0


def test_small_tensors_travel_in_one_message_each_way(servers):
    plain, packed = (Run(servers, build(servers, deep(), pack_bytes)).sends() for pack_bytes in (0, PACK))
    # Small are, on each ps, the weights and biases of some layers; larger than 4 kB are w3, b3 and w4, which go by themselves,
    # as do shift and turns, which have no second of their type. w and shift are pulled, w and shift are pushed.
    ways = ("ps:0>worker:0", "ps:1>worker:0", "worker:0>ps:0", "worker:0>ps:1")
    assert sum(packed[way] for way in ways[:2]) == 2 + 3 + 2
    assert sum(plain[way] for way in ways[:2]) == 2 * 12 + 2
    assert sum(plain[way] - packed[way] for way in ways[2:]) == 9 - 2
    # The powers of Adam's betas, for each update on the other ps.
    assert plain["ps:0>ps:1"] == 10 and packed["ps:0>ps:1"] == 1


def test_what_is_not_of_the_step_is_left_alone(servers):
    def model_fn(features, labels):
        a, b, c = (tf1.get_variable(name, [], initializer=tf1.ones_initializer()) for name in "abc")
        tf1.summary.scalar("c", c)
        return ModelSpec(loss=a * b, optimizer=tf1.train.GradientDescentOptimizer(0.1))

    with build(servers, model_fn, PACK)[0].graph.as_default() as graph:
        (packed,) = (op for op in graph.get_operations() if op.type == "ConcatV2" and "pack_reads" in op.name)
        assert len(packed.inputs) == 2 + 1, "a, b and the axis"


def test_a_read_that_waits_for_the_update_sees_it(servers):
    def model_fn(features, labels):
        a, b = (tf1.get_variable(name, [], initializer=tf1.ones_initializer()) for name in "ab")
        with tf1.control_dependencies([a.assign_add(1.0)]):
            late = a.read_value() + b.read_value()
        early = tf.stop_gradient(late) + 0.0 * (a + b)
        return ModelSpec(loss=early, optimizer=tf1.train.GradientDescentOptimizer(0.0))

    for pack_bytes in (0, PACK):
        losses, _ = Run(servers, build(servers, model_fn, pack_bytes)).steps(3)
        assert losses == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("by", ["control", "value"])
def test_an_update_waits_for_the_read_before_it(servers, by):
    """The loss is made of the old value, however late the worker asks for it."""

    def model_fn(features, labels):
        a, b = (tf1.get_variable(name, [], initializer=tf1.ones_initializer()) for name in "ab")
        old = a.read_value()
        with tf1.device(a.device), tf1.control_dependencies([old] if by == "control" else []):
            new = a.assign(old + 1.0 if by == "value" else tf.constant(2.0))
        with tf1.control_dependencies([new.op if hasattr(new, "op") else new]):
            late = tf.identity(old)
        loss = tf.stop_gradient(late) + 0.0 * (a + b)
        return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.0))

    losses, _ = Run(servers, build(servers, model_fn, PACK)).steps(3)
    assert losses == ([1.0, 2.0, 2.0] if by == "control" else [1.0, 2.0, 3.0])


def test_sparse_gradients_loops_and_unknown_shapes_are_left_alone(servers):
    def model_fn(features, labels):
        table = tf1.get_variable("table", [8, 2])
        free = tf1.get_variable("free", initializer=tf.zeros([2]), validate_shape=False)
        a, b = (tf1.get_variable(name, [2]) for name in "ab")
        looped = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * a), (0, b))[1]
        rows = tf.nn.embedding_lookup(table, [1, 5, 1])
        loss = tf.reduce_sum(rows) + tf.reduce_sum(looped) + tf.reduce_sum(free) + tf.reduce_sum(a * b)
        return ModelSpec(loss=loss, optimizer=tf1.train.MomentumOptimizer(0.1, 0.5))

    (_, plain), (_, packed) = (
        Run(servers, build(servers, model_fn, pack_bytes)).steps(3) for pack_bytes in (0, PACK)
    )
    for key in plain:
        np.testing.assert_array_equal(plain[key], packed[key], key)


def test_what_a_hook_adds_to_the_step_waits_for_the_read_that_it_asks_for(servers):
    """It is in no run that is known of when the reads are packed."""

    def model_fn(features, labels):
        a, b = (tf1.get_variable(name, [], initializer=tf1.ones_initializer()) for name in "ab")
        old = a.value()
        with tf1.control_dependencies([old]):
            tf1.add_to_collection("late", a.assign_add(1.0).op)
        return ModelSpec(loss=old + 0.0 * (a + b), optimizer=tf1.train.GradientDescentOptimizer(0.0))

    run = Run(servers, build(servers, model_fn, PACK))
    late = run.ops.graph.get_collection("late")
    losses = [float(run.session.run([run.ops.loss, late])[0]) for _ in range(50)]
    assert losses == [1.0 + number for number in range(50)]


def test_a_synchronous_update_pulls_nothing_of_the_step_s(servers):
    """What both of them need is left to each."""

    def model_fn(features, labels):
        variables = [tf1.get_variable(f"v{number}", [2]) for number in range(4)]
        rate = 0.1 * tf1.get_variable("rate", initializer=np.float32(1.0), trainable=False)
        loss = tf.add_n([tf.reduce_sum(v * v) for v in variables]) + 0.0 * rate
        return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(rate))

    ops, *_ = build(servers, model_fn, PACK, "sync")
    (optimizer,) = ops.sync_optimizers
    assert not [op.name for op in transport.ancestors([optimizer.update_op]) if "pack_reads" in op.name]
    assert [op.name for op in transport.ancestors([ops.step, ops.loss]) if "pack_reads" in op.name]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_packing_changes_no_bit_of_a_synchronous_update(name):
    servers = lend_servers(num_ps=2, num_workers=1)  # the only worker, so that sums have one order
    found = []
    for pack_bytes in (0, PACK):
        run = Run(servers, build(servers, deep(OPTIMIZERS[name]), pack_bytes, "sync"))
        with run.serving():
            losses = [float(run.session.run([run.ops.loss, run.ops.step])[0]) for _ in range(6)]
        found.append((losses, run.session.run(run.variables)))
    (plain_losses, plain), (packed_losses, packed) = found
    assert plain_losses == packed_losses and len(set(plain_losses)) == 6
    for before, after in zip(plain, packed, strict=True):
        np.testing.assert_array_equal(before, after)


# Fewer bits on the way.


def rounded(values, dtype):
    return values.astype(tf.as_dtype(dtype).as_numpy_dtype).astype(np.float32)


def line(features, labels):
    """A small and a large weight, a table, and a variable that is not trained."""
    numbers = np.random.default_rng(1).normal(size=(2, 1200)).astype(np.float32)
    small, large = (tf1.get_variable(name, initializer=value[:size]) for name, value, size in
                    (("small", numbers[0], 3), ("large", numbers[1], 1200)))  # fmt: skip
    table = tf1.get_variable("table", initializer=numbers[0, :8].reshape(4, 2))
    fixed = tf1.get_variable("fixed", initializer=np.float32(1.2345678), trainable=False)
    third = tf1.get_variable("third", initializer=np.float32([0.3]))
    rows = tf.nn.embedding_lookup(table, [1, 3])
    loss = sum(tf.reduce_sum(v * v) for v in (small, large, rows, third)) / 3.0 + 0.0 * fixed
    tf1.add_to_collection("kept", fixed + 0.0)
    return ModelSpec(
        loss=loss + 0.0 * tf.reduce_sum(tf1.get_collection("kept")[0]),
        optimizer=tf1.train.GradientDescentOptimizer(0.1),
    )


@pytest.mark.parametrize("pack_bytes", [0, PACK])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_variables_and_gradients_are_rounded_on_the_way_and_nowhere_else(servers, dtype, pack_bytes):
    run = Run(servers, build(servers, line, pack_bytes, wire_dtype=dtype))
    before = dict(zip([v.op.name for v in run.variables], run.session.run(run.variables), strict=True))
    _, after = run.steps(1)
    for name in ("small", "large", "third"):
        seen = rounded(before[name], dtype)
        gradient = rounded(seen * 2 * np.float32(1 / 3), dtype)
        np.testing.assert_allclose(
            after[name], before[name] - np.float32(0.1) * gradient, rtol=3e-3, atol=1e-6
        )
        assert (after[name] != rounded(after[name], dtype)).any(), "what is kept has all its bits"
        exact = before[name] * (1 - 0.1 * 2 / 3)
        assert np.abs(after[name] - exact).max() > 0, "it was rounded"
    assert (after["table"][[0, 2]] == before["table"][[0, 2]]).all()
    np.testing.assert_allclose(after["table"][[1, 3]], before["table"][[1, 3]] * (1 - 0.2 / 3), rtol=3e-3)
    assert run.session.run(run.ops.graph.get_collection("kept")[0]) == np.float32(1.2345678)


def test_half_the_bytes_travel(servers):
    found = [
        Run(servers, build(servers, line, PACK, wire_dtype=dtype)).sent_types()
        for dtype in ("float32", "bfloat16")
    ]
    # fixed is pulled as it is; the table is read where it is, and its rows travel.
    assert found[0]["bfloat16"] == 0 and found[1]["bfloat16"] >= 4
    assert found[1]["float"] <= found[0]["float"] - 4


def test_a_gradient_that_is_too_large_for_its_type_is_found_where_it_is_made(servers):
    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.float32([1.0, 2.0]))
        return ModelSpec(loss=tf.reduce_sum(w) * 1e6, optimizer=tf1.train.GradientDescentOptimizer(0.1))

    run = Run(servers, build(servers, model_fn, PACK, wire_dtype="float16"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train found the gradient of w"):
        run.steps(1)
    assert run.session.run(run.variables[1]).tolist() == [1.0, 2.0]


class TestPushes:
    """What of the gradients of a script, made by TensorFlow's own optimizers, goes together."""

    def pushed(self, pack_bytes=PACK, num_trained=3, chained=False, bucket_bytes=BUCKET_BYTES):
        """(ops that the packed gradients go to, pieces by device)."""
        with tf1.Graph().as_default() as graph:
            with tf1.device("/job:ps/task:0"):
                variables = [tf1.get_variable(name, [2]) for name in "abc"[:num_trained]]
            with tf1.device("/job:ps/task:1"):
                variables.append(tf1.get_variable("d", [2]))
            gradients = []
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            with tf1.device("/job:worker/task:0"):
                for number, variable in enumerate(variables):
                    done = [optimizer.apply_gradients(gradients[-1:])] if chained and gradients else []
                    with tf1.control_dependencies(done):
                        gradients.append((tf.exp(tf.fill([2], float(number))), variable))
                optimizer.apply_gradients(gradients[-1:] if chained else gradients)
            pack(
                graph,
                [tf1.get_collection(tf1.GraphKeys.TRAIN_OP)],
                "/job:worker/task:0",
                pack_bytes,
                bucket_bytes,
            )
            ops = [op for op in graph.get_operations() if op.type == "ResourceApplyGradientDescent"]
            return [("pack_pushes" in op.inputs[2].op.name, op.inputs[2].op.device) for op in ops]

    def test_only_those_of_one_ps(self):
        assert [is_packed for is_packed, _ in self.pushed()] == [True, True, True, False]
        assert self.pushed()[0][1] == "/job:ps/task:0"
        assert not any(is_packed for is_packed, _ in self.pushed(num_trained=1))

    def test_none_if_none_is_small(self):
        for pack_bytes in (0, 7):
            assert not any(is_packed for is_packed, _ in self.pushed(pack_bytes))

    def test_none_that_comes_of_another_s_update(self):
        """Together they would wait for themselves."""
        assert not any(is_packed for is_packed, _ in self.pushed(chained=True))

    def test_no_more_than_a_bucket_holds(self):
        assert [is_packed for is_packed, _ in self.pushed(bucket_bytes=16)] == [True, True, False, False]
