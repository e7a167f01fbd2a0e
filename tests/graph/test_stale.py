"""Old gradients: which are dropped, that nothing of them is applied, and by what the rate is divided."""

import numpy as np
import pytest
from in_process import lend_servers
from stepping import PACK, Run, build

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.model import ModelSpec
from ps_train.staleness import Staleness
from ps_train.transport import task_of
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.rate import scale_rate
from ps_train.updates.stale import DROPPED, GATES

pytestmark = pytest.mark.graph
WAYS = {"apart": (0, 0), "packed": (PACK, 0), "fused": (PACK, 1 << 20)}
START = np.float32([1.0, 2.0, 3.0])


class Others:
    """Other workers' updates, made while a step computes: so many at each step."""

    def __init__(self):
        self.session = self.add = self.by = None
        self.counts = []

    def attach(self, run):
        graph = tf1.Graph()
        with graph.as_default(), tf1.device("/job:ps/task:0"):
            step = tf1.get_variable("global_step", [], tf.int64, use_resource=True)
            self.by = tf1.placeholder(tf.int64, [])
            self.add = step.assign_add(self.by).op
        self.session = tf1.Session(run.session.sess_str, graph=graph)

    def update(self, _):
        count = self.counts.pop(0) if self.counts else 0
        if count:
            self.session.run(self.add, {self.by: count})
        return np.float32(1)


def model(others, optimizer, is_sparse=False):
    def model_fn(features, labels):
        with tf1.device("/job:ps/task:0"):
            a = tf1.get_variable("a", initializer=START)
        with tf1.device("/job:ps/task:1"):
            b = tf1.get_variable("b", initializer=START)
            c = tf1.get_variable("c", initializer=START)
        if is_sparse:
            a = tf.gather(a, [0, 2])
        loss = 2 * tf.reduce_sum(a) + tf.reduce_sum(b) + tf.reduce_sum(c)
        # Others' updates come when all is pulled, and the gradient waits for them.
        factor = tf.ensure_shape(tf.numpy_function(others.update, [loss], tf.float32), [])
        return ModelSpec(loss=loss * factor, optimizer=optimizer())

    return model_fn


def sgd(rate=0.5):
    return lambda: tf1.train.GradientDescentOptimizer(rate)


def make(optimizer, way="apart", is_sparse=False, num_workers=1, **settings):
    """(Run, Others) of one worker with two ps."""
    servers, others = lend_servers(num_ps=2, num_workers=num_workers), Others()
    pack_bytes, fuse_bytes = WAYS[way]
    built = build(servers, model(others, optimizer, is_sparse), pack_bytes, fuse_bytes=fuse_bytes, **settings)
    run = Run(servers, built)
    assert (run.fused is not None) == (way == "fused")
    others.attach(run)
    return run, others


def step(run, others, count=0):
    """(granted, values of all variables by name, slots too) after a step in which others make so many updates."""
    others.counts = [count]
    gate = run.ops.graph.get_collection(GATES)[-1]
    _, granted = run.session.run([run.ops.step, gate.granted])
    return granted, values(run)


def values(run):
    return {v.op.name: run.session.run(v) for v in run.variables}


OPTIMIZERS = {
    "sgd": sgd(),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.5, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_too_old_changes_nothing(name, way):
    run, others = make(OPTIMIZERS[name], way, max_staleness=2)
    granted, before = step(run, others, 2)
    assert granted == 2 and before["global_step"] == 3
    assert all((before[name] != START).all() for name in "abc")
    for old in (3, 7):
        granted, after = step(run, others, old)
        assert granted == DROPPED
        assert after.pop("global_step") == before.pop("global_step") + old
        np.testing.assert_equal(after, before)  # beta powers and slots, too
        before = values(run)
    granted, after = step(run, others)
    assert granted == 0 and after["global_step"] == before["global_step"] + 1
    assert all((after[name] != before[name]).all() for name in "abc")


def test_rows_that_are_too_old_change_nothing():
    run, others = make(sgd(), is_sparse=True, max_staleness=0)
    _, before = step(run, others)
    np.testing.assert_allclose(before["a"], START - [1, 0, 1])
    granted, after = step(run, others, 1)
    assert granted == DROPPED
    np.testing.assert_array_equal(after["a"], before["a"])


def test_the_rate_is_divided_by_the_staleness():
    run, others = make(sgd(), scale_by_staleness=True)
    expected = START
    for count, divisor in ((0, 1), (1, 1), (4, 4), (2, 2)):
        granted, after = step(run, others, count)
        expected = expected - 0.5 / divisor
        assert granted == count
        np.testing.assert_allclose(after["b"], expected, rtol=1e-6)


def test_both_at_once():
    run, others = make(sgd(), max_staleness=3, scale_by_staleness=True)
    step(run, others, 3)
    granted, after = step(run, others, 4)
    assert granted == DROPPED
    np.testing.assert_allclose(after["b"], START - 0.5 / 3, rtol=1e-6)


def test_with_prefetch_it_counts_from_the_pull():
    run, others = make(sgd(), prefetches=True, prefetch=True, max_staleness=100)
    others.session.run(others.add, {others.by: 7})  # between the first pull and the first step
    assert [step(run, others, count)[0] for count in (2, 3, 0, 0)] == [9, 6, 4, 1]


def test_steps_of_several_batches_count_from_the_first():
    run, others = make(sgd(), max_staleness=100, accumulate_steps=3)
    rounds = run.ops.graph.get_collection(ACCUMULATIONS)
    for counts in ((1, 2, 3), (0, 0, 5)):
        run.session.run([one.start for one in rounds])
        for count in counts[:-1]:
            others.counts = [count]
            run.session.run([one.add for one in rounds])
        assert step(run, others, counts[-1])[0] == sum(counts)


def seen(run, others, staleness, count=0):
    """The staleness of a step in which others make so many updates, where nothing depends on it."""
    others.counts = [count]
    _, found = run.session.run([run.ops.step, run.ops.steps_seen])
    return staleness.note(found.pop("global_step"), **found)


@pytest.mark.parametrize("way", WAYS)
def test_without_a_gate_it_is_seen_too(way):
    run, others = make(sgd(), way)
    assert not run.ops.graph.get_collection(GATES)
    staleness = Staleness(pulls_ahead=0)
    for count in (3, 0, 7):
        others.session.run(others.add, {others.by: 5})  # between two steps
        assert seen(run, others, staleness, count) == count
    (arrived,) = {tensor.op for tensor in run.ops.steps_seen.values()}
    assert task_of(arrived.device) == "/job:worker/task:0", "both in one message"


def test_without_a_gate_and_with_prefetch_it_counts_from_the_pull():
    run, others = make(sgd(), prefetches=True, prefetch=True)
    staleness = Staleness(pulls_ahead=1)
    staleness.start(0)
    others.session.run(others.add, {others.by: 7})
    assert [seen(run, others, staleness, count) for count in (2, 3, 0, 0)] == [9, 6, 4, 1]


@pytest.mark.parametrize("setting", ["accumulate_steps", "local_steps"])
def test_without_a_gate_steps_of_several_batches_count_from_the_first(setting):
    run, others = make(sgd(), **{setting: 3})
    rounds = run.ops.graph.get_collection(ACCUMULATIONS)
    staleness = Staleness(pulls_ahead=0)
    for counts in ((1, 2, 3), (0, 0, 5)):
        others.session.run(others.add, {others.by: 5})
        run.session.run([one.start for one in rounds])
        for count in counts[:-1]:
            others.counts = [count]
            run.session.run([one.add for one in rounds])
        assert seen(run, others, staleness, counts[-1]) == sum(counts)


def test_an_optimizer_without_a_global_step_is_told():
    def model_fn(features, labels):
        import ps_train

        loss = tf.reduce_sum(tf1.get_variable("a", initializer=START))
        train_op = ps_train.DistributedOptimizer(sgd()()).minimize(loss)
        return ModelSpec(loss=loss, train_op=train_op)

    with pytest.raises(ModelError, match="pass global_step=tf1.train.get_global_step"):
        build(lend_servers(num_ps=1, num_workers=1), model_fn, max_staleness=1)


RATED = {
    "sgd": lambda rate: tf1.train.GradientDescentOptimizer(rate),
    "momentum": lambda rate: tf1.train.MomentumOptimizer(rate, 0.9),
    "adam": lambda rate: tf1.train.AdamOptimizer(rate),
    "adagrad": lambda rate: tf1.train.AdagradOptimizer(rate),
    "adadelta": lambda rate: tf1.train.AdadeltaOptimizer(rate),
    "rmsprop": lambda rate: tf1.train.RMSPropOptimizer(rate),
    "ftrl": lambda rate: tf1.train.FtrlOptimizer(rate),
    "proximal": lambda rate: tf1.train.ProximalGradientDescentOptimizer(rate),
    "average": lambda rate: tf1.train.experimental.MixedPrecisionLossScaleOptimizer(
        tf1.train.GradientDescentOptimizer(rate), 1.0
    ),
}


def trained(optimizer, prepare=lambda optimizer: None):
    with tf1.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", initializer=START)
        made = optimizer()
        prepare(made)
        train = made.minimize(tf.reduce_sum(w * w))
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        return session.run(w)


@pytest.mark.parametrize("name", RATED)
def test_every_optimizers_rate_is_scaled(name):
    factor = tf.constant
    found = trained(lambda: RATED[name](0.02), lambda made: scale_rate(made, lambda: factor(4.0), "--x"))
    np.testing.assert_allclose(found, trained(lambda: RATED[name](0.08)), rtol=1e-6)
    assert np.abs(found - trained(lambda: RATED[name](0.02))).max() > 1e-6


def test_an_optimizer_without_a_rate_is_named():
    class Odd(tf1.train.Optimizer):
        def __init__(self):
            super().__init__(False, "odd")

    with pytest.raises(ModelError, match="--x cannot scale the learning rate of a Odd"):
        trained(Odd, lambda made: scale_rate(made, lambda: 2.0, "--x"))


@pytest.mark.parametrize("scale, factor", [("linear", 3), ("sqrt", 3**0.5), ("none", 1)])
def test_the_rate_grows_with_the_workers(scale, factor):
    servers, others = lend_servers(num_ps=2, num_workers=3), Others()
    run = Run(servers, build(servers, model(others, sgd()), scale_rate=scale))
    run.session.run(run.ops.step)
    np.testing.assert_allclose(values(run)["b"], START - 0.5 * factor, rtol=1e-6)
