"""Steps with the user's hooks alone: each hook sees what MonitoredSession would show it."""

from types import SimpleNamespace

import pytest

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.hooked_steps import MAX_KNOWN, FeedlessHook, HookedSteps
from ps_train.hooks import StepRunner

pytestmark = pytest.mark.graph


class Hook(tf1.train.SessionRunHook):
    """Notes what it is given; `ask` gives the SessionRunArgs of a step."""

    def __init__(self, ask=lambda context: None, stops_at=0):
        self._ask, self._stops_at = ask, stops_at
        self.results, self.contexts, self.metadata = [], [], []

    def before_run(self, run_context):
        return self._ask(run_context)

    def after_run(self, run_context, run_values):
        self.contexts.append(run_context)
        self.results.append(run_values.results)
        self.metadata.append(run_values.run_metadata)
        if len(self.results) == self._stops_at:
            run_context.request_stop()


class Session(tf1.Session):
    """Counts the calls that it had to make."""

    num_made = num_runs = 0

    def make_callable(self, *args, **kwargs):
        self.num_made += 1
        return super().make_callable(*args, **kwargs)

    def run(self, *args, **kwargs):
        self.num_runs += 1
        return super().run(*args, **kwargs)


@pytest.fixture
def model():
    """(session, step, figures, a tensor, a placeholder that is part of it)."""
    with tf1.Graph().as_default(), Session() as session:
        counter = tf1.get_variable("counter", initializer=0)
        fed = tf1.placeholder_with_default(10, [])
        with tf1.control_dependencies([counter.assign_add(1).op]):
            after = counter.read_value()
        session.run(tf1.global_variables_initializer())
        session.num_runs = 0
        yield session, after.op, {"global_step": after}, after + fed, fed


def test_each_hook_gets_its_fetches_and_the_figures_come_first(model):
    session, step, figures, tensor, _ = model
    nested = {"a": tensor, "b": [tensor, tensor]}
    hooks = [
        Hook(lambda context: tf1.train.SessionRunArgs(tensor)), Hook(), Hook(lambda c: tf1.train.SessionRunArgs(nested))
    ]  # fmt: skip
    steps, seen = HookedSteps(session, step, figures, hooks), []
    for _ in range(3):
        steps.run(lambda values: seen.append((int(values["global_step"]), len(hooks[0].results))))
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert hooks[0].results == [11, 12, 13] and hooks[1].results == [None] * 3
    assert hooks[2].results[-1] == {"a": 13, "b": [13, 13]}
    assert (session.num_made, session.num_runs) == (1, 0), "one call for all"
    assert hooks[0].contexts[0].original_args.fetches is step and hooks[0].contexts[0].session is session


def test_a_hook_may_want_one_thing_and_then_another(model):
    session, step, figures, tensor, _ = model
    wanted = iter([None, tf1.train.SessionRunArgs(tensor)] * 3)
    hook = Hook(lambda context: next(wanted))
    steps = HookedSteps(session, step, figures, [hook])
    for _ in range(6):
        steps.run(lambda values: None)
    assert hook.results == [None, 12, None, 14, None, 16] and session.num_made == 2


def test_a_new_dict_of_the_same_is_the_same(model):
    """TensorFlow's own SummarySaverHook makes one each step."""
    session, step, figures, tensor, _ = model
    hook = Hook(lambda context: tf1.train.SessionRunArgs({"a": tensor, "b": [(tensor, "counter:0")]}))
    steps = HookedSteps(session, step, figures, [hook])
    for _ in range(3):
        steps.run(lambda values: None)
    assert (session.num_made, session.num_runs) == (1, 0) and hook.results[-1]["b"][0][0] == 13


@pytest.mark.parametrize(
    "nest", [lambda wanted: wanted, lambda wanted: ([wanted],), lambda wanted: {"a": wanted}]
)
def test_a_hook_may_change_the_container_that_it_gave(model, nest):
    session, step, figures, tensor, fed = model
    as_dict, as_list = {"x": tensor}, [tensor]
    hooks = [Hook(lambda context, w=w: tf1.train.SessionRunArgs(nest(w))) for w in (as_dict, as_list)]
    steps = HookedSteps(session, step, figures, hooks)
    steps.run(lambda values: None)
    as_dict["y"], as_list[0] = fed, fed
    steps.run(lambda values: None)
    del as_dict["y"]
    as_list[0] = tensor
    steps.run(lambda values: None)
    assert hooks[0].results == [nest({"x": 11}), nest({"x": 12, "y": 10}), nest({"x": 13})]
    assert hooks[1].results == [nest([11]), nest([10]), nest([13])] and session.num_made == 2


def test_what_is_ever_new_is_not_kept(model):
    session, step, figures, tensor, _ = model
    hook = Hook(lambda context: tf1.train.SessionRunArgs([tf.identity(tensor)]))
    steps = HookedSteps(session, step, figures, [hook])
    for _ in range(MAX_KNOWN + 2):
        steps.run(lambda values: None)
    assert hook.results[-1] == [10 + MAX_KNOWN + 2]
    assert (session.num_made, session.num_runs) == (MAX_KNOWN, 2)


def test_feeds_and_options(model):
    session, step, figures, tensor, fed = model
    options = tf1.RunOptions(output_partition_graphs=True)
    hooks = [
        Hook(lambda context: tf1.train.SessionRunArgs(tensor, feed_dict={fed: 90})),
        Hook(lambda context: tf1.train.SessionRunArgs(None, options=options)),
    ]
    HookedSteps(session, step, figures, hooks).run(lambda values: None)
    assert hooks[0].results == [91] and hooks[1].metadata[0].partition_graphs


def test_in_steps_of_several_batches_hooks_fetch_and_do_not_feed(model):
    session, step, figures, tensor, fed = model
    hooks = [Hook(lambda context: tf1.train.SessionRunArgs(tensor)), Hook()]
    HookedSteps(session, step, figures, [FeedlessHook(hook, 4) for hook in hooks]).run(lambda values: None)
    assert [hook.results for hook in hooks] == [[11], [None]]
    feeding = FeedlessHook(
        Hook(lambda context: tf1.train.SessionRunArgs(tensor, {fed: 1, "counter:0": 2})), 4
    )
    with pytest.raises(
        ModelError, match="^Hook feeds Placeholder.*:0, counter:0, and a step of 4 batches takes no feeds"
    ):
        HookedSteps(session, step, figures, [feeding]).run(lambda values: None)


def test_a_batch_that_lacks_a_feed_is_told_as_such(model):
    session, step, figures, *_ = model
    needed = tf1.placeholder(tf.float32, [], "needed")
    step_hook = SimpleNamespace(session=session, is_last=False, begin_step=lambda: None)
    runner = StepRunner(SimpleNamespace(step=step), step_hook, {"examples": needed})
    runner.accumulate(tf.no_op(), needed.op, 3)
    with pytest.raises(
        ModelError, match="^You must feed .* tensor 'needed' .*, and a step of 4 batches takes no feeds"
    ):
        runner.run(None)


def test_two_hooks_do_not_feed_one_tensor(model):
    session, step, figures, _, fed = model
    hooks = [Hook(lambda context: tf1.train.SessionRunArgs(None, feed_dict={fed: 1})) for _ in range(2)]
    with pytest.raises(RuntimeError, match="Two hooks feed"):
        HookedSteps(session, step, figures, hooks).run(lambda values: None)


def test_of_two_options_the_higher_ones_are_taken(model):
    session, step, figures, *_ = model
    asked = [
        tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, timeout_in_ms=60_000),
        tf1.RunOptions(trace_level=tf1.RunOptions.HARDWARE_TRACE, timeout_in_ms=1),
    ]
    hooks = [Hook(lambda context, o=o: tf1.train.SessionRunArgs(None, options=o)) for o in asked]
    HookedSteps(session, step, figures, hooks).run(lambda values: None)
    assert hooks[0].metadata[0].step_stats.dev_stats


def test_a_stop_that_one_hook_asks_for_is_seen_by_the_next(model):
    session, step, figures, tensor, _ = model
    hooks = [Hook(stops_at=2), Hook()]
    steps = HookedSteps(session, step, figures, hooks)
    for _ in range(2):
        steps.run(lambda values: None)
    assert [context.stop_requested for context in hooks[1].contexts] == [False, True]


def test_an_error_reaches_the_caller_and_no_hook(model):
    session, step, figures, tensor, _ = model
    bad = tf.debugging.check_numerics(tf.constant(float("nan")), "bad")
    hook = Hook(lambda context: tf1.train.SessionRunArgs(bad))
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        HookedSteps(session, step, figures, [hook]).run(lambda values: None)
    assert hook.results == []
