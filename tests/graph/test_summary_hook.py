"""What the chief writes for TensorBoard, read back, against a job that is computed by hand; and that writing it costs no step."""

import functools
import os
import pathlib
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import Clock, FakeGuard, FakeMonitor, FakeRuntime, FakeView
from in_process import lend_servers
from stepping import Run, build

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from events import counts, curves, files

from ps_train import summary_hook
from ps_train.cluster import Cluster
from ps_train.compat import tf, tf1
from ps_train.event_files import EventRun
from ps_train.hooks import StepHook, StepRunner
from ps_train.model import ModelSpec
from ps_train.session import Saving
from ps_train.staleness import Histogram
from ps_train.summary_hook import Period, Scribe, SummaryHook
from ps_train.updates.rate import rates
from ps_train.updates.rounds import UpdateLoop
from ps_train.updates.rules import DistributedOptimizer

pytestmark = pytest.mark.graph
STEPS = 23


class Session(tf1.Session):
    """Counts the calls that run something."""

    num_calls = 0

    def run(self, *args, **kwargs):
        Session.num_calls += 1
        return super().run(*args, **kwargs)

    def make_callable(self, *args, **kwargs):
        call = super().make_callable(*args, **kwargs)

        def counted(*args, **kwargs):
            Session.num_calls += 1
            return call(*args, **kwargs)

        return counted


class Creator(tf1.train.SessionCreator):
    def create_session(self):
        session = Session()
        session.run(self.init)
        return session


def train(folder, summary_steps, **saving):
    """(batches that were read, calls of the session, weight, w and loss before each step): w falls by the rate times the batch."""
    batches, losses = [], []

    def take(number):
        batches.append(int(number))
        return np.float32(number % 7 + 1)

    with tf1.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(1, 1000))
        x = tf.ensure_shape(tf.numpy_function(take, [iterator.get_next()], tf.float32), [])
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", initializer=1.0)
        loss = w * x
        tf1.summary.scalar("batch", x)
        tf1.summary.histogram("batches", x)
        rate = tf1.train.exponential_decay(0.1, step, 4, 0.5)
        optimizer = DistributedOptimizer(tf1.train.GradientDescentOptimizer(rate))
        train_op = optimizer.minimize(loss, global_step=step)
        with tf1.control_dependencies([train_op]):
            after = step.read_value()
        fetches = {"loss": loss, "global_step": after, "begun": after - 1}
        runtime = FakeRuntime("worker:0", Cluster.from_hosts("p0:1", "w0:1"), FakeMonitor())
        step_hook = StepHook(
            runtime.report, runtime.monitor, FakeGuard(), step, fetches, STEPS, pulls_ahead=0
        )
        follow = step_hook.follow
        step_hook.follow = lambda values: losses.append(float(values["loss"])) or follow(values)
        runner = StepRunner(SimpleNamespace(step=train_op), step_hook, fetches)
        runner.wait_hook = SimpleNamespace(run=lambda step_context: None, is_over=True)
        saved = Saving(summary_dir=str(folder), summary_steps=summary_steps, **saving)
        if saved.has_summaries:
            runner.summary_hook = SummaryHook(runtime, step_hook, saved)
        creator = Creator()
        creator.init = [tf1.global_variables_initializer(), iterator.initializer]
        hooks = [step_hook, *([runner.summary_hook] if runner.summary_hook else [])]
        Session.num_calls = 0
        with tf1.train.MonitoredSession(creator, hooks) as session:
            runner.loop(session)
            value = session.run_step_fn(lambda step_context: step_context.session.run(w))
    return batches, Session.num_calls, value, losses


def by_hand():
    """(rate, batch, loss) of each step, the first at index 1."""
    found, w = [None], 1.0
    for step in range(STEPS):
        rate, batch = 0.1 * 0.5 ** (step / 4), (step + 1) % 7 + 1
        found.append((rate, batch, w * batch))
        w -= rate * batch
    return found


def test_summaries_take_no_batch_no_update_and_no_call(tmp_path):
    plain = train(tmp_path / "a", None)
    watched = train(tmp_path / "b", 5, figure_steps=3)
    assert watched == plain and plain[0] == [*range(1, STEPS + 1)]
    assert not (tmp_path / "a").exists() and len(files(tmp_path / "b")) == 1


def test_each_point_has_its_own_steps_batch_loss_and_rate(tmp_path):
    *_, losses = train(tmp_path, 5, figure_steps=3)
    expected, found = by_hand(), curves(tmp_path)
    np.testing.assert_allclose(losses, [loss for _, _, loss in expected[1:]], rtol=1e-4)
    assert [step for step, _ in found["batch"]] == [1, 6, 11, 16, 21]
    assert [step for step, _ in found["learning_rate"]] == [1, 4, 7, 10, 13, 16, 19, 22]
    assert [step for step, _ in found["loss"]] == [1, 4, 7, 10, 13, 16, 19, 22, 23], "the end, too"
    for tag, index in (("learning_rate", 0), ("batch", 1), ("loss", 2)):
        for step, value in found[tag]:
            assert value == pytest.approx(expected[step][index], rel=1e-4), (tag, step)
    for (step, histogram), (_, batch) in zip(found["batches"], found["batch"], strict=True):
        assert (histogram.num, histogram.sum) == (1, batch), step
    assert counts(found["staleness/histogram"]) == {0: STEPS}


def test_nothing_is_written_without_a_period(tmp_path):
    train(tmp_path / "a", 0)
    assert not (tmp_path / "a").exists()


def test_periods():
    clock = Clock()
    period = Period(10, 60.0, clock)
    assert period.is_due(0)
    period.mark(5)
    assert [period.is_due(step) for step in (5, 14, 15, 4)] == [False, False, True, True]
    clock.now += 60
    assert period.is_due(6)
    assert not Period(None, None).is_due(1) and not Period(0, None).is_due(1)
    by_time = Period(None, 60.0, clock)
    by_time.mark(1)
    assert not by_time.is_due(10**6)


# The boards.


@pytest.fixture
def scribe(tmp_path):
    """A function that gives what a Scribe of a job with two workers has written, after records of the second one."""
    monitor = FakeMonitor(FakeView({}))
    made = Scribe(str(tmp_path), monitor, ["worker:1"], functools.partial(Period, 10, None))
    made.open(tf1.summary.FileWriter(str(tmp_path)))
    made.begin = lambda step: made._given.put(lambda: made._begin({"step": step, "local_steps": 0}))
    made.begin(0)

    def see(*records, is_last=False):
        for each in records:
            monitor.shown = FakeView({"worker:1": each} if each else {})
            made._write(is_last)
        return curves(tmp_path / "worker_1")

    see.begin, see.monitor, see.made, see.directory = made.begin, monitor, made, tmp_path
    return see


def seen(run, step, local_steps, values=(), **more):
    histogram = Histogram()
    for value in values:
        histogram.note(value)
    fields = {"run": run, "step": step, "local_steps": local_steps, "secs": local_steps / 4, "loss": step / 2}
    return {**fields, "staleness": histogram.as_list(), **more}


def test_a_workers_points_are_its_records(scribe):
    records = [
        seen("a", 2, 1, [1]),
        seen("a", 8, 4, [1, 0, 2, 2]),
        seen("a", 15, 8, [1, 0, 2, 2, 0, 0, 0, 3]),
    ]
    found = scribe(*records, records[-1])
    assert found["loss"] == [(2, 1.0), (15, 7.5)], "the second comes before the period is over"
    assert [value for _, value in found["local_steps/sec"]] == [4.0, 4.0]
    assert counts(found["staleness/histogram"][:1]) == {1: 1}
    assert counts(found["staleness/histogram"]) == {0: 4, 1: 1, 2: 2, 3: 1}


def test_the_last_point_has_what_came_after_the_period(scribe):
    scribe(seen("a", 2, 1, [1]), seen("a", 8, 4, [1, 0, 2, 2]))
    found = scribe(seen("a", 9, 5, [1, 0, 2, 2, 7]), is_last=True)
    assert counts(found["staleness/histogram"]) == {0: 1, 1: 1, 2: 2, 7: 1}


def test_a_worker_that_was_started_again_counts_on(scribe):
    """What its first process did after its last point is not lost with that one's record."""
    scribe(seen("a", 2, 1, [1], dropped=0), seen("a", 8, 4, [1, 0, 2, 2], dropped=3))
    found = scribe({"run": "b", "state": "starting"}, seen("b", 30, 1, [5], dropped=1))
    assert counts(found["staleness/histogram"]) == {0: 1, 1: 1, 2: 2, 5: 1}
    assert found["dropped_gradients"] == [(2, 0.0), (8, 3.0), (30, 4.0)]


def test_a_model_that_goes_back_voids_the_steps_that_are_gone(scribe):
    """One who has not heard of it yet has shown a step of the model that is gone."""
    scribe(seen("a", 10, 5), seen("a", 20, 10), seen("a", 40, 20))
    scribe.begin(25)
    assert scribe(seen("a", 55, 29))["loss"] == [(10, 5.0), (20, 10.0), (55, 27.5)]
    found = scribe(seen("a", 26, 30), seen("a", 36, 35))
    assert found["loss"] == [(10, 5.0), (20, 10.0), (26, 13.0), (36, 18.0)]


def test_a_second_session_has_its_last_points_too(scribe):
    own = {"step": 0, "local_steps": 0}
    for step in (0, 20):
        scribe.made.start({**own, "step": step})
    scribe.monitor.shown = FakeView({"worker:1": seen("a", 31, 12)})
    scribe.made.finish({**own, "step": 32, "local_steps": 9, "loss": 0.5})
    assert curves(scribe.directory)["loss"] == [(32, 0.5)]
    assert curves(scribe.directory / "worker_1")["loss"] == [(31, 15.5)]
    assert "ps_train-summaries" not in {thread.name for thread in threading.enumerate()}


def test_a_disk_that_hangs_at_the_end_is_not_waited_for(scribe, caplog, monkeypatch):
    """The last point is written where the others are, in a thread."""
    monkeypatch.setattr(summary_hook, "JOIN_SECS", 0.1)
    monkeypatch.setattr(summary_hook, "LOOK_SECS", 60.0)
    monkeypatch.setattr(summary_hook.log, "propagate", True)
    is_free, write = threading.Event(), scribe.made._write
    monkeypatch.setattr(
        scribe.made, "_write", lambda *args, **kwargs: is_free.wait(60) and write(*args, **kwargs)
    )
    scribe.made.start({"step": 0, "local_steps": 0})
    thread = scribe.made._thread
    try:
        scribe.made.finish({"step": 32, "local_steps": 9, "loss": 0.5})
        (message,) = [line for line in caplog.messages if "event files" in line]
        assert message.endswith("the last of them are not written, the disk is busy")
    finally:
        is_free.set()
        thread.join(60)
    assert curves(scribe.directory)["loss"] == [(32, 0.5)], "it was only slow"


def test_a_job_that_is_started_again_goes_on_with_one_curve(scribe, tmp_path, monkeypatch):
    scribe(seen("a", 10, 5), seen("a", 30, 10))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monitor = FakeMonitor(FakeView({}))
    again = Scribe(str(tmp_path), monitor, ["worker:1"], functools.partial(Period, 10, None))
    again.open(tf1.summary.FileWriter(str(tmp_path), filename_suffix=".again"))
    again._begin({"step": 20, "local_steps": 0})
    monitor.shown = FakeView({"worker:1": seen("b", 24, 2)})
    again._write()
    assert curves(tmp_path / "worker_1")["loss"] == [(10, 5.0), (24, 12.0)]


def test_tensorboard_itself_shows_one_curve(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for name, first, steps in (("1", 1, range(10, 60, 10)), ("2", 21, (25, 35))):
        run = EventRun(tf1.summary.FileWriter(str(tmp_path), filename_suffix=name), first)
        for step in steps:
            run.add(step, {"loss": step / 2, "h": Histogram(2, 4, 10, {1: 1, 3: 1})})
            run.flush()
    shown = accumulator.EventAccumulator(str(tmp_path))
    shown.Reload()
    assert [(event.step, event.value) for event in shown.Scalars("loss")] == curves(tmp_path)["loss"]
    assert [event.step for event in shown.Scalars("loss")] == [10, 20, 25, 35]
    assert shown.Histograms("h")[0].histogram_value.bucket == [0, 1, 0, 1]


def test_a_tag_of_the_users_is_the_users(tmp_path):
    run = EventRun(tf1.summary.FileWriter(str(tmp_path)), 1)
    theirs = tf1.Summary(value=[tf1.Summary.Value(tag="loss", simple_value=7.0)]).SerializeToString()
    run.add(3, {"loss": 1.0, "learning_rate": 0.5}, theirs)
    run.flush()
    assert curves(tmp_path) == {"loss": [(3, 7.0)], "learning_rate": [(3, 0.5)]}


def test_what_cannot_be_written_is_said_and_tried_again(scribe, caplog, monkeypatch, tmp_path):
    clock = Clock()
    monkeypatch.setattr(summary_hook, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(summary_hook.log, "propagate", True)
    (tmp_path / "worker_1").write_text("a file in the directory's place")
    scribe.made._write()
    scribe.monitor.shown = FakeView({"worker:1": seen("a", 4, 2, [1, 0])})
    for _ in range(3):
        scribe.made._write()
    (message,) = [line for line in caplog.messages if "event files" in line]
    assert message.startswith(f"event files in {tmp_path} are not written: ")
    assert message.endswith("; training goes on, next try in 10 s")
    (tmp_path / "worker_1").unlink()
    clock.now += 10
    assert counts(scribe(seen("a", 5, 3, [1, 0, 0]))["staleness/histogram"]) == {0: 2, 1: 1}


# The rate.


def linear(make_optimizer):
    def model_fn(features, labels):
        w = tf1.get_variable("w", initializer=[1.0, 2.0])
        return ModelSpec(loss=tf.reduce_sum(w), optimizer=make_optimizer())

    return model_fn


def decayed():
    return tf1.train.exponential_decay(0.5, tf1.train.get_global_step(), 1, 0.5)


@pytest.mark.parametrize("flags, factor", [({}, 1), ({"scale_rate": "linear"}, 2)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_rate_is_the_one_that_the_step_used(flags, factor, is_packed):
    sizes = {"pack_bytes": 4096, "fuse_bytes": 1 << 20} if is_packed else {}
    sgd = lambda: tf1.train.GradientDescentOptimizer(decayed())  # noqa: E731
    run = Run(lend := lend_servers(1, 2), build(lend, linear(sgd), **sizes, **flags))
    (rate,) = rates(run.ops.graph)
    assert not rate.is_constant and rate.rule is None
    for step in range(4):
        before = run.steps(0)[1]["w"]
        value, _ = run.session.run([rate.tensor, run.ops.step])
        np.testing.assert_allclose(before - run.steps(0)[1]["w"], value)
        assert value == pytest.approx(factor * 0.5 ** (step + 1))


def test_in_sync_the_rate_is_the_one_that_the_update_used(monkeypatch):
    sgd = lambda: tf1.train.GradientDescentOptimizer(decayed())  # noqa: E731
    run = Run(lend := lend_servers(1, 1), build(lend, linear(sgd), update="sync"))
    (rate,), (optimizer,) = rates(run.ops.graph), run.ops.sync_optimizers
    assert rate.rule is optimizer
    with run.ops.graph.as_default(), tf1.control_dependencies([optimizer.update_op]):
        step = run.ops.global_step.read_value()
    noted, start = [], UpdateLoop.start

    def start_watched(loop, session):
        loop.watch((step, rate.tensor), noted.append)
        loop.ask()
        start(loop, session)

    monkeypatch.setattr(UpdateLoop, "start", start_watched)
    with run.serving():
        run.steps(1)
        optimizer.update_loop.ask()
        run.steps(3)
    assert [int(step) for step, _ in noted] in ([1, 2], [1, 3]), (
        "the second update may have begun before it was asked"
    )
    assert [value for _, value in noted] == [pytest.approx(0.5 ** int(step)) for step, _ in noted]


def test_rates_that_are_constant_and_those_that_are_not_known():
    class Odd(tf1.train.GradientDescentOptimizer):
        def _prepare(self):
            super()._prepare()
            self._own, self._learning_rate_tensor = self._learning_rate_tensor, None

        def _resource_apply_dense(self, grad, handle):
            self._learning_rate_tensor = self._own
            try:
                return super()._resource_apply_dense(grad, handle)
            finally:
                self._learning_rate_tensor = None

    makers = {"adam": lambda: tf1.train.AdamOptimizer(0.25), "odd": lambda: Odd(0.25)}
    run = Run(lend := lend_servers(1, 2), build(lend, linear(makers["adam"]), scale_rate="linear"))
    (rate,) = rates(run.ops.graph)
    assert rate.is_constant and (rate.name, run.session.run(rate.tensor)) == ("Adam", 0.5)
    assert rates(build(lend, linear(makers["odd"]))[0].graph) == []


def test_of_local_steps_the_rate_is_the_users():
    sgd = lambda: tf1.train.GradientDescentOptimizer(0.25)  # noqa: E731
    for update in ("async", "sync"):
        ops, *_ = build(lend_servers(1, 1), linear(sgd), update=update, local_steps=2)
        (rate,) = rates(ops.graph)
        assert rate.rule is None and tf.get_static_value(rate.tensor) == 0.25
