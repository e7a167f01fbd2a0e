"""A trace as a file of Chrome's trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing, and back.

    write("runs/1/trace-100-105.json", merged, {"steps": "100:105", ...})     # .json.gz if it is large; gives the path
    merged, facts = read("runs/1/trace-100-105.json")

What is there: a process for each task; in it lanes, threads in that format, for a worker's steps, its computation, its input, what it has
received, and on a ps for the updates, the waits and what has come, by whose step it was. What goes on at the same time is in lanes
of its own, "compute 2". Each op and message is a complete event (X), with TensorFlow's names in its arguments. An arrow (s, f) leads
from the op that made a tensor to the message on the task that it came to. The global step is a counter. Times are microseconds from
the first event on, by the reference's clock; `otherData` says by how much each other clock was ahead, and how exactly that is known.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ps_train.step_trace import INPUT, PARTS, UPDATE, WAIT
from ps_train.timeline import COMPUTE
from ps_train.trace.clocks import Clock
from ps_train.trace.critical import way_of
from ps_train.trace.merged import AlignedRun, Merged, Message
from ps_train.trace.parts import STEP, UPDATE_RUN, TracedOp
from ps_train.whole_files import write_bytes

MAX_PLAIN_BYTES = 16_000_000
FIRST_LANE = 1000  # number of a lane; those of processes are smaller
LANES = (STEP, UPDATE_RUN, INPUT, COMPUTE, UPDATE, WAIT, "received")
FORMAT = "ps_train trace 1"


class _Slice(NamedTuple):
    """A complete event before it has a lane: `lane` is (task, whose, what)."""

    lane: tuple[str, str, str]
    start: int
    end: int
    name: str
    category: str
    args: dict[str, Any]


def events(merged: Merged, labels: Mapping[str, str], missing: Mapping[str, str]) -> list[dict[str, Any]]:
    """All events of a trace.

    Args:
      merged: the trace.
      labels: task -> name of its process.
      missing: worker -> why nothing of it is there.
    """
    slices, arrows = _slices(merged.runs)
    origin = min((each.start for each in slices), default=0)
    tasks = sorted({*labels, *(each.lane[0] for each in slices)})
    numbers = {task: number for number, task in enumerate(tasks, 1)}
    found = [_named("process_name", numbers[task], 0, labels.get(task, task)) for task in tasks]
    lanes = _Lanes(slices)
    found += lanes.names(numbers)
    for each, lane in zip(slices, lanes.of, strict=True):
        found.append({
            "ph": "X", "name": each.name, "cat": each.category, "pid": numbers[each.lane[0]], "tid": lane,
            "ts": _micros(each.start - origin), "dur": _micros(each.end - each.start), "args": each.args,
        })  # fmt: skip
    for number, (source, target, args) in enumerate(arrows, 1):
        for phase, index in (("s", source), ("f", target)):
            there = slices[index]
            arrow = {
                "ph": phase, "id": number, "name": args["way"], "cat": "message", "pid": numbers[there.lane[0]],
                "tid": lanes.of[index], "ts": _micros(there.end - 1 - origin), "args": args,
            }  # fmt: skip
            found.append(arrow | ({"bp": "e"} if phase == "f" else {}))
    for each in slices:
        if each.category == STEP:
            found.append({
                "ph": "C", "name": "global step", "pid": numbers[each.lane[0]], "tid": 0, "ts": _micros(each.end - origin),
                "args": {"step": each.args["step"]},
            })  # fmt: skip
    for worker, reason in missing.items():
        name = f"{worker} is missing: {reason}"
        found.append({"ph": "i", "s": "g", "name": name, "pid": 1, "tid": 0, "ts": 0})
    return found


def _slices(runs: Iterable[AlignedRun]) -> tuple[list[_Slice], list[tuple[int, int, dict[str, Any]]]]:
    """All slices; and arrows, from the number of one to that of another."""
    slices: list[_Slice] = []
    arrows = []
    for number, run in enumerate(runs):
        about = {"of": run.owner, "run": number}
        head = {
            **about,
            "step": run.step,
            "batch": run.batch,
            "server": run.server,
            "begins": _begins(run),
        }
        name = f"step {run.step}" if run.kind == STEP else "update of a round"
        slices.append(
            _Slice((run.server, run.owner, run.kind), run.begin, max(run.end, run.begin + 1), name, run.kind, head)
        )  # fmt: skip
        makers: dict[tuple[str, str, int], int] = {}
        for op in run.ops:
            lane = (op.task, run.owner, op.kind if op.kind in LANES else COMPUTE)
            end = max(op.end, op.start + 1)
            makers[op.task, op.name, op.end] = len(slices)
            args = {
                **about,
                "type": op.type,
                "device": op.device,
                "inputs": list(op.inputs),
                "queued": _micros(op.start - op.ready),
            }
            slices.append(_Slice(lane, op.start, end, op.name, op.kind, args))
        for message in run.messages:
            way = way_of(message.source, message.target, run)
            args = {
                **about,
                "from": message.source,
                "bytes": message.num_bytes,
                "is_sent": message.sent is not None,
            }
            start = message.arrival - 1 if message.sent is None else min(message.sent, message.arrival - 1)
            maker = makers.get((message.source, message.tensor, message.sent or 0))
            if maker is not None:
                about_arrow = {"bytes": message.num_bytes, "tensor": message.tensor, "way": way}
                arrows.append((maker, len(slices), about_arrow))
            lane = (message.target, run.owner, "received")
            slices.append(_Slice(lane, start, message.arrival, message.tensor, f"message,{way}", args))
    return slices, arrows


def _begins(run: AlignedRun) -> dict[str, float]:
    return {task: _micros(moment - run.begin) for task, moment in run.begins.items()}


class _Lanes:
    """Gives each slice a lane in which nothing else goes on at that time.

    Attributes:
      of: number of the lane of each slice.
    """

    def __init__(self, slices: list[_Slice]):
        self.of = [0] * len(slices)
        self._lanes: dict[tuple[tuple[str, str, str], int], int] = {}
        wanted: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for number, each in enumerate(slices):
            wanted[each.lane].append(number)
        for lane in sorted(wanted, key=lambda lane: (lane[0], LANES.index(lane[2]), lane[1])):
            free: list[tuple[int, int]] = []  # a heap of (until when it is taken, its number)
            for number in sorted(wanted[lane], key=lambda n: slices[n].start):
                if free and free[0][0] <= slices[number].start:
                    copy = heapq.heappop(free)[1]
                else:
                    copy = len(free)
                heapq.heappush(free, (slices[number].end, copy))
                self.of[number] = self._lanes.setdefault((lane, copy), FIRST_LANE + len(self._lanes))

    def names(self, numbers: Mapping[str, int]) -> Iterable[dict[str, Any]]:
        """The events that name and order them."""
        for ((task, owner, what), copy), lane in self._lanes.items():
            whose = "" if owner == task else f"{owner}: "
            name = f"{whose}{what}{f' {copy + 1}' if copy else ''}"
            yield _named("thread_name", numbers[task], lane, name)
            yield {
                "ph": "M", "name": "thread_sort_index", "pid": numbers[task], "tid": lane, "args": {"sort_index": lane},
            }  # fmt: skip


def _named(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}


def _micros(nanos: int) -> float:
    return nanos / 1000


def _nanos(micros: float) -> int:
    return round(1000 * micros)


def write(
    path: str,
    merged: Merged,
    facts: Mapping[str, Any],
    labels: Mapping[str, str],
    missing: Mapping[str, str],
) -> str:
    """Writes the file whole or not at all; its path, with `.gz` if it is large.

    Args:
      path: that ends with .json.
      merged, labels, missing: see `events`.
      facts: more of what is said of the trace as a whole.

    Raises:
      OSError: it cannot be written.
    """
    clocks = {
        task: {
            "ahead_ms": clock.ahead / 1e6,
            "error_ms": clock.error / 1e6 if math.isfinite(clock.error) else None,
        }
        for task, clock in merged.clocks.items()
    }
    other = {
        "format": FORMAT,
        **facts,
        "reference": merged.reference,
        "clocks": clocks,
        "missing": dict(missing),
    }
    content = {
        "displayTimeUnit": "ms",
        "otherData": other,
        "traceEvents": events(merged, labels, missing),
    }
    raw = json.dumps(content, separators=(",", ":")).encode()
    if len(raw) > MAX_PLAIN_BYTES:
        path, raw = f"{path}.gz", gzip.compress(raw, 6)
    write_bytes(path, raw)
    return path


def read(path: str) -> tuple[Merged, dict[str, Any]]:
    """(trace, what is said of it as a whole) of a file that `write` has written.

    Raises:
      OSError: it cannot be read.
      ValueError: it is something else.
    """
    with open(path, "rb") as file:
        raw = file.read()
    try:
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        other = content["otherData"]
        if other["format"] != FORMAT:
            raise ValueError(f"its format is {other['format']!r}")
        runs = _runs(content["traceEvents"])
        clocks = {task: _clock(**clock) for task, clock in other["clocks"].items()}
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except (TypeError, AttributeError, IndexError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return Merged(tuple(runs), clocks, other["reference"]), other


def _clock(ahead_ms: float, error_ms: float | None) -> Clock:
    return Clock(_nanos(1000 * ahead_ms), math.inf if error_ms is None else 1e6 * error_ms)


def _runs(found: list[dict[str, Any]]) -> list[AlignedRun]:
    tasks = {}
    heads: dict[int, dict[str, Any]] = {}
    ops: dict[int, list[TracedOp]] = defaultdict(list)
    messages: dict[int, list[Message]] = defaultdict(list)
    for event in found:
        if event["ph"] == "M" and event["name"] == "process_name":
            tasks[event["pid"]] = event["args"]["name"].split()[0]
    for event in found:
        if event["ph"] != "X":
            continue
        args, task = event["args"], tasks[event["pid"]]
        start, end = _nanos(event["ts"]), _nanos(event["ts"]) + _nanos(event["dur"])
        if event["cat"] in (STEP, UPDATE_RUN):
            heads[args["run"]] = event
        elif event["cat"] in PARTS:
            names = (task, args["device"], event["name"], args["type"], event["cat"], tuple(args["inputs"]))
            ops[args["run"]].append(TracedOp(*names, start - _nanos(args["queued"]), start, end))
        else:
            sent = start if args["is_sent"] else None
            messages[args["run"]].append(Message(event["name"], args["from"], task, sent, end, args["bytes"]))
    return [_run(heads[number], ops[number], messages[number]) for number in sorted(heads)]


def _run(head: dict[str, Any], ops: list[TracedOp], messages: list[Message]) -> AlignedRun:
    args, begin = head["args"], _nanos(head["ts"])
    begins = {task: begin + _nanos(moment) for task, moment in args["begins"].items()}
    return AlignedRun(
        args["of"], args["server"], head["cat"], args["step"], args["batch"], begin, begin + _nanos(head["dur"]),
        tuple(ops), tuple(messages), begins,
    )  # fmt: skip
