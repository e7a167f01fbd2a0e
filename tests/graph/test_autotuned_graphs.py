"""A graph that is wired for one transport after the other computes what a graph of each one's own does."""

import threading

import numpy as np
import pytest
from in_process import lend_servers
from stepping import PACK, Run, build, deep, input_fn

from ps_train import autotune, task_context
from ps_train import graph as graph_lib
from ps_train.autotune import PLAIN, Setting
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.inputs import build_input_init
from ps_train.model.loading import Model
from ps_train.rewiring import Wiring
from ps_train.transport_hook import TransportHook, _bound_to_a_session

pytestmark = pytest.mark.graph
STEPS = 3


class Parts:
    """What the hook tells a SessionCreator and a StepRunner."""

    fused = first_pull = None

    def __init__(self, cold_ops):
        self.cold_ops, self.rewiring = cold_ops, threading.Lock()


class TunedRun:
    """One graph with all the ways that its flags allow, and a session for each use of one."""

    def __init__(self, **flags):
        self._servers = lend_servers(num_ps=2, num_workers=1)
        context = task_context.TaskContext(
            TaskId("worker", 0), self._servers.cluster, autotune=True, pack_bytes=PACK, **flags
        )
        task_context.set_current(context)
        model = Model(input_fn, deep(), "model", __file__)
        self._ops = graph_lib.build_train(context, TrainConfig(seed=3), model)
        self.settings = autotune.settings(context)
        with self._ops.graph.as_default():
            self._variables, self._init = tf1.global_variables(), tf1.global_variables_initializer()
            self._start = [build_input_init(), tf1.local_variables_initializer()]
            self._parts = Parts([self._init])
            runs = [[self._ops.step, self._ops.loss]]
            self._hook = TransportHook(runs, context, self._parts, self._parts)
            self._hook.begin()
        self._ops.graph.finalize()

    def steps(self, setting, count=STEPS, is_anew=True):
        """As `stepping.Run.steps`, in a session of its own; the model and the input are where they were or are begun anew."""
        self._hook.use(setting)
        with tf1.Session(self._servers.target(TaskId("worker", 0)), graph=self._ops.graph) as session:
            if is_anew:
                for op in [self._init, *(self._parts.fused.load if self._parts.fused else ()), self._start]:
                    session.run(op)
            if self._parts.first_pull is not None:
                session.run(self._parts.first_pull)
            losses = [session.run([self._ops.step, self._ops.loss])[1] for _ in range(count)]
            values = session.run(self._variables)
        return losses, dict(zip([v.op.name for v in self._variables], values, strict=True))


def expected(setting, fuse_bytes, count=STEPS):
    run = Run(
        servers := lend_servers(num_ps=2, num_workers=1),
        build(
            servers, deep(), setting.pack_bytes, wire_dtype=setting.wire_dtype, fuse_bytes=fuse_bytes,
            prefetches=setting.prefetch,
        ),
    )  # fmt: skip
    return run.steps(count)


def assert_same(found, wanted):
    assert found[0] == wanted[0]
    assert found[1].keys() == wanted[1].keys()
    for name, value in wanted[1].items():
        np.testing.assert_array_equal(found[1][name], value, name)


@pytest.mark.parametrize(
    ("fuse_bytes", "flags", "count"),
    [(PACK, {"wire_dtype": "bfloat16", "prefetch": True}, 5), (0, {"wire_dtype": "int8"}, 4)],
)
def test_each_way_of_one_graph_is_that_of_a_graph_of_its_own(fuse_bytes, flags, count):
    run = TunedRun(fuse_bytes=fuse_bytes, **flags)
    wanted = {setting: expected(setting, fuse_bytes) for setting in run.settings}
    assert len(wanted) == count
    assert len({str(losses) for losses, _ in wanted.values()}) > 1, "they would all be the same in any case"
    for setting in [*run.settings, run.settings[0]]:
        assert_same(run.steps(setting), wanted[setting])


def test_model_and_input_are_where_they_were_after_a_change():
    run = TunedRun(fuse_bytes=PACK)
    packed, plain = run.settings
    assert (packed, plain) == (Setting(PACK), PLAIN)
    parts = [run.steps(packed), run.steps(plain, is_anew=False), run.steps(packed, is_anew=False)]
    losses = [loss for part, _ in parts for loss in part]
    assert_same((losses, parts[-1][1]), expected(packed, PACK, count=3 * STEPS))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: tf1.FIFOQueue(3, tf.int64), "FIFOQueueV2"),
        (lambda: tf1.FIFOQueue(3, tf.int64, shared_name="numbers"), None),
        (lambda: tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)), "OneShotIterator"),
        (lambda: tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0), None),
        (lambda: tf1.get_variable("w", [3]), None),
        (lambda: tf1.get_variable("w", [3], use_resource=False), None),
    ],
)
def test_what_lives_in_one_session_is_seen(make, found):
    with tf1.Graph().as_default() as graph:
        make()
        op = _bound_to_a_session(graph)
    assert (op.type if op is not None else None) == found


def test_a_wiring_is_put_back_and_applied_again():
    with tf1.Graph().as_default() as graph:
        one, two = tf.constant(1.0), tf.constant(2.0)
        first, last = tf.no_op("first"), tf.no_op("last")
        with tf.control_dependencies([first]):
            total = tf.add(one, two)
        wiring, find = Wiring(graph), graph.as_graph_element
        total.op._update_input(0, two)
        total.op._remove_all_control_inputs()
        total.op._add_control_inputs([last])
        graph.as_graph_element = lambda *args: two
        changed = wiring.note()
        assert list(changed.ops) == [total.op]
        for _ in range(2):
            wiring.restore()
            assert (total.op.inputs, total.op.control_inputs) == ((one, two), [first])
            assert graph.as_graph_element == find
            wiring.apply(changed)
            assert (total.op.inputs, total.op.control_inputs) == ((two, two), [last])
            assert graph.as_graph_element("any") is two
