"""NaN and Inf never get past the worker that made them."""

import numpy as np
import pytest

from ps_train import task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.updates.finite import check_gradients, explain_bad_number, is_bad_number
from ps_train.updates.rules import DistributedOptimizer

pytestmark = pytest.mark.graph


def make_step(policy):
    """(session, feeds, train op, variables): two dense variables and a table, each gradient with a factor of its own."""
    cluster = Cluster.from_hosts("localhost:2222", "localhost:2223")
    context = task_context.TaskContext(TaskId("worker", 0), cluster, on_nan=policy)
    task_context.set_current(context)
    try:
        factors = tf1.placeholder(tf.float32, [4], "factors")
        a = tf1.get_variable("a", [2], initializer=tf1.zeros_initializer())
        b = tf1.get_variable("b", [], initializer=tf1.zeros_initializer())
        table = tf1.get_variable("table", [5, 2], initializer=tf1.zeros_initializer())
        rows = tf1.nn.embedding_lookup(table, [1, 3])
        loss = tf.reduce_sum(a) * factors[1] + b * factors[2] + tf.reduce_sum(rows) * factors[3]
        loss = loss + tf.stop_gradient(factors[0])
        step = tf1.train.get_or_create_global_step()
        train_op = DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0)).minimize(
            loss, global_step=step
        )
    finally:
        task_context._current.clear()
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    return session, factors, train_op, [a, b, table]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "index, what",
    [(0, "the loss"), (1, "the gradient of a"), (2, "the gradient of b"), (3, "the gradient of table")],
)
def test_a_bad_number_is_named_and_never_applied(index, what, bad):
    with tf1.Graph().as_default():
        session, factors, train_op, variables = make_step("stop")
        values = np.ones(4, np.float32)
        session.run(train_op, {factors: values})
        good = session.run(variables)
        values[index] = bad
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(train_op, {factors: values})
        assert is_bad_number(raised.value)
        for value in session.run(variables):
            assert np.isfinite(value).all()
        if index == 0:  # the loss is checked before any gradient is let go
            for before, after in zip(good, session.run(variables), strict=True):
                np.testing.assert_array_equal(before, after)
        text = str(explain_bad_number(raised.value, "worker:1", 60, 118))
        kind = "NaN" if np.isnan(bad) else "Inf"
        assert kind in text, text
        assert " on worker:1, at its local step 60 (global step 118). It was not applied." in text
        assert what in text or index == 0 or "the loss" in text


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_skip_lets_no_part_of_a_bad_step_through(index):
    with tf1.Graph().as_default():
        session, factors, train_op, variables = make_step("skip")
        values = np.ones(4, np.float32)
        session.run(train_op, {factors: values})
        before = session.run([*variables, tf1.train.get_global_step()])
        values[index] = np.nan
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(train_op, {factors: values})
        for old, new in zip(before, session.run([*variables, tf1.train.get_global_step()]), strict=True):
            np.testing.assert_array_equal(old, new)


def test_ignore_adds_no_check():
    with tf1.Graph().as_default() as graph:
        session, factors, train_op, variables = make_step("ignore")
        assert not [op for op in graph.get_operations() if "CheckNumerics" in op.type]
        session.run(train_op, {factors: [1, np.nan, 1, 1]})
        assert np.isnan(session.run(variables[0])).all()


def test_what_is_no_float_passes():
    with tf1.Graph().as_default():
        gradient = tf.constant([1, 2], tf.int64)
        assert check_gradients([(gradient, None), (None, None)], None, "ignore") == [
            (gradient, None),
            (None, None),
        ]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_one_bad_element_of_many_is_found_and_large_ones_are_not_taken_for_bad(dtype):
    with tf1.Graph().as_default(), tf1.Session() as session:
        values = tf1.placeholder(dtype, [200, 500])
        variable = tf1.get_variable("v", [200, 500], dtype)
        (checked, _), (nothing, _) = check_gradients([(values, variable), (None, variable)], None, "stop")
        large = np.full([200, 500], 6e4, np.float64)
        assert nothing is None and np.isfinite(session.run(checked, {values: large}).astype(float)).all()
        for bad in (np.nan, np.inf, -np.inf):
            wrong = large.copy()
            wrong[7, 11], wrong[8, 0] = bad, -bad
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                session.run(checked, {values: wrong})
            text = str(explain_bad_number(raised.value, "worker:1", 60, 118))
            assert text.startswith("NaN or Inf in the gradient of v on worker:1") or dtype == tf.float16
            assert "in the gradient of v on worker:1" in text
