"""Reading a traced step, from statistics made by hand: where its time went, and what went over the line."""

from types import SimpleNamespace

import pytest

from ps_train import step_trace
from ps_train.step_trace import PARTS

WORKER, PS = "/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"
MS = 1_000_000  # in nanoseconds


def node(name, start, end, label, num_bytes=()):
    output = [
        SimpleNamespace(
            tensor_description=SimpleNamespace(allocation_description=SimpleNamespace(requested_bytes=size))
        )
        for size in num_bytes
    ]
    return SimpleNamespace(
        node_name=name, all_start_nanos=int(start * MS), all_end_rel_nanos=int((end - start) * MS),
        scheduled_nanos=int(start * MS), all_start_micros=int(start * MS) // 1000, all_end_rel_micros=int((end - start) * MS) // 1000,
        timeline_label=label, output=output,
    )  # fmt: skip


def op(name, kind, start, end):
    return node(name, start, end, f"{name} = {kind}(a, b)")


def received(tensor, source, target, end, num_bytes):
    label = f"[4.0MB] [3.3Gb/s] edge_24_{tensor} from {source} to {target}"
    return node("RecvTensor", end - 0.5, end, label, [num_bytes])


def stats(**devices):
    names = {"worker": WORKER, "ps": PS}
    return SimpleNamespace(
        dev_stats=[SimpleNamespace(device=names[task], node_stats=nodes) for task, nodes in devices.items()]
    )


def a_step(ps_clock=0):
    """Pull from 1 to 5 ms, input until 3, compute from 5 to 9, push from 9 to 12, update until 14; `ps_clock` is ahead."""
    late = ps_clock
    return stats(
        worker=[
            op("next", "IteratorGetNext", 0, 3),
            received("read", PS, WORKER, 5, 4_000_000),
            op("matmul", "MatMul", 5, 9),
            op("rate", "Const", 0, 0),
        ],
        ps=[
            op("read", "ReadVariableOp", late + 1, late + 1),
            received("matmul", WORKER, PS, late + 12, 4_000_000),
            received("rate", WORKER, PS, late + 2, 4),
            op("apply", "ResourceApplyGradientDescent", late + 12, late + 14),
        ],
    )


def milliseconds(parts):
    return {part: round(1000 * secs, 6) for part, secs in parts.items()}


def test_parts_add_up_and_are_what_held_the_step_up():
    trace = step_trace.read(a_step(), "worker:1")
    assert trace.secs == pytest.approx(0.014)
    assert sum(trace.parts.values()) == pytest.approx(trace.secs)
    expected = {"input": 1, "pull": 4, "compute": 4, "push": 3, "update": 2}  # the pull ends after the input
    assert {part: round(1000 * secs, 6) for part, secs in trace.parts.items() if secs > 1e-9} == expected
    assert set(trace.parts) <= set(PARTS)


def test_bytes_messages_and_seconds_of_the_line():
    line = step_trace.read(a_step(), "worker:1").links["ps:0"]
    assert (line.pulled_bytes, line.pushed_bytes) == (4_000_000, 4_000_004)
    assert (line.pull_messages, line.push_messages) == (1, 2)
    assert (line.pull_secs, line.push_secs) == (pytest.approx(0.004), pytest.approx(0.003))


@pytest.mark.parametrize("ahead", [-3_600_000, -40, 40, 3_600_000])
def test_a_ps_with_another_clock_is_moved_to_where_causes_precede_effects(ahead):
    """The tensors took 4 ms one way and 3 ms the other, the scalar 2 ms: the error is 1 ms."""
    trace = step_trace.read(a_step(ps_clock=ahead), "worker:1")
    assert sum(trace.parts.values()) == pytest.approx(trace.secs)
    assert trace.secs == pytest.approx(0.014, abs=0.0011)
    parts = {part: 1000 * secs for part, secs in trace.parts.items()}
    assert parts["compute"] == pytest.approx(4, abs=0.01) and parts["update"] == pytest.approx(2, abs=0.01)
    assert parts["pull"] == pytest.approx(4, abs=1.1) and parts["push"] == pytest.approx(3, abs=1.1)


def test_a_token_that_is_waited_for_is_a_wait():
    step = stats(
        worker=[op("matmul", "MatMul", 0, 4)],
        ps=[
            received("matmul", WORKER, PS, 6, 1000),
            op("accumulate", "ResourceAccumulatorApplyGradient", 6, 7),
            op("token", "QueueDequeueV2", 7, 20),
        ],
    )
    parts = step_trace.read(step, "worker:1").parts
    assert milliseconds(parts) == {
        "compute": 4, "push": 2, "update": 1, "wait": 13,
    }  # fmt: skip


def test_a_worker_that_is_the_ps_of_the_token_waits_for_it_and_not_for_input():
    """With --colocate_ps the first worker's own ops are those of ps:0: its input queue, the round's lock and its token."""
    ops = [
        op("batch_queue_Dequeue", "QueueDequeueV2", 0, 3),
        op("sync_replicas/ps_train_sync0_claim/MutexLock", "MutexLock", 3, 4),
        op("matmul", "MatMul", 4, 8),
        op("sync_replicas/ps_train_sync0_token/fifo_queue_1_Dequeue", "QueueDequeueV2", 8, 20),
    ]
    parts = step_trace.read(stats(ps=ops), "ps:0").parts
    assert milliseconds(parts) == {
        "input": 3, "wait": 13, "compute": 4,
    }  # fmt: skip


def test_what_a_worker_that_is_a_ps_updates_of_its_own_part_is_no_arithmetic_of_the_model():
    ops = [
        op("matmul", "MatMul", 0, 4),
        op("Adam/update_table/mul", "Mul", 4, 6),
        op("Adam/update_table/ResourceScatterAdd", "ResourceScatterAdd", 6, 7),
        op("ps_train/fused/0/update", "ResourceApplyAdam", 7, 9),
        op("sync_replicas/push", "ResourceAccumulatorApplyGradient", 9, 10),
        op("gru/update_gate/MatMul", "MatMul", 10, 14),
    ]
    for devices, worker, update in ({"ps": ops}, "ps:0", 6), ({"worker": ops}, "worker:1", 0):
        parts = step_trace.read(stats(**devices), worker).parts
        assert milliseconds(parts).get("update", 0.0) == update
        assert milliseconds(parts)["compute"] == 14 - update


def test_a_tensor_of_an_op_that_is_not_in_the_trace_counts_by_its_bytes_alone():
    step = stats(
        worker=[op("matmul", "MatMul", 5, 9), received("renamed", PS, WORKER, 5, 640)],
        ps=[op("x", "Y", 1, 2)],
    )
    trace = step_trace.read(step, "worker:1")
    assert trace.links["ps:0"].pulled_bytes == 640 and trace.links["ps:0"].pull_secs == 0.0
    assert trace.parts["other"] == pytest.approx(0.003)


def test_nothing_was_traced():
    trace = step_trace.read(stats(), "worker:1")
    assert (trace.secs, trace.parts, trace.links) == (0.0, {}, {})
