"""What a traced step of real servers says about its bytes, against the sizes of what was built; the probe; the worker's turn."""

import functools
import logging

import numpy as np
import pytest
from fakes import Clock, FakeGuard, FakeMonitor, FakeRuntime, FakeView
from in_process import lend_servers

from ps_train import placement, profiler, step_trace, task_context
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.errors import StoppedError
from ps_train.probe import LinkProbe
from ps_train.profiler import PROBED, PROBING, Profiler
from ps_train.transport import pack

pytestmark = pytest.mark.graph
WORKER = TaskId("worker", 1)
STEP_BYTES = 8  # the global step, fetched
RATE_BYTES = 4  # the learning rate, if TensorFlow has not copied it to the ps


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=2)


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(profiler.log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def context(servers):
    return task_context.TaskContext(WORKER, servers.cluster)


def session_of(servers, graph):
    config = tf1.ConfigProto(device_filters=["/job:ps", "/job:worker/task:1"])
    return tf1.Session(servers.target(WORKER), graph=graph, config=config)


def traced(servers, context, name, model_fn, pack_bytes=0, wire_dtype="float32"):
    """The StepTrace of a step of plain SGD, not one of the first."""
    with tf1.Graph().as_default() as graph, graph.container(name), placement.scope(context):
        step = tf1.train.get_or_create_global_step()
        loss = model_fn()
        train_op = tf1.train.GradientDescentOptimizer(1e-3).minimize(loss, global_step=step)
        with tf1.control_dependencies([train_op]), tf1.device(step.device):
            after = step.read_value()
        init = tf1.global_variables_initializer()
        fetches = [train_op, loss, after]
        pack(graph, [fetches], context.worker_device, pack_bytes, context.bucket_bytes, wire_dtype)
    traces = []
    with session_of(servers, graph) as session:
        session.run(init)
        session.run(fetches)
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        for _ in range(12):
            metadata = tf1.RunMetadata()
            session.run(fetches, options=options, run_metadata=metadata)
            traces.append(step_trace.read(metadata.step_stats, str(WORKER)))
    return max(
        traces, key=num_messages
    )  # TensorFlow leaves some out of some traces, on a busy machine of most


def num_messages(trace):
    return sum(line.pull_messages + line.push_messages for line in trace.links.values())


def dense():
    """Two layers with a regularizer, which takes the same read of the first's weights; some variables on each ps."""
    hidden = tf.random.stateless_uniform([16, 100], seed=[1, 2])
    first = tf.convert_to_tensor(tf1.get_variable("first", [100, 200]))
    second = tf1.get_variable("second", [200, 100])
    logits = tf.matmul(tf.nn.relu(tf.matmul(hidden, first)), second)
    return tf.reduce_sum(logits) + 1e-3 * tf.nn.l2_loss(first)


WEIGHT_BYTES = 2 * 100 * 200 * 4


def totals(trace):
    return [
        sum(getattr(line, name) for line in trace.links.values()) for name in ("pulled_bytes", "pushed_bytes")
    ]


def test_bytes_are_those_of_the_variables_each_sent_once(servers, context):
    trace = traced(servers, context, "plain", dense)
    pulled, pushed = totals(trace)
    assert pulled == WEIGHT_BYTES + STEP_BYTES
    assert pushed in (WEIGHT_BYTES, WEIGHT_BYTES + 2 * RATE_BYTES)


def test_parts_of_a_real_step_add_up(servers, context):
    trace = traced(servers, context, "parts", dense)
    assert sum(trace.parts.values()) == pytest.approx(trace.secs)
    assert {"compute", "pull", "push", "update"} <= {part for part, secs in trace.parts.items() if secs > 0}
    assert all(secs >= 0 for secs in trace.parts.values()) and set(trace.parts) <= set(step_trace.PARTS)


def many():
    hidden = tf.random.stateless_uniform([16, 20], seed=[1, 2])
    for number in range(8):
        hidden = tf.matmul(hidden, tf1.get_variable(f"w{number}", [20, 20]))
    return tf.reduce_sum(hidden)


def test_packing_has_the_same_bytes_in_fewer_messages(servers, context):
    plain, packed = (traced(servers, context, f"many{size}", many, size) for size in (0, 4096))
    assert totals(plain) == totals(packed)
    counts = [sum(line.pull_messages for line in trace.links.values()) for trace in (plain, packed)]
    assert counts[0] - counts[1] == 8 - 2


def test_half_the_bytes_in_16_bits(servers, context):
    pulled, _ = totals(traced(servers, context, "half", dense, wire_dtype="bfloat16"))
    assert pulled == WEIGHT_BYTES / 2 + STEP_BYTES


def test_bytes_of_a_shape_that_is_not_known(servers, context):
    """Rows of an embedding: as many as there are words in the batch."""

    def words():
        table = tf1.get_variable("table", [1000, 16])
        length = tf.cast(tf.random.stateless_uniform([], seed=[1, 2], minval=50, maxval=51), tf.int32)
        with tf1.device(context.worker_device):
            ids = tf1.placeholder_with_default(tf.range(length), [None])
        rows = tf.nn.embedding_lookup(table, ids)
        assert rows.shape.as_list() == [None, 16]
        return tf.reduce_sum(rows**2)

    pulled, pushed = totals(traced(servers, context, "words", words))
    assert pulled - STEP_BYTES in (50 * 16 * 4, 50 * 16 * 4 + 50 * 4)
    assert pushed >= 50 * 16 * 4 + 50 * 4


def test_the_probe_leaves_nothing_behind(servers, context):
    with tf1.Graph().as_default() as graph:
        probe = LinkProbe(context)
    with session_of(servers, graph) as session:
        rates = probe.run(session)
        assert set(rates) == {"ps:0", "ps:1"}
        assert all(rate > 1e6 for pair in rates.values() for rate in pair)
        _, move, _ = probe._ways["ps:0"][0]
        with pytest.raises(tf.errors.OpError):
            session.run(move)


def test_the_probe_of_a_slow_link_takes_a_smaller_tensor(context):
    """1 MB/s: what is sent is not more than takes a moment."""
    now, sent, size = [0.0], [], [0]

    class Slow:
        def run(self, op, feed=None):
            if feed:
                size[0] = next(iter(feed.values()))
            elif op == "move":
                sent.append(size[0])
                now[0] += size[0] / 1e6

    with tf1.Graph().as_default():
        probe = LinkProbe(context)
    rate = probe._measure(Slow(), ("fill", "move", "delete"), lambda: now[0])
    assert rate == pytest.approx(1e6) and max(sent) <= 2**18 and now[0] < 3.0


def make_profiler(task, records, clock, error=None, **settings):
    runtime = FakeRuntime(task, monitor=FakeMonitor(FakeView(records)))
    runtime.guard = FakeGuard(error)
    with tf1.Graph().as_default():
        made = Profiler(runtime, TrainConfig(profile_steps=4, **settings), clock, clock.sleep)
    made._probe = type("Probe", (), {"run": lambda self, session: {"ps:0": (clock.now, 2.0)}})()
    return made


class Session:
    def run_step_fn(self, function):
        function(None)


STEP_HOOK = type("StepHook", (), {"session": None})


def probe_with(clock, task, records, changes=None):
    """Probes as `task`; `changes`: moment -> the records from then on. (when it probed, when it went on)."""
    made = make_profiler(task, records, clock)
    start, sleep = clock.now, clock.sleep

    def slept(secs):
        sleep(secs)
        for moment, shown in (changes or {}).items():
            if clock.now - start >= moment:
                made._monitor.shown = FakeView(shown)

    made._sleep = slept
    made.probe_links(Session(), STEP_HOOK)
    assert made._monitor.fields["profile"] == PROBED
    return made._link_rates["ps:0"][0] - start, clock.now - start, made._is_probe_alone


def test_workers_probe_one_after_the_other_and_none_trains_meanwhile():
    waiting, done = {"state": "training", "profile": PROBING}, {"state": "training", "profile": PROBED}
    first = {"worker:0": waiting, "worker:1": waiting, "worker:2": waiting}
    second, third = {**first, "worker:0": done}, {**first, "worker:0": done, "worker:2": done}
    probed, went_on, is_alone = probe_with(Clock(), "worker:1", first, {3: second, 7: third})
    assert probed == pytest.approx(3, abs=0.1) and went_on == pytest.approx(7, abs=0.1) and is_alone


def test_a_worker_that_has_not_said_yet_whether_it_profiles_is_waited_for():
    others = {"worker:0": {"state": "starting"}, "worker:1": {}, "worker:2": {"state": "left"}}
    probed, *_ = probe_with(Clock(), "worker:1", others, {5: {**others, "worker:0": {"state": "training"}}})
    assert probed == pytest.approx(5, abs=0.1)


def test_a_worker_that_does_not_come_or_never_probes_is_not_waited_for_for_ever(lines):
    probed, went_on, _ = probe_with(Clock(), "worker:1", {"worker:1": {}})
    assert probed == went_on == pytest.approx(profiler.GATE_SECS, abs=0.1)
    assert lines()[0] == (
        "waiting for the start of worker:0 at w0:1, worker:2 at w2:1: 2 s so far, going on after 30 s"
    )


def test_others_that_do_not_profile_are_not_waited_for_but_told_of():
    others = {f"worker:{number}": {"state": "training", "local_steps": 9} for number in (0, 1, 2)}
    assert probe_with(Clock(), "worker:1", others) == (0, 0, False)


def test_a_signal_ends_the_wait():
    made = make_profiler("worker:1", {}, Clock(), StoppedError("stopped by SIGTERM", 143))
    with pytest.raises(StoppedError):
        made.probe_links(Session(), STEP_HOOK)


def test_traces_come_after_the_first_steps_and_ever_more_seldom(monkeypatch):
    clock = Clock()
    record = {"run": "a", "beat": 0, "local_steps": 0, "cpu_secs": 0.0, "cores": 4}
    made = make_profiler("worker:0", {"ps:0": record}, clock)
    monkeypatch.setattr(
        profiler.step_trace, "read", lambda stats, task: step_trace.StepTrace(0.01, {"compute": 0.01}, {})
    )
    made.start_session()
    traced_at = []
    while clock.now < 1040:
        clock.now += 0.01
        if made.wants_trace():
            traced_at.append(round(clock.now - 1000, 2))
            made.note_trace(0.02, None)
        else:
            made.note_step(0.01)
    assert traced_at[0] == pytest.approx(profiler.WARM_SECS, abs=0.1)
    gaps = np.diff(traced_at)
    assert gaps[0] == pytest.approx(profiler.MIN_BETWEEN_SECS, abs=0.02) and gaps[-1] > 8 * gaps[0]
    assert np.all(np.diff(gaps) > -0.02) and len(traced_at) < 30
    assert 2 <= len(made._traces.values) <= 4


def test_the_profile_is_in_the_report_and_the_table_in_the_log(monkeypatch, lines):
    clock = Clock()
    record = {"run": "a", "beat": 0, "local_steps": 0, "cpu_secs": 1.0, "cores": 4}
    made = make_profiler("worker:0", {"worker:0": record, "worker:1": record}, clock)
    traces = functools.partial(step_trace.StepTrace, 0.01, {"compute": 0.01})
    monkeypatch.setattr(profiler.step_trace, "read", lambda stats, task: traces({}))
    for _ in range(600):
        clock.now += 0.01
        made.note_step(0.01)
    made._monitor.shown = FakeView(
        {"worker:0": {**record, "beat": 4_000_000, "local_steps": 400, "cpu_secs": 3.0}}
    )
    made.note_trace(0.02, None)
    with made:
        pass
    found = made._runtime.report.profile
    assert (found["step_secs"], found["traced_step_secs"], found["steps_per_sec"]) == (
        0.01,
        0.02,
        pytest.approx(100),
    )
    assert found["rates"] == {"worker:0": 100.0}
    assert (found["settings"]["num_workers"], found["settings"]["quorum"]) == (3, 3)
    assert sum(found["parts"].values()) == pytest.approx(0.01)
    assert lines()[0].startswith("worker ") and "verdict: compute-bound: 100% of a step" in "\n".join(lines())


def test_a_training_that_was_too_short(lines):
    made = make_profiler("worker:0", {}, Clock())
    made.finish()
    assert made._runtime.report.profile is None
    assert lines() == ["no step was traced: the training was too short for --profile_steps"]
