"""What one worker has traced, by the clocks of the hosts on which it was, as a text of bounded size.

    text, num_cut = pack(Part("worker:1", "worker:1", runs), max_bytes=2**23)
    part = unpack(text)

A part holds each op of a graph once, with its inputs, and of each run its times alone: a step is a few kilobytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ps_train.step_stats import Stats, Transfer
from ps_train.step_trace import with_kinds

STEP, UPDATE_RUN = "step", "round"


class TracedOp(NamedTuple):
    """An op: where it ran, what part of a step it is (`step_trace.PARTS`), what it waited for; when it could run, and did."""

    task: str
    device: str
    name: str
    type: str
    kind: str
    inputs: tuple[str, ...]
    ready: int
    start: int
    end: int


class Run(NamedTuple):
    """One call of a worker's session.

    Attributes:
      owner: the worker's name.
      server: the name of its server: the same, or "ps:1" where it is a ps, too.
      kind: STEP, or UPDATE_RUN of the chief's thread that applies the mean gradient of a synchronous job.
      step: the global step that it has made; of an update, the last that was known.
      batch: its number in a step of several batches, from 0.
      begin, end: of the call.
      ops: of all tasks.
      transfers: tensors that went from task to task.
      begins: task -> when its part of the graph began to run.
    """

    owner: str
    server: str
    kind: str
    step: int
    batch: int
    begin: int
    end: int
    ops: tuple[TracedOp, ...]
    transfers: tuple[Transfer, ...]
    begins: dict[str, int]


class Part(NamedTuple):
    """What one worker has traced.

    Attributes:
      owner, server: as a Run's.
      runs: in their order.
    """

    owner: str
    server: str
    runs: tuple[Run, ...]


def make_run(
    owner: str, server: str, kind: str, step: int, batch: int, begin: int, end: int, stats: Stats
) -> Run:
    """The Run of what TensorFlow has noted; the arguments are its fields."""
    ops = [
        TracedOp(task, op.device, op.name, op.type, part, op.inputs, op.ready, op.start, op.end)
        for task in stats.ops
        for op, part in with_kinds(stats.ops, task, server)
    ]
    return Run(
        owner, server, kind, step, batch, begin, end, tuple(ops), tuple(stats.transfers), dict(stats.begins)
    )


def pack(part: Part, max_bytes: int) -> tuple[str, int]:
    """(text, how many runs are not in it): the later ones are left out, if all take more than `max_bytes`."""
    runs = list(part.runs)
    while True:
        raw = json.dumps(_as_dict(part, runs), separators=(",", ":")).encode()
        text = base64.b85encode(zlib.compress(raw, 6)).decode()
        if len(text) <= max_bytes or not runs:
            return text, len(part.runs) - len(runs)
        runs = runs[: min(len(runs) - 1, int(len(runs) * max_bytes / len(text)))]


def unpack(text: str) -> Part:
    """The Part that `pack` has written; raises ValueError if it is something else."""
    try:
        found = json.loads(zlib.decompress(base64.b85decode(text)))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    nodes = [
        (task, device, name, kind_of_op, part, tuple(inputs))
        for task, device, name, kind_of_op, part, inputs in found["nodes"]
    ]
    runs = tuple(_run(found["owner"], found["server"], nodes, run) for run in found["runs"])
    return Part(found["owner"], found["server"], runs)


def _as_dict(part: Part, runs: Sequence[Run]) -> dict[str, Any]:
    numbers: dict[tuple, int] = {}
    shown = []
    for run in runs:
        ops = [
            (numbers.setdefault(op[:6], len(numbers)), *(moment - run.begin for moment in op[6:]))
            for op in run.ops
        ]
        shown.append({
            "kind": run.kind, "step": run.step, "batch": run.batch, "begin": run.begin, "secs": run.end - run.begin, "ops": ops,
            "transfers": [(*t[:3], t.arrival - run.begin, t.num_bytes) for t in run.transfers],
            "begins": {task: moment - run.begin for task, moment in run.begins.items()},
        })  # fmt: skip
    return {"owner": part.owner, "server": part.server, "nodes": list(numbers), "runs": shown}


def _run(owner: str, server: str, nodes: list[tuple], run: dict[str, Any]) -> Run:
    begin = run["begin"]
    return Run(
        owner, server, run["kind"], run["step"], run["batch"], begin, begin + run["secs"],
        tuple(TracedOp(*nodes[n], *(begin + moment for moment in moments)) for n, *moments in run["ops"]),
        tuple(
            Transfer(tensor, source, target, begin + arrival, size)
            for tensor, source, target, arrival, size in run["transfers"]
        ),
        {task: begin + moment for task, moment in run["begins"].items()},
    )  # fmt: skip
