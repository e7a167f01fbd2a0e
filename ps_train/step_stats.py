"""TensorFlow's notes of one traced run of a graph, `StepStats`, as values: ops with what each waited for, and tensors that arrived.

    found = parse(metadata.step_stats)
    found.ops["worker:1"][0]         # Op(name='MatMul', type='MatMul', device='CPU:0', inputs=('Relu', 'read_S7'), ...)
    found.transfers[0]               # Transfer(tensor='read', source='ps:0', target='worker:1', arrival=..., num_bytes=4000000)

Times are nanoseconds since 1970 by the clock of the host on which the op ran, or to which the tensor came. A label names an op's
inputs, control inputs with a `^`, as they were called in the part of the graph that this task ran: what comes from another task is
called as its op there, with a number behind it, as `read_S7`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

_TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)(?:/device:(\S+))?")
_RECEIVED = re.compile(r"(?:edge_\d+_)?(\S+) from (\S+) to (\S+)")
_LABEL = re.compile(r" = (\w+)\((.*)\)")
ARRIVAL_NANOS = 1000  # an arrival may be later by up to that
_BEGIN = "_SOURCE"  # an op that does nothing, the first one of each task's part


class Op(NamedTuple):
    """An op that was run; `ready` is when it was put into the queue of those that can run."""

    name: str
    type: str
    device: str
    inputs: tuple[str, ...]
    ready: int
    start: int
    end: int


class Transfer(NamedTuple):
    """A tensor that has come from another task."""

    tensor: str
    source: str
    target: str
    arrival: int
    num_bytes: int


class Stats(NamedTuple):
    """One run.

    Attributes:
      ops: of each task, as "ps:0".
      transfers: from task to task.
      begins: task -> when its part of the graph began to run.
    """

    ops: dict[str, list[Op]]
    transfers: list[Transfer]
    begins: dict[str, int]


def parse(step_stats: Any) -> Stats:
    """The Stats of a `StepStats`."""
    found = Stats(defaultdict(list), [], {})
    for device in step_stats.dev_stats:
        task, name = _task_of(device.device)
        for node in device.node_stats:
            start = node.all_start_nanos
            end = start + node.all_end_rel_nanos
            if node.node_name == "RecvTensor":
                found.transfers.extend(_received(node))
            elif node.node_name == _BEGIN:
                found.begins[task] = min(end, found.begins.get(task, end))
            elif not node.node_name.startswith("_"):
                label = _LABEL.search(node.timeline_label)
                kind, inputs = label.groups() if label else ("", "")
                waited_for = tuple(inputs.split(", ")) if inputs else ()
                ready = node.scheduled_nanos or start
                found.ops[task].append(Op(node.node_name, kind, name, waited_for, ready, start, end))
    return found


def _received(node: Any) -> list[Transfer]:
    """The arrival is noted in microseconds, cut off."""
    arrival = (node.all_start_micros + node.all_end_rel_micros) * ARRIVAL_NANOS
    label = _RECEIVED.search(node.timeline_label)
    if not label:
        return []
    size = sum(o.tensor_description.allocation_description.requested_bytes for o in node.output)
    return [Transfer(label[1], _task_of(label[2])[0], _task_of(label[3])[0], arrival, size)]


def _task_of(device: str) -> tuple[str, str]:
    """(`ps:0`, `CPU:0`) of a device."""
    match = _TASK.search(device)
    return (f"{match[1]}:{match[2]}", match[3] or "") if match else (device, "")
