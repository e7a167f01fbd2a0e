"""Traces whose every moment is known, and what has to be true of a file of Chrome's trace events."""

import json
from collections import defaultdict

from ps_train.step_stats import Transfer
from ps_train.trace.parts import STEP, Part, Run, TracedOp

BASE = 1_795_974_000_000_000_000
MS = 1_000_000  # nanoseconds


def op(task, name, start, end, *inputs, kind="compute", type="MatMul", ready=None):
    """An op; milliseconds of the true time."""
    ready = start if ready is None else ready
    return TracedOp(
        task, "CPU:0", name, type, kind, inputs, *(BASE + round(MS * t) for t in (ready, start, end))
    )


def message(tensor, source, target, arrival, num_bytes=4000):
    return Transfer(tensor, source, target, BASE + round(MS * arrival), num_bytes)


def run(owner, step, begin, end, ops, messages, begins, kind=STEP, batch=0, server=None):
    moments = {task: BASE + round(MS * moment) for task, moment in begins.items()}
    begin, end = BASE + round(MS * begin), BASE + round(MS * end)
    return Run(owner, server or owner, kind, step, batch, begin, end, tuple(ops), tuple(messages), moments)


def part(owner, *runs):
    return Part(owner, runs[0].server if runs else owner, tuple(runs))


def skewed(part, ahead):
    """The part as clocks that are so many nanoseconds ahead would have noted it."""

    def of(run):
        def late(task):
            return ahead.get(task, 0)

        return run._replace(
            begin=run.begin + late(run.server),
            end=run.end + late(run.server),
            ops=tuple(TracedOp(*op[:6], *(moment + late(op.task) for moment in op[6:])) for op in run.ops),
            transfers=tuple(t._replace(arrival=t.arrival + late(t.target)) for t in run.transfers),
            begins={task: moment + late(task) for task, moment in run.begins.items()},
        )

    return part._replace(runs=tuple(of(run) for run in part.runs))


def check_chrome(content):
    """Asserts what Perfetto and chrome://tracing take for granted; gives the events by their phase."""
    content = json.loads(json.dumps(content, allow_nan=False))
    by_phase = defaultdict(list)
    for event in content["traceEvents"]:
        by_phase[event["ph"]].append(event)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    assert set(by_phase) <= set("XMsfCi")
    processes = {e["pid"]: e["args"]["name"] for e in by_phase["M"] if e["name"] == "process_name"}
    lanes = {e["tid"]: e["pid"] for e in by_phase["M"] if e["name"] == "thread_name"}
    assert len(lanes) == sum(e["name"] == "thread_name" for e in by_phase["M"])  # no number twice
    assert not set(lanes) & set(processes)
    slices = defaultdict(list)
    for event in by_phase["X"]:
        assert event["ts"] >= 0 and event["dur"] > 0 and event["name"] and event["cat"]
        assert event["pid"] in processes and lanes[event["tid"]] == event["pid"]
        slices[event["tid"]].append((round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))))
    for found in slices.values():
        found.sort()
        for (_, end), (start, _) in zip(found, found[1:], strict=False):
            assert start >= end, "two slices of one lane overlap"
    starts = {e["id"]: e for e in by_phase["s"]}
    ends = {e["id"]: e for e in by_phase["f"]}
    assert starts.keys() == ends.keys() and len(starts) == len(by_phase["s"]) == len(by_phase["f"])
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e" and end["ts"] >= start["ts"], "an arrow points backwards"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"]) and start["pid"] != end["pid"]
        for event in (start, end):
            moment = round(1000 * event["ts"])
            assert any(begin <= moment < until for begin, until in slices[event["tid"]]), (
                "an arrow hangs in the air"
            )
    for event in by_phase["C"]:
        assert event["ts"] >= 0 and event["pid"] in processes
    return by_phase
