"""What a step is said to send, by its graph, against what went over the line in traced steps of real servers."""

import contextlib

import numpy as np
import pytest
from in_process import lend_servers
from stepping import OPTIMIZERS, PACK, Run, build, deep

from ps_train import placement, step_trace, task_context
from ps_train.autotune import Setting
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.graph import build_train
from ps_train.model import ModelSpec
from ps_train.model.loading import Model
from ps_train.tables import Line
from ps_train.traffic import traffic

pytestmark = pytest.mark.graph
NUM_TRACES = 8
WAYS = {
    "plain": {},
    "packed": {"pack_bytes": PACK},
    "fused": {"pack_bytes": PACK, "fuse_bytes": PACK},
    "bfloat16": {"pack_bytes": PACK, "fuse_bytes": PACK, "wire_dtype": "bfloat16"},
    "int8": {"pack_bytes": PACK, "wire_dtype": "int8"},
    "prefetch": {"pack_bytes": PACK, "fuse_bytes": PACK, "prefetches": True},
    "buckets": {"pack_bytes": PACK, "bucket_bytes": 1000},
    "topk": {"pack_bytes": PACK, "topk": 0.1},
    "sync": {"pack_bytes": PACK, "fuse_bytes": PACK, "update": "sync"},
    "plain sync": {"update": "sync"},
}


def said_and_traced(servers, settings, optimizer="adam"):
    """(name of a ps -> Line, name of a ps -> Traffic): TensorFlow leaves some out of some traces, on a busy machine of most."""
    run = Run(servers, build(servers, deep(OPTIMIZERS[optimizer]), **settings))
    fetches = [run.ops.step, run.ops.loss]
    traces = []
    try:
        with run.serving() if settings.get("update") == "sync" else contextlib.nullcontext():
            for number in range(2 + NUM_TRACES):
                metadata = tf1.RunMetadata()
                options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
                run.session.run(fetches, options=options, run_metadata=metadata)
                if number >= 2:
                    traces.append(step_trace.read(metadata.step_stats, "worker:0"))
    finally:
        run.session.close()
    setting = Setting(
        settings.get("pack_bytes", 0),
        settings.get("wire_dtype", "float32"),
        settings.get("prefetches", False),
    )
    lines = traffic(run.ops.graph, [(1, fetches)], task_context.current(), setting)
    whole = max(
        traces, key=lambda t: sum(line.pull_messages + line.push_messages for line in t.links.values())
    )
    return {line.peer: line for line in lines}, whole.links


# With one ps, the scalars of an update all have one place to go, and TensorFlow does not copy them.
@pytest.mark.parametrize(
    "num_ps, way", [*((2, way) for way in WAYS), (1, "packed"), (1, "prefetch"), (1, "sync")]
)
def test_a_step_sends_what_is_said(num_ps, way):
    lines, traced = said_and_traced(lend_servers(num_ps=num_ps, num_workers=1), WAYS[way])
    assert list(lines) == list(traced) == [f"ps:{index}" for index in range(num_ps)]
    for ps, line in lines.items():
        seen = traced[ps]
        assert (line.pull_messages, line.push_messages) == (seen.pull_messages, seen.push_messages), ps
        assert line.pulled_bytes == seen.pulled_bytes
        if way == "topk":  # of which each large gradient has two: places and values
            assert line.unsized_messages in (2, 4, 6) and line.pushed_bytes < seen.pushed_bytes
        else:
            assert (line.pushed_bytes, line.unsized_messages) == (seen.pushed_bytes, 0)


def test_how_it_is_sent_is_told():
    servers = lend_servers(num_ps=1, num_workers=1)
    told = {}
    for way, settings in WAYS.items():
        ops, *_ = build(servers, deep(), **settings)
        setting = Setting(
            settings.get("pack_bytes", 0),
            settings.get("wire_dtype", "float32"),
            settings.get("prefetches", False),
        )
        (line,) = traffic(ops.graph, [(1, [ops.step, ops.loss])], task_context.current(), setting)
        told[way] = (line.dtypes, line.how)
    assert told == {
        "plain": (("float32",), ()),
        "packed": (("float32",), ("packed",)),
        "fused": (("float32",), ("fused", "packed")),
        "bfloat16": (("bfloat16",), ("fused", "packed")),
        "int8": (("int8", "float32", "bfloat16"), ("packed",)),
        "prefetch": (("float32",), ("fused", "packed", "prefetch")),
        "buckets": (("float32",), ("packed", "buckets of 1000 B")),
        "topk": (("float32", "int32"), ("packed", "topk 0.1")),
        "sync": (("float32",), ("fused", "packed")),
        "plain sync": (("float32",), ()),
    }


def test_several_batches_of_a_step_count_each():
    """`start` once, `add` for all batches but the last, and the step."""
    servers = lend_servers(num_ps=1, num_workers=1)
    ops, *_ = build(servers, deep(), pack_bytes=PACK)
    context, fetches = task_context.current(), [ops.step, ops.loss]
    (one,) = traffic(ops.graph, [(1, fetches)], context, Setting(PACK))
    (all_three,) = traffic(ops.graph, [(1, fetches), (2, [ops.loss])], context, Setting(PACK))
    (pulled,) = traffic(ops.graph, [(1, [ops.loss])], context, Setting(PACK))
    assert pulled.push_messages < one.push_messages and pulled.pulled_bytes == one.pulled_bytes > 100_000
    assert all_three.pulled_bytes == one.pulled_bytes + 2 * pulled.pulled_bytes
    assert all_three.pull_messages == one.pull_messages + 2 * pulled.pull_messages


def model_fn(features, labels):
    weights = tf1.get_variable("weights", [1000, 10])
    loss = tf.reduce_sum(tf.matmul(features, weights) + tf1.get_variable("biases", [10]))
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))


def input_fn(context):
    return tf.data.Dataset.from_tensors((np.ones([4, 1000], np.float32), np.ones([4], np.float32))).repeat()


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_ring_sends_its_pieces(num_workers):
    """Each worker, of each sum, an nth to its neighbour, and so n - 1 times for the sum, and as often for the result."""
    workers = [f"w{index}:1" for index in range(num_workers)]
    cluster = Cluster.from_hosts([], workers, is_colocated=True)
    context = task_context.TaskContext(TaskId("worker", 0), cluster, update="allreduce", pack_bytes=0)
    task_context.set_current(context)
    config = TrainConfig(update="allreduce", seed=1)
    ops = build_train(context, config, Model(input_fn, model_fn, "model", __file__))
    (line,) = traffic(ops.graph, [(1, [ops.step, ops.loss])], context, Setting(0))
    sizes = [40_000, 40, 12]  # weights, biases, and what all agree on: three numbers
    pieces = 2 * (num_workers - 1)
    sent = sum(pieces * size // num_workers for size in sizes)
    assert line == Line(
        "other workers",
        pieces * 3,
        sent,
        pieces * 3,
        sent,
        0,
        ("float32",),
        (f"ring of {num_workers}", "3 sums"),
    )
    rows = placement.held(cluster, ops.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES))
    assert {row.name: row.num_bytes for row in rows} == {"global_step": 8, "weights": 40_000, "biases": 40}


def test_a_loop_and_a_condition_of_the_first_kind():
    """Whose ops go in a circle; the variable is read there, once for the loop's invariant and once for the branch."""
    context = task_context.TaskContext(TaskId("worker", 0), Cluster.from_hosts("p0:1", "w0:1"))
    with tf1.Graph().as_default() as graph, placement.scope(context):
        tf1.disable_control_flow_v2()
        try:
            weights = tf1.get_variable("weights", [100])
            looped = tf1.while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, x + weights), [0, tf.zeros([100])]
            )[1]
            chosen = tf1.cond(looped[0] > 0, lambda: weights + 1.0, lambda: looped)
        finally:
            tf1.enable_control_flow_v2()
        (line,) = traffic(graph, [(1, [tf.reduce_sum(chosen)])], context, Setting(0))
    assert line.pull_messages >= 2 and line.pulled_bytes >= 800
