"""What a worker's guard judges from the boards, and how a user's error is told."""

import inspect
import os
import re

import pytest
from fakes import Clock, FakeLink, FakeMonitor, FakeRuntime, FakeView

from ps_train import worker
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1

pytestmark = pytest.mark.graph
HERE = re.escape(os.path.relpath(__file__))
OK = {"state": "training", "step": 9}
RUNTIME = FakeRuntime("worker:1")


def judge(records=None, ages=None, links=(), state="training", task="worker:1", **options):
    """(message, exit status) of the judgement, or None."""
    monitor = FakeMonitor(FakeView(records or {}, ages), links, state=state)
    failure = worker.judge(FakeRuntime(task, monitor=monitor, peer_timeout_secs=60, **options))
    return failure and (str(failure), failure.exit_status)


def test_all_is_well():
    assert judge({"worker:0": OK, "worker:2": OK}, {"worker:0": 59}) is None


def test_a_silent_ps():
    links = [FakeLink(TaskId("ps", 0), "p0:1"), FakeLink(TaskId("ps", 1), "p1:1", silent_secs=61)]
    assert judge({"worker:0": OK}, links=links) == (
        "ps:1 at p1:1 has been gone for 60 s: connection refused (nothing listens there)", 138,
    )  # fmt: skip


@pytest.mark.parametrize("state", ["starting", None])
def test_bring_up_has_its_own_bounds(state):
    links = [FakeLink(TaskId("ps", 0), "p0:1", silent_secs=99)]
    assert judge({"worker:0": OK}, {"worker:0": 99}, links, state=state) is None


@pytest.mark.parametrize("state", ["starting", "training"])
def test_a_failure_for_good_is_named_by_all(state):
    record = {"state": "failed", "exit_status": 1, "reason": "ModelError: no loss"}
    assert judge({"worker:2": record}, state=state) == ("worker:2 failed: ModelError: no loss", 1)
    assert judge({"worker:1": record}, state=state) is None, "its own record of an earlier start"


def test_a_failure_that_may_heal():
    assert judge({"worker:0": OK, "worker:2": {"state": "failed", "exit_status": 138}}) is None


def test_the_chief_is_needed_in_async():
    assert judge({"worker:0": OK}, {"worker:0": 61}) == (
        "gone for 60 s: worker:0 at w0:1 (last seen at global step 9)", 138,
    )  # fmt: skip


def test_another_worker_is_not_needed_in_async():
    assert judge({"worker:0": OK, "worker:2": OK}, {"worker:2": 61}) is None
    assert judge({"worker:1": OK, "worker:2": OK}, {"worker:2": 61}, task="worker:0") is None


def test_one_on_whose_devices_the_graph_has_ops_is_needed_in_async():
    records = {"worker:0": OK, "worker:1": {"state": "serving"}}
    monitor = FakeMonitor(FakeView(records, {"worker:1": 61}), state="training")
    runtime = FakeRuntime("worker:0", monitor=monitor, peer_timeout_secs=60)
    assert worker.judge(runtime) is None
    runtime.lenders = frozenset([TaskId("worker", 1)])
    failure = worker.judge(runtime)
    assert (str(failure), failure.exit_status) == (
        "gone for 60 s: worker:1 at w1:1 (this task's graph has ops there)", 138,
    )  # fmt: skip


def test_one_that_serves_needs_the_chief_and_the_ps():
    assert judge({"worker:0": OK}, {"worker:0": 61}, state="serving") == (
        "gone for 60 s: worker:0 at w0:1 (last seen at global step 9)", 138,
    )  # fmt: skip
    links = [FakeLink(TaskId("ps", 0), "p0:1", silent_secs=61)]
    assert judge({"worker:0": OK}, links=links, state="serving") == (
        "ps:0 at p0:1 has been gone for 60 s: connection refused (nothing listens there)", 138,
    )  # fmt: skip


def test_everyone_is_needed_in_sync():
    assert judge({"worker:0": OK, "worker:2": OK}, {"worker:2": 61}, update="sync") == (
        "gone for 60 s: worker:2 at w2:1 (last seen at global step 9)", 138,
    )  # fmt: skip


def test_a_worker_that_does_not_come_is_waited_for_as_long_as_a_start_may_take(monkeypatch, caplog):
    clock = Clock()
    caplog.set_level("INFO", "ps_train")
    monkeypatch.setattr(worker, "awake_clock", clock)
    monitor = FakeMonitor(FakeView({"worker:0": OK}), state="training")
    runtime = FakeRuntime("worker:1", monitor=monitor, update="sync", startup_timeout_secs=300)
    for secs in (0, 299):
        clock.now += secs
        assert worker.judge(runtime) is None
    assert caplog.messages == ["waiting for worker:2 at w2:1 to start: 299 s so far, giving up after 300 s"]
    monitor.shown = FakeView({"worker:0": OK, "worker:2": OK})
    assert worker.judge(runtime) is None
    monitor.shown = FakeView({"worker:0": OK})
    for secs in (2, 299, 2):
        clock.now += secs
        failure = worker.judge(runtime)
    assert (str(failure), failure.exit_status) == (
        "not there for 300 s: worker:2 at w2:1. An update takes 3 gradients. Start it, or give it longer by "
        "--startup_timeout_secs.", 138,
    )  # fmt: skip


def test_one_that_has_left_is_not_missed_on_boards_that_do_not_know_it(monkeypatch):
    """Its ps were lost afterwards, and it has ended with 0."""
    clock = Clock()
    monkeypatch.setattr(worker, "awake_clock", clock)
    monitor = FakeMonitor(FakeView({"worker:0": OK, "worker:2": {"state": "left"}}), state="training")
    runtime = FakeRuntime("worker:1", monitor=monitor, update="sync", startup_timeout_secs=300)
    assert worker.judge(runtime) is None and runtime.left == {"worker:2"}
    monitor.shown = FakeView({"worker:0": OK})
    for _ in range(2):
        clock.now += 301
        assert worker.judge(runtime) is None
    monitor.shown = FakeView({"worker:0": OK, "worker:2": OK})
    assert worker.judge(runtime) is None and not runtime.left, "it came back"


def test_one_that_was_stopped_is_said_to_be():
    records = {
        "worker:0": OK,
        "worker:2": {"state": "stopped", "exit_status": 143, "reason": "stopped by SIGTERM"},
    }
    assert judge(records, {"worker:2": 61}, update="sync") == (
        "gone for 60 s: worker:2 at w2:1 (stopped by SIGTERM)", 138,
    )  # fmt: skip


def test_one_that_was_lost_before_its_first_step_is_said_to_be():
    assert judge({"worker:0": {"state": "training"}}, {"worker:0": 61}) == (
        "gone for 60 s: worker:0 at w0:1 (had not made a step yet when last seen)", 138,
    )  # fmt: skip


def test_a_backup_worker_is_not_needed():
    assert judge({"worker:0": OK, "worker:2": OK}, {"worker:2": 61}, update="sync", quorum=2) is None
    assert judge({"worker:0": OK, "worker:2": OK}, {"worker:2": 61}, update="sync", quorum=3) is not None


def test_the_last_one_goes_on_when_the_backup_is_lost_and_the_rest_have_left():
    records = {"worker:0": {"state": "left"}, "worker:2": OK}
    assert judge(records, {"worker:2": 61}, update="sync", quorum=2) is None
    assert judge(records, {"worker:2": 61}, update="sync", quorum=3) is not None, "no backup: it is needed"


def test_a_job_that_goes_on_without_lost_workers_still_needs_its_chief():
    options = {"update": "sync", "on_worker_loss": "continue"}
    records = {"worker:0": OK, "worker:2": OK}
    assert judge(records, {"worker:2": 61}, **options) is None
    assert judge(records, {"worker:0": 61}, **options) == (
        "gone for 60 s: worker:0 at w0:1 (last seen at global step 9)", 138,
    )  # fmt: skip


def test_the_model_is_safe_when_only_workers_are_lost():
    monitor = FakeMonitor(FakeView({"worker:0": OK, "worker:2": OK}, {"worker:2": 61}), (), state="training")
    runtime = FakeRuntime("worker:0", monitor=monitor, peer_timeout_secs=60, update="sync")
    assert worker.judge(runtime).is_model_safe
    monitor = FakeMonitor(FakeView({}), [FakeLink(TaskId("ps", 0), "p0:1", silent_secs=61)], state="training")
    runtime = FakeRuntime("worker:0", monitor=monitor, peer_timeout_secs=60)
    assert not worker.judge(runtime).is_model_safe
    runtime.is_vacant = lambda names: names == {"ps:0"}
    assert worker.judge(runtime).is_model_safe, "nothing of it was there"


def test_who_has_left_is_not_missed():
    gone = {"state": "left", "step": 50}
    assert (
        judge({"worker:0": gone, "worker:2": gone}, {"worker:0": 99, "worker:2": 99}, update="sync") is None
    )


def test_who_never_came_is_not_judged_here():
    assert judge({"worker:0": OK}, update="sync") is None


def test_nobody_is_missed_when_the_job_is_over():
    assert judge({"worker:0": OK, "job": {"is_over": True}}, {"worker:0": 99}) is None


def test_at_the_target_the_chief_alone_is_missed():
    ages = {"worker:0": 59, "worker:2": 61}
    records = {"worker:0": OK, "worker:2": OK}
    assert judge(records, ages, update="sync")[1] == 138
    assert judge(records, ages, update="sync", state="at target") is None
    assert judge(records, {"worker:0": 61}, update="sync", state="at target")[1] == 138


# How a user's error is told.


@pytest.mark.parametrize("has_server", [False, True])
def test_error_of_the_users_op_names_it_its_line_and_its_cause(has_server):
    """With a server the cause stands below the stack of the op's making and the task's name."""
    target = tf1.train.Server.create_local_server().target if has_server else ""
    with tf1.Graph().as_default(), tf1.Session(target) as session:
        x = tf1.placeholder(tf.float32, [None])
        y = tf.reshape(x, [7], name="week")
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(y, {x: [1.0]})
    error = worker.explain(RUNTIME, raised.value)
    assert error.exit_status == 1
    assert re.fullmatch(
        rf"InvalidArgumentError in op week \(made at {HERE}:\d+\): "
        "Input to reshape is a tensor with 1 values, but the requested shape has 7",
        str(error),
    )


def test_error_in_a_gradient_names_the_line_of_its_op():
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32)
        line = inspect.currentframe().f_lineno + 1
        y = tf.reshape(x, [-1], name="week") + tf.zeros([3])
        gradient = tf.gradients(y, x, grad_ys=[tf1.placeholder_with_default([1.0, 2.0], None)])
        with pytest.raises(tf.errors.OpError) as raised:
            session.run(gradient, {x: [1.0, 2.0, 3.0]})
    text = str(worker.explain(RUNTIME, raised.value))
    assert re.fullmatch(
        rf"InvalidArgumentError in op gradients/\S+ \(made at {HERE}:{line}\): Input .*",
        text,
    )


def test_the_cause_of_several_errors_is_found():
    message = (
        "2 root error(s) found.\n  (0) INVALID_ARGUMENT: From /job:worker/replica:0/task:0:\nInput is too short\n"
        "\t [[{{node a}}]]\n  (1) INVALID_ARGUMENT: From /job:worker/replica:0/task:0:\nInput is too short"
    )
    error = worker.explain(RUNTIME, tf.errors.InvalidArgumentError(None, None, message))
    assert str(error) == "InvalidArgumentError: Input is too short"


def test_error_of_the_users_python_function():
    def parse(i):
        return {}[int(i)]

    with tf1.Graph().as_default(), tf1.Session() as session:
        data = tf.data.Dataset.range(3).map(lambda i: tf.numpy_function(parse, [i], tf.int64))
        following = tf1.data.make_one_shot_iterator(data).get_next()
        with pytest.raises(tf.errors.UnknownError) as raised:
            session.run(following)
    text = str(worker.explain(RUNTIME, raised.value))
    assert re.fullmatch(rf"parse in {HERE}:\d+ raised KeyError: 0", text)


def test_error_that_is_not_tensorflows():
    error = worker.explain(RUNTIME, ValueError("no such column: age"))
    assert (str(error), error.exit_status) == ("ValueError: no such column: age", 1)
