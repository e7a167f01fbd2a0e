"""Which variables become one, that nothing about them changes by it, and that everything else finds its piece."""

import json
import os

import numpy as np
import pytest
from in_process import lend_servers
from stepping import OPTIMIZERS, PACK, Run, build, deep

from ps_train import alike, fusing, transport
from ps_train.choices import BUCKET_BYTES
from ps_train.compat import tf, tf1
from ps_train.model import ModelSpec

pytestmark = pytest.mark.graph
FUSE = 4096
ALL_OPTIMIZERS = {
    **OPTIMIZERS,
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.05),
    "adadelta": lambda: tf1.train.AdadeltaOptimizer(0.5),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, momentum=0.5),
    "centered": lambda: tf1.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.05, l1_regularization_strength=0.01),
}


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=1)


def assert_same(plain, other, rtol=0.0):
    """Losses and variables, bit for bit if `rtol` is 0."""
    np.testing.assert_allclose(other[0], plain[0], rtol)
    assert len(set(plain[0])) == len(plain[0])
    assert plain[1].keys() == other[1].keys()
    for key in plain[1]:
        np.testing.assert_allclose(other[1][key], plain[1][key], rtol, atol=rtol, err_msg=key)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_fusing_changes_no_bit(servers, name):
    model_fn = deep(ALL_OPTIMIZERS[name])
    plain = Run(servers, build(servers, model_fn)).steps(8)
    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    # Of these two, TensorFlow computes a reciprocal square root, which for the last elements of a tensor it does otherwise.
    assert_same(plain, run.steps(8), 1e-6 if name in ("adagrad", "adadelta") else 0.0)
    applied = [op for op in updates(run) if "fused" in op.name]
    assert len(applied) == 2, "one for each ps"
    # w3, b3 and w4 are too large, shift is alone of its type; the rest, with their slots, are not.
    assert num_pieces(run) == 9 * sum(t.dtype == tf.resource for t in applied[0].inputs)


def num_pieces(run):
    """How many variables and slots are pieces of flat ones."""
    return sum(len(pieces) for _, *pieces in json.loads(run.fused.layout))


def updates(run):
    """The ops of a step that change variables by a gradient."""
    return [op for op in fusing.ancestors([run.ops.step]) if op.type.startswith("ResourceApply")]


def test_of_a_step_one_tensor_goes_each_way(servers):
    run = Run(servers, build(servers, deep(), PACK, fuse_bytes=1 << 20))
    sends = run.sends()
    # All that is trained of float32 is one; shift and turns are by themselves.
    assert sum(sends[f"ps:{number}>worker:0"] for number in (0, 1)) == 2 + 2
    assert len(updates(run)) == 3


def test_buckets_share_out_what_is_joined(servers):
    """Each has a flat variable and a gradient, which comes joined."""
    plain = Run(servers, build(servers, deep())).steps(8)
    run = Run(servers, build(servers, deep(), PACK, fuse_bytes=FUSE, bucket_bytes=700))
    assert_same(plain, run.steps(8))
    applied = [op for op in updates(run) if "fused" in op.name]
    # A weight of 12x12 and some biases fill a bucket; two such weights lie on each ps, of which one stays alone in its bucket.
    assert len(applied) == 3
    assert all(4 * op.inputs[-1].shape.num_elements() <= 700 for op in applied)
    joined = [
        op for op in transport.ancestors([run.ops.step]) if op.type == "ConcatV2" and "fused" in op.name
    ]
    assert not [op.name for op in joined if transport.is_ps(op.device)], "gradients come joined"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fusing_changes_no_bit_of_a_synchronous_update(name):
    servers = lend_servers(num_ps=2, num_workers=1)  # the only worker, so that sums have one order
    found = []
    for fuse_bytes in (0, FUSE):
        run = Run(servers, build(servers, deep(OPTIMIZERS[name]), PACK, "sync", fuse_bytes=fuse_bytes))
        with run.serving():
            losses = [float(run.session.run([run.ops.loss, run.ops.step])[0]) for _ in range(6)]
        values = run.session.run(run.variables)
        found.append((losses, dict(zip([v.op.name for v in run.variables], values, strict=True))))
    assert num_pieces(run) >= 9
    assert_same(*found)


def on_one_ps(names, value):
    with tf1.device("/job:ps/task:0"):
        return [tf1.get_variable(name, initializer=value) for name in names]


def two(*more):
    """Two variables of one ps that are updated alike, and what else is to be done with them."""

    def model_fn(features, labels):
        a, b = on_one_ps("ab", np.float32([1.0, 2.0, 3.0]))
        for one in more:
            one(a, b)
        return ModelSpec(loss=tf.reduce_sum(a * b), optimizer=tf1.train.MomentumOptimizer(0.1, 0.5))

    return model_fn


def names(run):
    """Of the variables that are pieces."""
    return {name for flat in json.loads(run.fused.layout) for name in flat}


LEFT_ALONE = {
    "assigned": lambda a, b: tf1.add_to_collection("x", a.assign(b)),
    "read by rows": lambda a, b: tf1.add_to_collection("x", tf.gather(a, [0])),
    "in a loop": lambda a, b: tf1.add_to_collection("x", tf.while_loop(lambda i: i < 3.0, lambda i: i + a[0], [0.0])),
    "in a condition": lambda a, b: tf1.add_to_collection("x", tf.cond(b[0] > 0, lambda: a + 1.0, lambda: a)),
    "in a function": lambda a, b: tf1.add_to_collection("x", tf.function(lambda: a + 1.0)()),
    "updated twice": lambda a, b: tf1.add_to_collection(
        "x", tf1.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.ones([3]), a)])
    ),
    "by a Saver of one's own": lambda a, b: tf1.train.Saver([a]),
}  # fmt: skip


@pytest.mark.parametrize("use", LEFT_ALONE)
def test_a_variable_that_is_used_otherwise_is_left_alone(servers, use):
    plain = Run(servers, build(servers, two(LEFT_ALONE[use]))).steps(3)
    run = Run(servers, build(servers, two(LEFT_ALONE[use]), PACK, fuse_bytes=FUSE))
    assert run.fused is None, "b is alone then"
    assert_same(plain, run.steps(3))


def test_updates_of_another_rate_are_apart(servers):
    def model_fn(features, labels):
        a, b, c, d = on_one_ps("abcd", np.float32([1.0, 2.0]))
        loss = tf.reduce_sum(a * b + c * d)
        slow, fast = (tf1.train.GradientDescentOptimizer(rate) for rate in (0.1, 0.2))
        ops = [
            slow.minimize(loss, var_list=[a, c], global_step=tf1.train.get_global_step()),
            fast.minimize(loss, var_list=[b, d]),
        ]
        return ModelSpec(loss=loss, train_op=tf.group(*ops))

    plain = Run(servers, build(servers, model_fn)).steps(3)
    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert_same(plain, run.steps(3))
    assert len(updates(run)) == 2 and num_pieces(run) == 4


def test_updates_of_which_one_waits_for_another_are_apart(servers):
    """As one they would wait for themselves."""

    def model_fn(features, labels):
        with tf1.device("/job:ps/task:0"):
            a, b = on_one_ps("ab", np.float32([1.0, 2.0]))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        first = optimizer.apply_gradients([(a.read_value() * b, a)], tf1.train.get_global_step())
        with tf1.control_dependencies([first]):
            second = optimizer.apply_gradients([(a.read_value() * b, b)])
        return ModelSpec(loss=tf.reduce_sum(a * b), train_op=second)

    plain = Run(servers, build(servers, model_fn)).steps(3)
    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert run.fused is None
    assert_same(plain, run.steps(3))


def test_what_runs_one_update_runs_no_other(servers):
    """As a GAN's discriminator may be trained more often than the generator, in a hook."""

    def model_fn(features, labels):
        a, b, c, d = on_one_ps("abcd", np.float32([1.0, 2.0]))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        loss = tf.reduce_sum(a + b + c + d)
        first = optimizer.minimize(loss, tf1.train.get_global_step(), var_list=[a, b])
        second = optimizer.minimize(loss, var_list=[c, d])
        tf1.add_to_collection("second", second)
        return ModelSpec(loss=loss, train_op=tf.group(first, second))

    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert len(json.loads(run.fused.layout)) == 2
    run.session.run(run.ops.graph.get_collection("second"))
    values = dict(zip([v.op.name for v in run.variables], run.session.run(run.variables), strict=True))
    assert values["a"].tolist() == values["b"].tolist() == [1.0, 2.0]
    np.testing.assert_allclose([values["c"], values["d"]], [[0.9, 1.9]] * 2, rtol=1e-6)


def test_a_gradient_of_no_known_shape(servers):
    def model_fn(features, labels):
        a, b = on_one_ps("ab", np.float32([1.0, 2.0]))
        gradients = [
            (tf1.placeholder_with_default(tf.ones([2]) * k, None), v) for k, v in ((1.0, a), (2.0, b))
        ]
        update = tf1.train.GradientDescentOptimizer(0.5).apply_gradients(
            gradients, tf1.train.get_global_step()
        )
        return ModelSpec(loss=tf.reduce_sum(a * b), train_op=update)

    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    _, values = run.steps(1)
    assert {"a", "b"} <= names(run)
    assert values["a"].tolist() == [0.5, 1.5] and values["b"].tolist() == [0.0, 1.0]


def test_groups_that_wait_for_one_another_are_apart():
    class Op:
        def __init__(self, *inputs):
            self.inputs, self.control_inputs, self.type = (
                [Tensor(op) for op in inputs],
                [],
                "ResourceApplyAdam",
            )

    class Tensor:
        def __init__(self, op):
            self.op = op

    def update(op):
        return alike.Update(op, {}, {}, Tensor(op))

    a1, b2, c = Op(), Op(), Op()
    a2, b1 = Op(a1), Op(b2)
    groups = [[alike.Update(op, {}, {}, t) for op, t in pairs] for pairs in (
        [(a1, Tensor(Op())), (b1, Tensor(b2))], [(a2, Tensor(a1)), (b2, Tensor(Op()))], [(c, Tensor(Op()))],
    )]  # fmt: skip
    assert alike.without_cycles(groups) == groups[2:]


def test_reads_that_wait_for_the_update_see_it(servers):
    def model_fn(features, labels):
        a, b = on_one_ps("ab", np.float32([1.0, 2.0]))
        loss = tf.reduce_sum(a * b)
        update = tf1.train.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=tf1.train.get_global_step()
        )
        with tf1.control_dependencies([update]):
            tf1.add_to_collection("after", [a.read_value() + 0.0, b.read_value() + 0.0])
        return ModelSpec(loss=loss, train_op=update)

    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert {"a", "b"} <= names(run)
    (after,) = run.ops.graph.get_collection("after")
    a = b = np.float32([1.0, 2.0])
    for _ in range(3):
        a, b = a - np.float32(0.1) * b, b - np.float32(0.1) * a
        np.testing.assert_allclose(run.session.run(after), [a, b], rtol=1e-6)


def test_variables_can_be_fetched_fed_and_loaded(servers):
    run = Run(servers, build(servers, two(), PACK, fuse_bytes=FUSE))
    a, b, slot = (v for v in run.variables if v.op.name in ("a", "b", "a/Momentum"))
    assert {"a", "b", "a/Momentum", "b/Momentum"} <= names(run)
    run.steps(1)
    start = np.float32([1.0, 2.0, 3.0])
    for fetch in (b, b.op.name + "/Read/ReadVariableOp:0"):
        np.testing.assert_allclose(run.session.run(fetch), start * 0.9, rtol=1e-6)
    np.testing.assert_allclose(run.session.run(slot), start, rtol=1e-6)
    with run.session.as_default():
        a.load(np.float32([7.0, 8.0, 9.0]), run.session)
        slot.load(np.float32([0.0, 0.0, 0.0]), run.session)
    assert run.session.run(a).tolist() == [7.0, 8.0, 9.0]
    np.testing.assert_allclose(run.session.run(b), start * 0.9, rtol=1e-6)
    run.steps(1)
    np.testing.assert_allclose(run.session.run(a), np.float32([7.0, 8.0, 9.0]) - 0.1 * 0.9 * start, rtol=1e-6)
    run.session.run(b.initializer)
    assert run.session.run(b).tolist() == start.tolist()


def test_a_group_of_initializers_resets_the_pieces(servers):
    def reset(a, b):
        tf1.add_to_collection("reset", tf1.variables_initializer([a]))

    run = Run(servers, build(servers, two(reset), PACK, fuse_bytes=FUSE))
    assert {"a", "b"} <= names(run)
    run.steps(2)
    run.session.run(run.ops.graph.get_collection("reset"))
    a, b = (run.session.run(v) for v in run.variables if v.op.name in ("a", "b"))
    assert a.tolist() == [1.0, 2.0, 3.0] and (b < [1.0, 2.0, 3.0]).all()


def test_a_variable_that_another_s_initial_value_waits_for_is_left_alone(servers):
    def model_fn(features, labels):
        a, b = on_one_ps("ab", np.float32([1.0, 2.0]))
        with tf1.device("/job:ps/task:0"), tf1.control_dependencies([a.initializer]):
            c = tf1.get_variable("c", initializer=tf.identity(np.float32([3.0, 4.0])))
        d = tf1.get_variable("d", initializer=np.float32([3.0, 4.0]))
        del d
        return ModelSpec(loss=tf.reduce_sum(a * b * c), optimizer=tf1.train.GradientDescentOptimizer(0.1))

    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert "a" not in names(run) and "b" in names(run)


def test_the_graph_can_be_frozen(servers):
    run = Run(servers, build(servers, two(lambda a, b: tf.add(a, b, name="sum")), PACK, fuse_bytes=FUSE))
    run.steps(1)
    frozen = tf1.graph_util.convert_variables_to_constants(run.session, run.ops.graph.as_graph_def(), ["sum"])
    for node in frozen.node:
        node.device = ""
    with tf1.Graph().as_default(), tf1.Session() as session:
        (total,) = tf1.import_graph_def(frozen, return_elements=["sum:0"], name="")
        np.testing.assert_allclose(session.run(total), np.float32([1.8, 3.6, 5.4]), rtol=1e-6)


def test_what_the_pieces_of_a_gradient_wait_for_is_run(servers):
    def model_fn(features, labels):
        a, b = on_one_ps("ab", np.float32([1.0, 2.0]))
        turns = tf1.get_variable("turns", initializer=0, trainable=False)
        with tf1.device("/job:ps/task:0"):
            whole = tf.split(tf.ones([4]), [2, 2])
            with tf1.control_dependencies([turns.assign_add(1).op]):
                gradients = [tf.reshape(piece, [2]) for piece in whole]
        optimizer = tf1.train.GradientDescentOptimizer(0.5)
        update = optimizer.apply_gradients(zip(gradients, (a, b), strict=True), tf1.train.get_global_step())
        return ModelSpec(loss=tf.reduce_sum(a * b), train_op=update)

    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    assert run.fused is not None and run.steps(3)[1]["turns"] == 3


def test_a_saver_writes_the_names_and_values_of_the_variables(servers, tmp_path):
    values = []
    for fuse_bytes in (0, FUSE):
        ops, _, init = build(servers, deep())
        with ops.graph.as_default():
            with tf1.device("/job:worker/task:0/device:CPU:0"):
                saver = tf1.train.Saver()
            restore = ops.graph.get_operation_by_name(saver.saver_def.restore_op_name)
            fused = fusing.fuse(
                ops.graph,
                [[ops.step, ops.loss]],
                "/job:worker/task:0",
                fuse_bytes,
                BUCKET_BYTES,
                cold=[init, restore],
            )
        run = Run(servers, (ops, fused, init))
        assert (fused is None) == (fuse_bytes == 0)
        run.steps(3)
        path = saver.save(run.session, os.fspath(tmp_path / str(fuse_bytes)), write_meta_graph=False)
        reader = tf.train.load_checkpoint(path)
        values.append({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
        run.steps(2)
        saver.restore(run.session, path)
        if fused is not None:
            run.load()
        again = dict(zip([v.op.name for v in run.variables], run.session.run(run.variables), strict=True))
        for name, value in values[-1].items():
            np.testing.assert_array_equal(value, again[name], name)
    assert values[0].keys() == values[1].keys() and "w0/Adam_1" in values[0]
    for name, value in values[0].items():
        np.testing.assert_array_equal(value, values[1][name], name)


def test_who_missed_a_read_gets_an_error_and_no_old_value(servers):
    run = Run(servers, build(servers, two(), PACK, fuse_bytes=FUSE))
    handle = next(v for v in run.variables if v.op.name == "a").handle
    with run.ops.graph.as_default(), tf1.device(handle.device):
        cold = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        sum_of_three = cold + tf.ones([3])
    with pytest.raises(tf.errors.InvalidArgumentError):
        run.session.run(sum_of_three)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_flat_variables_are_rounded_on_the_way_as_others_are(servers, dtype):
    found = [
        Run(servers, build(servers, deep(), PACK, wire_dtype=dtype, fuse_bytes=fuse_bytes)).steps(5)
        for fuse_bytes in (0, FUSE)
    ]
    assert_same(*found)


def test_all_workers_make_the_same_pieces():
    servers = lend_servers(num_ps=2, num_workers=3)
    layouts = []
    for index in range(3):
        for update in ("async", "sync"):
            _, fused, _ = build(servers, deep(), PACK, update, fuse_bytes=FUSE, index=index)
            layouts.append(fused.layout)
    assert len(set(layouts)) == 1


def test_keras_layers_become_pieces(servers):
    def model_fn(features, labels):
        hidden = tf.keras.layers.Dense(12, activation="relu")(features)
        hidden = tf.keras.layers.BatchNormalization()(hidden, training=True)
        logits = tf.keras.layers.Dense(1)(hidden)[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
        return ModelSpec(loss=loss, optimizer=tf1.train.AdamOptimizer(0.05))

    tf.keras.utils.set_random_seed(1)
    tf.keras.backend.clear_session()
    plain = Run(servers, build(servers, model_fn)).steps(4)
    tf.keras.utils.set_random_seed(1)
    tf.keras.backend.clear_session()
    run = Run(servers, build(servers, model_fn, PACK, fuse_bytes=FUSE))
    found = run.steps(4)
    assert plain[0] == found[0]
    # Of the six that are trained, the one of the last bias is alone on its ps or not: at least both layers' weights are pieces.
    assert num_pieces(run) >= 3 * 4
