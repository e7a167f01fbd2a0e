"""Local SGD: what a round of local steps leaves on the ps, against NumPy and against the same optimizer in one process."""

import numpy as np
import pytest
from in_process import lend_servers
from stepping import OPTIMIZERS, PACK, Run, build, deep, input_fn

from ps_train import fingerprint, task_context
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.inputs import ITERATORS
from ps_train.model import ModelSpec
from ps_train.restoring import restore
from ps_train.updates import rules
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.local import LocalOptimizer

pytestmark = pytest.mark.graph
WAYS = {"apart": (0, 0), "packed": (PACK, 0), "fused": (PACK, 1 << 20)}
K = 3
RATE = 0.0625  # the same in float32, in which TensorFlow has it


@pytest.fixture
def servers():
    """For graphs that are not run."""
    return lend_servers(num_ps=1, num_workers=2)


def run_on_own_servers(model_fn, *args, num_ps=2, **kwargs):
    """Copies are a worker's, by the names of their places in the graph: one graph for each process, as in a job."""
    servers = lend_servers(num_ps=num_ps, num_workers=1)
    return Run(servers, build(servers, model_fn, *args, **{"local_steps": K, **kwargs}))


def line(optimizer=lambda: tf1.train.GradientDescentOptimizer(RATE), with_own_op=False):
    """A line through points in float64; its read by something else, a moving average and a counter of batches."""

    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.linspace(-1, 1, 12))
        b = tf1.get_variable("b", initializer=np.float64(0.5))
        turns = tf1.get_variable("turns", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, turns.assign_add(1).op)
        tf1.add_to_collection("others", w.read_value() + 0.0)
        error = tf.linalg.matvec(tf.cast(features, tf.float64), w) + b - tf.cast(labels, tf.float64)
        loss = tf.reduce_mean(tf.square(error))
        if not with_own_op:
            return ModelSpec(loss=loss, optimizer=optimizer())
        wrapped = rules.DistributedOptimizer(optimizer())
        step = tf1.train.get_global_step()
        return ModelSpec(loss=loss, train_op=wrapped.minimize(loss, global_step=step))

    return model_fn


def by_numpy(count, w=None, b=0.5):
    """(losses, w, b) after so many steps of gradient descent on the line."""
    numbers = np.random.default_rng(0).normal(size=(64, 12)).astype(np.float32).astype(np.float64)
    w, losses = np.linspace(-1, 1, 12) if w is None else w, []
    for step in range(count):
        x = numbers[np.arange(step * 16, step * 16 + 16) % 64]
        error = x @ w + b - (np.float32(x).sum(1) > 0)
        losses.append((error**2).mean())
        w, b = w - RATE * 2 * x.T @ error / 16, b - RATE * 2 * error.mean()
    return losses, w, b


def in_one_process(model_fn, count):
    """Losses and variables of the same model and data, as TensorFlow trains them with no cluster."""
    task_context._current.clear()
    with tf1.Graph().as_default(), tf1.Session() as session:
        features, labels = tf1.data.make_one_shot_iterator(input_fn(None)).get_next()
        spec = model_fn(features, labels)
        train_op = spec.optimizer.minimize(spec.loss)
        session.run(tf1.global_variables_initializer())
        losses = [session.run([train_op, spec.loss])[1] for _ in range(count)]
        return losses, {v.op.name: session.run(v) for v in tf1.trainable_variables()}


def copies_of(run):
    """The LocalOptimizer; what counts staleness is another of ACCUMULATIONS."""
    (found,) = (one for one in run.ops.graph.get_collection(ACCUMULATIONS) if isinstance(one, LocalOptimizer))
    return found


def rounds_of(run, update, count, batches=K):
    if update == "async":
        return run.local_rounds(count, batches)
    with run.serving():
        return run.local_rounds(count, batches)


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("with_own_op", [False, True])
def test_rounds_of_gradient_descent_are_numpy_s(update, with_own_op):
    run = run_on_own_servers(line(with_own_op=with_own_op), PACK, update)
    found, values = rounds_of(run, update, 4)
    losses, w, b = by_numpy(4 * K)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    np.testing.assert_allclose(values["w"], w, rtol=1e-10)
    np.testing.assert_allclose(values["b"], b, rtol=1e-10)
    assert values["global_step"] == 4
    other = run_on_own_servers(line(with_own_op=with_own_op), PACK, update, local_steps=1, accumulate_steps=K)
    assert values["turns"] == rounds_of(other, update, 4)[1]["turns"]
    assert values["turns"] == (4 * K if update == "async" and not with_own_op else 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_trains_as_one_process_does(name):
    """The slots are kept from round to round, on the worker."""
    run = run_on_own_servers(line(OPTIMIZERS[name]), PACK, fuse_bytes=PACK)
    found, values = run.local_rounds(4, K)
    losses, expected = in_one_process(line(OPTIMIZERS[name]), 4 * K)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-10)
    assert values.keys() == {"global_step", "w", "b", "turns"}
    local = copies_of(run)
    (w,) = (variable for variable in run.variables if variable.op.name == "w")
    slots = [local.get_slot(w, slot) for slot in local.get_slot_names()]
    assert len(slots) == {"sgd": 0, "momentum": 1, "adam": 2}[name]
    assert all("/job:worker" in slot.device and slot.shape == w.shape for slot in slots)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_ways_come_to_the_same(name):
    plain, *others = (
        run_on_own_servers(deep(OPTIMIZERS[name]), pack_bytes, fuse_bytes=fuse_bytes).local_rounds(3, K)
        for pack_bytes, fuse_bytes in WAYS.values()
    )
    for losses, values in others:
        assert losses == plain[0] and len(set(losses)) == 3 * K
        for key, value in values.items():
            np.testing.assert_array_equal(value, plain[1][key], key)


def test_variables_are_pulled_once_a_round():
    run = run_on_own_servers(deep(), PACK, local_steps=2)
    local = copies_of(run)
    step, add, start = (run.sends(fetches) for fetches in ([run.ops.step], [local.add], [local.start]))
    # A counter that is not trained is of the model, and pulled and pushed for each batch.
    assert [pulls(one) for one in (step, add, start)] == [1, 1, 2 + 3 + 1]
    assert pushes(add) == 1 and pushes(step) > 1 + 2


def pulls(sends):
    return sum(count for way, count in sends.items() if way.startswith("ps") and way.endswith("worker:0"))


def pushes(sends):
    return sum(count for way, count in sends.items() if way.startswith("worker"))


def test_others_see_what_the_ps_has():
    run = run_on_own_servers(line(), PACK)
    local = copies_of(run)
    (other,) = run.ops.graph.get_collection("others")
    run.session.run(local.start)
    for _ in range(K - 1):
        run.session.run(local.add)
        np.testing.assert_array_equal(run.session.run(other), np.linspace(-1, 1, 12))
    run.steps(1)
    np.testing.assert_allclose(run.session.run(other), by_numpy(K)[1], rtol=1e-10)


def test_a_round_that_was_broken_off_leaves_nothing():
    run = run_on_own_servers(line())
    local = copies_of(run)
    run.session.run(local.start)
    run.session.run(local.add)
    run.session.run(build_init_of_input(run))
    found, _ = run.local_rounds(2, K)
    np.testing.assert_allclose(found, by_numpy(2 * K)[0], rtol=1e-6)


def build_init_of_input(run):
    return run.ops.graph.get_collection(ITERATORS)


def test_a_difference_travels_as_a_gradient_does():
    """It starts from what arrived, and the ps keeps all its bits."""

    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.float32([1.2345678, -0.7654321]))
        return ModelSpec(loss=tf.reduce_sum(w * w), optimizer=tf1.train.GradientDescentOptimizer(0.25))

    _, values = run_on_own_servers(model_fn, PACK, wire_dtype="bfloat16").local_rounds(1, K)
    start = rounded(np.float32([1.2345678, -0.7654321]))
    difference = rounded(start * np.float32(1 - 0.5**K))
    np.testing.assert_array_equal(values["w"], np.float32([1.2345678, -0.7654321]) - difference)


def rounded(values):
    return values.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)


def test_what_topk_leaves_out_of_a_difference_comes_with_the_next():
    numbers = np.arange(1, 2049, dtype=np.float64)

    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.zeros(2048))
        rate = tf1.train.GradientDescentOptimizer(1.0)
        return ModelSpec(loss=tf.reduce_sum(w * numbers), optimizer=rate)

    run = run_on_own_servers(model_fn, topk=0.5)
    _, values = run.local_rounds(1, K)
    np.testing.assert_array_equal(values["w"], np.where(numbers > 1024, -K * numbers, 0))
    _, values = run.local_rounds(1, K)
    waiting = np.where(numbers > 1024, K * numbers, 2 * K * numbers)
    is_large = waiting >= np.sort(waiting)[-1024]
    np.testing.assert_array_equal(
        values["w"], np.where(numbers > 1024, -K * numbers, 0) - np.where(is_large, waiting, 0)
    )


def test_nan_in_mid_round_reaches_no_ps():
    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.float32([1.0, 4.0]))
        return ModelSpec(loss=tf.reduce_sum(tf.sqrt(w)), optimizer=tf1.train.GradientDescentOptimizer(3.0))

    run = run_on_own_servers(model_fn)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train found the loss : Tensor had NaN"):
        run.local_rounds(1, K)
    assert run.steps(0)[1]["w"].tolist() == [1.0, 4.0]


def test_a_difference_is_checked_itself():
    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=np.float32([-3e38]))
        return ModelSpec(loss=tf.reduce_sum(w), optimizer=tf1.train.GradientDescentOptimizer(3e38))

    run = run_on_own_servers(model_fn, local_steps=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train found"):
        run.local_rounds(1, 1)
    assert run.steps(0)[1]["w"] == np.float32(-3e38)


def two(make_train_op):
    """Two optimizers, each of a variable that the other's loss is made of, too."""

    def model_fn(features, labels):
        a, b = (
            tf1.get_variable(name, initializer=np.float64([1.0, 2.0]) * k) for name, k in (("a", 1), ("b", 2))
        )
        make = [rules.DistributedOptimizer(tf1.train.GradientDescentOptimizer(RATE)) for _ in range(2)]
        loss = tf.reduce_sum(a * b)
        step = tf1.train.get_global_step()
        return ModelSpec(loss=loss, train_op=make_train_op(make, loss, -loss, [a], [b], step))

    return model_fn  # fmt: skip


def together(make, loss, other, a, b, step):
    return tf.group(make[0].minimize(loss, step, a), make[1].minimize(other, None, b))


def one_by_one(make, loss, other, a, b, step):
    with tf1.control_dependencies([make[0].minimize(loss, step, a)]):
        return make[1].minimize(other, None, b)


def both_of_one(make, loss, other, a, b, step):
    return tf.group(make[0].minimize(loss, step, a), make[1].minimize(other, None, a))


def test_two_optimizers_train_with_one_another_s_copies():
    run = run_on_own_servers(two(together), PACK)
    losses, values = run.local_rounds(2, K)
    a, b, expected = np.float64([1.0, 2.0]), np.float64([2.0, 4.0]), []
    for _ in range(2 * K):
        expected.append((a * b).sum())
        a, b = a - RATE * b, b + RATE * a
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(values["a"], a, rtol=1e-12)
    np.testing.assert_allclose(values["b"], b, rtol=1e-12)


def test_a_loop_reads_the_copy():
    def model_fn(features, labels):
        a = tf1.get_variable("a", initializer=np.float64(1.1))
        b = tf1.get_variable("b", initializer=np.float64(0.7))
        _, power = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * a), (0, b))
        chosen = tf.cond(features[0, 0] > 1e9, lambda: b * b, lambda: b * power)
        return ModelSpec(loss=chosen, optimizer=tf1.train.GradientDescentOptimizer(RATE))

    losses, values = run_on_own_servers(model_fn, PACK, fuse_bytes=PACK).local_rounds(2, K)
    a, b, expected = 1.1, 0.7, []
    for _ in range(2 * K):
        expected.append(b * b * a**3)
        a, b = a - RATE * 3 * b * b * a**2, b - RATE * 2 * b * a**3
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose([values["a"], values["b"]], [a, b], rtol=1e-10)


# What there can be no copy of.


def rows(features, labels):
    table = tf1.get_variable("table", [8, 2])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 5]))
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))


def rows_and_all(features, labels):
    table = tf1.get_variable("table", [8, 2])
    found = tf.stop_gradient(tf.nn.embedding_lookup(table, [1, 5]))
    loss = tf.reduce_sum(found) * tf.reduce_sum(table * table)
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))


def free(features, labels):
    found = tf1.get_variable(
        "free", initializer=tf1.placeholder_with_default(tf.ones([2]), None), validate_shape=False
    )
    return ModelSpec(loss=tf.reduce_sum(found), optimizer=tf1.train.GradientDescentOptimizer(0.1))


def old_kind(features, labels):
    old = tf1.get_variable("old", initializer=np.float32(1.0), use_resource=False)
    return ModelSpec(loss=old * old, optimizer=tf1.train.GradientDescentOptimizer(0.1))


def unwrapped(features, labels):
    w = tf1.get_variable("w", initializer=np.float32(1.0))
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    return ModelSpec(loss=w * w, train_op=optimizer.minimize(w * w, tf1.train.get_global_step()))


@pytest.mark.parametrize(
    ("model_fn", "text"),
    [
        (rows, "The gradient of table is sparse, and with --local_steps a worker would copy and send all of table."),
        (rows_and_all, "table is used by embedding_lookup (ResourceGather), which with --local_steps cannot take"),
        (free, "free has no known shape, so that no worker can have a copy of it. Leave out --local_steps."),
        (old_kind, "old is no resource variable, so that no worker can have a copy of it. Leave out --local_steps."),
        (unwrapped, "its own train_op is by an optimizer that --local_steps does not reach. Wrap it: ps_train.Distr"),
        (two(both_of_one), "a is trained by two optimizers, and with --local_steps its difference would be pushed twice"),
        (two(one_by_one), "one optimizer's gradients wait for another's update, and with --local_steps there is none"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_by_copies(servers, model_fn, text):
    with pytest.raises(ModelError) as caught:
        build(servers, model_fn, local_steps=K)
    assert text in str(caught.value)


# Beside other jobs.


def test_one_local_step_is_none(servers):
    build(servers, line(), local_steps=1)
    assert type(rules.DistributedOptimizer(tf1.train.AdamOptimizer())) is rules.AsyncOptimizer


def test_all_workers_have_to_do_as_many(servers):
    mine, theirs = (
        fingerprint.describe(
            build(servers, line(), local_steps=count)[0].graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES),
            task_context.current(),
        )
        for count in (1, K)
    )
    assert fingerprint.differences(mine, theirs, "worker:1") == [
        "worker:1 has --local_steps=1 and the others have --local_steps=3. Give all the same."
    ]


def test_checkpoints_have_no_slots(tmp_path):
    """A job with slots on the ps cannot go on from them, and is told why; the other way round, slots start anew."""
    paths, runs = [], []
    for count in (1, K):
        run = run_on_own_servers(line(OPTIMIZERS["momentum"]), local_steps=count)
        with run.ops.graph.as_default():
            saver = tf1.train.Saver(run.variables)
        paths.append(saver.save(run.session, str(tmp_path / f"model{count}.ckpt")))
        runs.append((run, saver))
    restore(runs[1][0].session, runs[1][1], paths[0])
    with pytest.raises(ModelError) as caught:
        restore(runs[0][0].session, runs[0][1], paths[1])
    assert str(caught.value) == (
        f"{paths[1]} does not fit the model: b/Momentum is not in it; w/Momentum is not in it. Use another --train_dir, or "
        "the model and --model_params that wrote it. No --model is given, so this is the built-in model. If it is of a job with --local_steps, whose workers keep what the "
        "optimizer remembers: go on with --local_steps."
    )
