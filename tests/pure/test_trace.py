"""Traces of all tasks: clocks, the file, parts of a step, the critical path, against traces whose every moment is known."""

import json
import math
import os
import pathlib
import sys
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from traces import BASE, MS, check_chrome, message, op, part, run, skewed

from ps_train import __main__ as program
from ps_train import flags
from ps_train.commands import trace as command
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.trace import chrome, summary
from ps_train.trace.clocks import align
from ps_train.trace.critical import PathFinder, grouped
from ps_train.trace.merged import merge
from ps_train.trace.parts import UPDATE_RUN, pack, unpack

RECORDED = pathlib.Path(__file__).parent / "recorded" / "sync_with_a_nap.txt"
FACTS = {"trace_steps": "7:8", "update": "async", "cut": {}}
LABELS = {"ps:0": "ps:0 at a:1", "worker:0": "worker:0 (chief) at b:1", "worker:1": "worker:1 at c:1"}


def a_step(owner="worker:0", step=7, at=0.0, compute=6.0):
    """Pull until 3, input until 2, compute until 3 + `compute`, push for 2, update for 1, the step read back for 0.5; 1 before and after."""
    t = at + 1
    done = t + 3 + compute
    ops = [
        op("ps:0", "read", t, t + 1, kind="update", type="ReadVariableOp"),
        op(owner, "next", t, t + 2, kind="input", type="IteratorGetNext"),
        op(owner, "matmul", t + 3, done, "read_S4", "next", ready=t + 3),
        op("ps:0", "apply", done + 2, done + 3, "matmul_S9", kind="update", type="ResourceApplyAdam"),
        op("ps:0", "step", done + 3, done + 3, "^apply", kind="update", type="Identity"),
    ]
    messages = [
        message("read", "ps:0", owner, t + 3, 4_000_000),
        message("matmul", owner, "ps:0", done + 2, 4_000_000),
        message("step", "ps:0", owner, done + 3.5, 8),
    ]
    return run(owner, step, at, done + 4.5, ops, messages, {owner: t, "ps:0": t})


def merged(*parts):
    return merge(parts, "worker:0")


def milliseconds(path):
    return [(group.kind, group.task, group.name, round(group.nanos / MS, 6)) for group in grouped(path)]


# Clocks.


def two_workers(first_skew=0, second_skew=0, ps_skew=0):
    ahead = {"worker:0": first_skew, "worker:1": second_skew, "ps:0": ps_skew}
    parts = [part("worker:0", a_step()), part("worker:1", a_step("worker:1", 8, at=5, compute=20))]
    return [skewed(each, ahead) for each in parts]


@pytest.mark.parametrize("skew", [0, 3_700_000_000, -3_700_000_000, 3600 * 10**9, 1_300_000])
def test_a_clock_that_is_ahead_is_found_out(skew):
    """What went to the ps took 1 to 2 ms, what came back 0.5 ms: the error may not be more than half of both."""
    aligned = merge(two_workers(ps_skew=skew), "worker:0")
    clock = aligned.clocks["ps:0"]
    assert abs(clock.ahead - skew) <= clock.error <= 1.5 * MS + 1000
    for each in aligned.runs:
        assert all(m.sent is not None and m.sent <= m.arrival for m in each.messages)


@given(*[st.integers(-4 * 10**9, 4 * 10**9)] * 3)
@settings(max_examples=60, deadline=None)
def test_any_clocks_are_aligned_within_what_is_said(first, second, ps):
    aligned = merge(two_workers(first, second, ps), "worker:0")
    for task, ahead in (("worker:1", second - first), ("ps:0", ps - first)):
        clock = aligned.clocks[task]
        assert abs(clock.ahead - ahead) <= clock.error <= 3 * MS
    check_chrome({"traceEvents": chrome.events(aligned, LABELS, {})})  # no arrow points backwards


@pytest.mark.parametrize("skew", [0, 3_700_000_000, -250_000_000])
def test_recorded_steps_of_one_host_with_clocks_put_wrong(skew):
    """What two workers of a real job noted of three steps on one host, whose clocks were one."""
    ahead = {"ps:0": skew, "worker:1": -2 * skew}
    parts = [skewed(unpack(text), ahead) for text in RECORDED.read_text().split()]
    aligned = merge(parts, "worker:0")
    assert {task: clock.error < MS for task, clock in aligned.clocks.items()} == dict.fromkeys(
        ["worker:0", "worker:1", "ps:0"], True
    )
    for task, amount in ahead.items():
        assert abs(aligned.clocks[task].ahead - amount) <= aligned.clocks[task].error
    messages = [m for each in aligned.runs for m in each.messages]
    known = [m for m in messages if m.sent is not None]
    assert all(m.sent <= m.arrival for m in known)
    # The graph of a step that hooks see has a condition, which TensorFlow renames.
    assert {m.tensor for m in messages if m.sent is None} == {
        "Func/global_step/cond/else/_1/input/_16", "global_step/cond/pivot_f/_3"
    }  # fmt: skip
    arrows = check_chrome({"traceEvents": chrome.events(aligned, {}, {})})["s"]
    assert len(arrows) == len(known) > 30
    found = summary.summarize(aligned, {**FACTS, "update": "sync", "clocks": {}, "missing": {}})
    assert found["last"] == {"worker:1": [100, 101, 102]}
    for step in found["steps"]:  # worker 1 naps 30 ms in each, and the other waits for that
        longest = max(step["path"], key=lambda link: link["ms"])
        assert (longest["name"], longest["of"], longest["task"]) == ("nap", "worker:1", "worker:1")
        assert 28 < longest["ms"] < 34
        assert sum(link["ms"] for link in step["path"]) == pytest.approx(step["ms"])


def test_bounds_of_one_pair_follow_from_those_of_others():
    ahead = {("a", "b"): 10, ("b", "a"): -6, ("b", "c"): 5, ("c", "b"): -3}
    found = align(ahead, ["a", "b", "c"], "a")
    assert found["b"] == (8, 2) and found["c"].ahead == 12 and found["c"].error == 3


def test_what_is_not_known_of_a_clock_is_said():
    found = align({("a", "b"): -5}, ["a", "b", "c"], "a")
    assert found["b"] == (-5, math.inf) and found["c"] == (0, math.inf)


def test_bounds_that_contradict_each_other_as_clocks_drift():
    found = align({("a", "b"): 5_000, ("b", "a"): -9_000}, ["a", "b"], "a")
    assert 5_000 <= found["b"].ahead <= 9_000 and found["b"].error < 10_000


# The way of a part through the boards.


def test_a_part_survives_its_way_as_a_text():
    whole = part("worker:1", a_step("worker:1"), a_step("worker:1", 8, at=50))
    text, num_cut = pack(whole, 10**6)
    assert unpack(text) == whole and num_cut == 0


def test_a_part_that_is_too_large_is_cut_at_its_end():
    whole = part(
        "worker:1", *(a_step("worker:1", step, at=20 * step, compute=step / 7) for step in range(60))
    )
    limit = len(pack(whole, 10**6)[0]) * 2 // 3
    text, num_cut = pack(whole, limit)
    kept = unpack(text).runs
    assert len(text) <= limit and 10 < len(kept) == 60 - num_cut and kept == whole.runs[: len(kept)]
    assert unpack(pack(whole, 100)[0]).runs == ()


@pytest.mark.parametrize("text", ["", "abcde", "~~"])
def test_a_text_that_is_no_part(text):
    with pytest.raises(ValueError):
        unpack(text)


def test_a_message_that_tensorflow_has_left_out_is_seen_by_its_use():
    whole = a_step()
    without = whole._replace(transfers=whole.transfers[:1] + whole.transfers[2:])
    (found,) = [m for m in merged(part("worker:0", without)).runs[0].messages if m.num_bytes is None]
    assert (found.tensor, found.source, found.target, found.num_bytes) == ("matmul", "worker:0", "ps:0", None)
    assert (found.sent - BASE, found.arrival - BASE) == (10 * MS, 12 * MS)


# The file.


def test_the_file_is_what_viewers_take(tmp_path):
    whole = merged(*two_workers())
    path = chrome.write(str(tmp_path / "t.json"), whole, FACTS, LABELS, {"worker:2": "it has not joined"})
    content = json.loads(pathlib.Path(path).read_text())
    found = check_chrome(content)
    assert {e["args"]["name"] for e in found["M"] if e["name"] == "process_name"} == set(LABELS.values())
    assert sorted(e["name"] for e in found["s"]) == ["pull"] * 4 + ["push"] * 2
    assert {e["args"]["bytes"] for e in found["s"]} == {4_000_000, 8}
    assert [e["name"] for e in found["i"]] == ["worker:2 is missing: it has not joined"]
    assert sorted(e["args"]["step"] for e in found["C"]) == [7, 8]
    push = next(e for e in found["X"] if e["cat"] == "message,push" and e["args"]["of"] == "worker:0")
    assert (push["ts"], push["dur"]) == (10_000, 2_000)
    assert content["otherData"]["missing"] == {"worker:2": "it has not joined"}


def test_what_goes_on_at_once_has_lanes_of_its_own():
    ops = [op("worker:0", f"op{n}", n, n + 2.5) for n in range(6)]
    whole = merged(part("worker:0", run("worker:0", 7, 0, 9, ops, [], {"worker:0": 0})))
    found = check_chrome({"traceEvents": chrome.events(whole, LABELS, {})})
    assert len({e["tid"] for e in found["X"] if e["cat"] == "compute"}) == 3


def test_a_trace_is_read_as_it_was_written(tmp_path):
    whole = merged(*two_workers(ps_skew=3_700_000_000))
    found, facts = chrome.read(chrome.write(str(tmp_path / "t.json"), whole, FACTS, LABELS, {}))
    origin = min(each.begin for each in whole.runs)

    def moved(each):
        ops = tuple(o[:6] + tuple(t - origin for t in o[6:-1]) for o in each.ops)
        sent = tuple((m[:3], m.sent - origin, m.arrival - origin, m.num_bytes) for m in each.messages)
        begins = {task: moment - origin for task, moment in each.begins.items()}
        return each[:5], each.begin - origin, each.end - origin, ops, sent, begins

    assert [moved(each) for each in whole.runs] == [
        moved(each._replace(begin=each.begin, end=each.end)) for each in _shifted(found.runs, origin)
    ]
    assert found.reference == "worker:0" and found.clocks == {
        task: pytest.approx(clock, abs=1) for task, clock in whole.clocks.items()
    }
    assert facts["trace_steps"] == "7:8"


def _shifted(runs, origin):
    for each in runs:
        yield each._replace(
            begin=each.begin + origin,
            end=each.end + origin,
            ops=tuple(type(o)(*o[:6], *(t + origin for t in o[6:])) for o in each.ops),
            messages=tuple(
                m._replace(sent=m.sent + origin, arrival=m.arrival + origin) for m in each.messages
            ),
            begins={task: moment + origin for task, moment in each.begins.items()},
        )


def test_a_large_file_is_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "MAX_PLAIN_BYTES", 1000)
    path = chrome.write(str(tmp_path / "t.json"), merged(*two_workers()), FACTS, LABELS, {})
    assert path.endswith(".json.gz") and len(chrome.read(path)[0].runs) == 2
    raw = bytearray((tmp_path / "t.json.gz").read_bytes())
    raw[200:220] = bytes(20)
    (tmp_path / "damaged.json.gz").write_bytes(raw)
    with pytest.raises(ValueError, match="error"):
        chrome.read(str(tmp_path / "damaged.json.gz"))
    (tmp_path / "damaged.json.gz").unlink()
    assert [each.name for each in tmp_path.iterdir()] == ["t.json.gz"]


# The critical path.


def test_the_path_of_a_step_is_what_its_end_waited_for():
    """The pull is slower than the input, and is on the path; the input is not."""
    whole = merged(part("worker:0", a_step()))
    path = PathFinder(whole.runs).path(whole.runs)
    assert milliseconds(path) == [
        ("call", "ps:0", "begin of the call", 1),
        ("update", "ps:0", "read", 1),
        ("pull", "ps:0", "read", 2),
        ("compute", "worker:0", "matmul", 6),
        ("push", "ps:0", "matmul", 2),
        ("update", "ps:0", "apply", 1),
        ("other", "worker:0", "step", 0.5),
        ("call", "worker:0", "end of the call", 1),
    ]


def test_of_two_that_are_waited_for_the_later_one_is_on_the_path():
    step = a_step()
    slow = op("worker:0", "next", 1, 4.5, kind="input", type="IteratorGetNext")
    late = op("worker:0", "matmul", 4.5, 10, "read_S4", "next")
    step = step._replace(ops=(step.ops[0], slow, late, *step.ops[3:]))
    whole = merged(part("worker:0", step))
    assert milliseconds(PathFinder(whole.runs).path(whole.runs))[:3] == [
        ("call", "worker:0", "begin of the call", 1),
        ("input", "worker:0", "next", 3.5),
        ("compute", "worker:0", "matmul", 5.5),
    ]


def test_what_tensorflow_has_left_out_is_not_the_later_one_for_that():
    """A rate that was sent at once and is noted nowhere; it is known by its use, which waited for the gradient."""
    step = a_step()
    rate = op("worker:0", "rate", 1, 1.5, type="Const")
    apply = op("ps:0", "apply", 12, 13, "rate_S7", "matmul_S9", kind="update", type="ResourceApplyAdam")
    step = step._replace(ops=(*step.ops[:3], rate, apply, step.ops[4]))
    whole = merged(part("worker:0", step))
    assert ("push", "ps:0", "matmul", 2) in milliseconds(PathFinder(whole.runs).path(whole.runs))


def test_a_wait_for_a_thread_is_named():
    ops = [op("worker:0", "a", 1, 2), op("worker:0", "b", 6, 7, "a", ready=2)]
    whole = merged(part("worker:0", run("worker:0", 7, 0, 8, ops, [], {"worker:0": 1})))
    assert milliseconds(PathFinder(whole.runs).path(whole.runs))[1:4] == [
        ("compute", "worker:0", "a", 1),
        ("gap", "worker:0", "b", 4),
        ("compute", "worker:0", "b", 1),
    ]


def a_round():
    """Worker 1 computes until 20, worker 0 until 5, whose token waits from 8 to 25 for the update of both, from 22 to 25."""

    def step(owner, number, compute):
        t = 1 + compute
        ops = [
            op(owner, "matmul", 1, t),
            op("ps:0", "arrive", t + 1, t + 2, "go", "matmul_S1", kind="update", type="QueueEnqueueV2"),
            op("ps:0", "token", t + 2, 25, f"tokens{number}", "^arrive", kind="wait", type="QueueDequeueV2"),
        ]
        messages = [message("matmul", owner, "ps:0", t + 1), message("token", "ps:0", owner, 26, 8)]
        return run(owner, 7, 0, 26, ops, messages, {owner: 1, "ps:0": 1})

    ops = [
        op("ps:0", "taken", 0, 22, "go", kind="wait", type="QueueDequeueV2"),
        op("ps:0", "mean", 22, 24, "^taken", kind="update", type="ResourceApplyAdam"),
        op("ps:0", "give0", 24, 25, "tokens0", "^mean", kind="update", type="QueueEnqueueV2"),
        op("ps:0", "give1", 24, 25, "tokens1", "^mean", kind="update", type="QueueEnqueueV2"),
    ]
    update = run("worker:0", 6, -1, 25.5, ops, [], {"ps:0": 0}, kind=UPDATE_RUN)
    return [part("worker:0", step("worker:0", 0, 4), update), part("worker:1", step("worker:1", 1, 19))]


def test_the_path_of_a_worker_that_waits_leads_to_the_one_that_was_last():
    whole = merged(*a_round())
    step = [each for each in whole.runs if each.owner == "worker:0" and each.kind == "step"]
    path = grouped(PathFinder(whole.runs).path(step))
    assert [(group.name, group.owner, round(group.nanos / MS, 6)) for group in path] == [
        ("begin of the call", "worker:1", 1),
        ("matmul", "worker:1", 19),
        ("matmul", "worker:1", 1),
        ("arrive", "worker:1", 1),
        ("mean", "worker:0", 3),
        ("token", "worker:0", 1),
    ]


def test_which_worker_was_the_last():
    whole = merged(*a_round())
    found = summary.summarize(whole, {**FACTS, "update": "sync", "clocks": {}, "missing": {}})
    assert found["last"] == {"worker:1": [7]}
    assert summary.lines(found)[-1] == "the cluster: worker:1's gradient was the last in 1 of 1 step"


def test_batches_of_a_step_follow_one_another():
    first, last = a_step(), a_step(at=20)
    whole = merged(part("worker:0", first, last._replace(batch=1)))
    found = summary.summarize(whole, {**FACTS, "clocks": {}, "missing": {}})
    (step,) = found["steps"]
    assert step["ms"] == 34.5 and sum(link["ms"] for link in step["path"]) == pytest.approx(34.5)
    assert [
        link["ms"] for link in step["path"] if link["name"] == "matmul" and link["kind"] == "compute"
    ] == [6, 6]
    # With the end of the first call.
    assert ("between two batches", 6.5) in {(link["name"], link["ms"]) for link in step["path"]}


@st.composite
def graphs(draw):
    """Ops on one task that begin when all that they wait for is done."""
    ops, ends = [], {}
    for number in range(draw(st.integers(1, 9))):
        waits = draw(st.lists(st.sampled_from(sorted(ends)), max_size=3)) if ends else []
        start = max([1, *(ends[name] for name in waits)])
        name = f"op{number}"
        ends[name] = start + draw(st.integers(1, 9))
        ops.append(op("worker:0", name, start, ends[name], *waits))
    return ops


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_the_path_is_the_longest_way_through_the_graph(ops):
    """An oracle that looks at every way; where every op begins at once the longest is as long as the step."""
    lasts = [each.end for each in ops]
    assume(lasts.count(max(lasts)) == 1)
    whole = merged(
        part("worker:0", run("worker:0", 7, 0, (max(lasts) - BASE) / MS, ops, [], {"worker:0": 1}))
    )
    path = [link for link in PathFinder(whole.runs).path(whole.runs) if link.kind == "compute"]
    by_name = {each.name: each for each in ops}

    def ways(name):
        inputs = by_name[name].inputs
        return [[*way, name] for each in inputs for way in ways(each)] if inputs else [[name]]

    last = max(ops, key=lambda each: each.end).name
    lengths = {tuple(way): sum(by_name[name].end - by_name[name].start for name in way) for way in ways(last)}
    assert lengths[tuple(link.name for link in path)] == max(lengths.values())
    assert sum(link.end - link.begin for link in path) == max(lengths.values()) == max(lasts) - BASE - MS


# Parts of a step, and the text.


def test_row_and_path_call_a_message_the_same():
    """A step of which one thing follows the other but for the input: what is a scalar, or was sent nobody knows when, is no pull."""
    whole = merged(part("worker:0", a_step()))
    (found,) = summary.summarize(whole, {**FACTS, "clocks": {}, "missing": {}})["steps"]
    path = Counter()
    for link in found["path"]:
        path[link["kind"]] += link["ms"]
    parts = found["parts_ms"]
    assert {kind: path[kind] for kind in ("pull", "push", "update")} == pytest.approx(
        {"pull": parts["pull"], "push": parts["push"], "update": 2}  # the read is beside the input
    )
    assert path["other"] + path["call"] == parts["other"] == 2.5
    shown = [link["what"] for link in found["path"]]
    assert "other: message to worker:0 step" in shown and "pull from ps:0 read" in shown
    step = a_step()
    made_by_nobody = step._replace(ops=step.ops[1:])  # the pull, as of an op that TensorFlow has renamed
    (found,) = summary.summarize(
        merged(part("worker:0", made_by_nobody)), {**FACTS, "clocks": {}, "missing": {}}
    )["steps"]
    assert found["parts_ms"]["pull"] == 0 == sum(x["ms"] for x in found["path"] if x["kind"] == "pull")
    assert [x["ms"] for x in found["path"] if x["name"] == "read"] == [3]


def test_what_was_sent_before_its_target_took_part_is_under_way_from_then_on():
    ops = [op("ps:0", "read", 1, 2, kind="update"), op("worker:0", "matmul", 9, 10, "read_S1")]
    messages = [message("read", "ps:0", "worker:0", 9)]
    whole = merged(part("worker:0", run("worker:0", 7, 0, 10, ops, messages, {"worker:0": 6, "ps:0": 1})))
    (found,) = summary.summarize(whole, {**FACTS, "clocks": {}, "missing": {}})["steps"]
    assert found["parts_ms"]["pull"] == 3
    assert [link["ms"] for link in found["path"] if link["kind"] == "pull"] == [3]


def test_the_whole_text():
    whole = merged(*two_workers())
    facts = {
        **FACTS, "cut": {"worker:1": 3}, "missing": {"worker:2": "it has not joined"},
        "clocks": {"worker:0": {"error_ms": 0.0}, "ps:0": {"error_ms": 1.25}},
    }  # fmt: skip
    assert summary.lines(summary.summarize(whole, facts)) == [
        "worker    step            begin    ms  input  compute  pull  push  update  wait  other",
        f"worker:0     7  {BASE / 1e6:.1f}  14.5    1.0      6.0   2.0   2.0     1.0   0.0    2.5",
        f"worker:1     8  {BASE / 1e6 + 5:.1f}  28.5    1.0     20.0   2.0   2.0     1.0   0.0    2.5",
        "worker:0 step 7, 14.5 ms: begin of the call 1.0 ms (7%) -> read on ps:0 1.0 ms (7%) -> pull from ps:0 read 2.0 ms (14%) -> "
        "matmul 6.0 ms (41%) -> push to ps:0 matmul 2.0 ms (14%) -> apply on ps:0 1.0 ms (7%) -> end of the call 1.0 ms "
        "(7%); shorter links 3%",
        "worker:1 step 8, 28.5 ms: pull from ps:0 read 2.0 ms (7%) -> matmul 20.0 ms (70%) -> push to ps:0 matmul 2.0 ms (7%); "
        "shorter links 16%",
        "worker:0: 1 step, 14.5 ms in the mean; most on the path: matmul 6.0 ms (41%), pull from ps:0 read 2.0 ms (14%), push to ps:0 "
        "matmul 2.0 ms (14%)",
        "worker:1: 1 step, 28.5 ms in the mean; most on the path: matmul 20.0 ms (70%), pull from ps:0 read 2.0 ms (7%), push to ps:0 "
        "matmul 2.0 ms (7%)",
        "the cluster: worker:1 has the longest steps, 28.5 ms against 14.5 ms of the others",
        "missing: worker:2: it has not joined",
        "cut: 3 runs of worker:1 left out: its part was too large",
        "clocks are aligned; error 1.25 ms at most",
    ]


def test_the_command(tmp_path, capsys):
    path = chrome.write(str(tmp_path / "t.json"), merged(*two_workers()), FACTS, LABELS, {})
    assert program.main(["trace", path, "--summary"]) == 0
    text = capsys.readouterr().out
    assert "worker:1     8    5.0  28.5    1.0     20.0   2.0   2.0     1.0   0.0    2.5\n" in text
    assert program.main(["trace", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"]["worker:1"]["mean_ms"] == 28.5
    assert [link["ms"] for link in found["steps"][1]["path"] if link["kind"] == "compute"] == [20.0]
    assert program.main(["trace", path]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "--trace_steps=7:8, async: global steps 7 to 8; worker:0 1 step, worker:1 1 step"
    )


def test_no_file_or_another(tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    for words, line in [
        (
            [str(tmp_path / "none.json")],
            "none.json cannot be read: No such file or directory. Check its path.",
        ),
        (
            [str(tmp_path / "other.json")],
            "other.json is not a trace of --trace_steps: it has no 'otherData'. Expected the file that the chief's log names.",
        ),
    ]:
        assert program.main(["trace", *words]) == 1
        assert line in capsys.readouterr().err
    with pytest.raises(UsageError, match="The command trace reads one file, and 2 are named. Leave out 'b'."):
        command.make_plan(flags.parse(["trace"])[0], ["a", "b"])


def test_the_newest_file_is_read_if_none_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"none is named, and there is no ps_train_runs/\*/trace-\*\.json\."):
        command.make_plan(flags.parse(["trace"])[0], [])
    for age, name in enumerate(
        [
            "ps_train_runs/b/trace-7-8.json.gz.part",
            "ps_train_runs/b/trace-7-8.json.gz",
            "ps_train_runs/a/trace-7.json",
            "mine/trace-1-2.json",
        ]
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (10**9 - age, 10**9 - age))
    assert command.make_plan(flags.parse(["trace"])[0], []).path == "ps_train_runs/b/trace-7-8.json.gz"
    values, words = flags.parse(["trace", "--train_dir=mine", "--summary"])
    assert command.make_plan(values, words[1:]) == ("mine/trace-1-2.json", True, False)


@pytest.mark.parametrize("text, window", [("100:105", (100, 105)), ("7", (7, 7)), ("1:1000", (1, 1000))])
def test_windows(text, window):
    config = TrainConfig(trace_steps=text)
    assert config.trace_window == window and config.problems() == []


@pytest.mark.parametrize(
    "settings, line",
    [
        (
            {"trace_steps": "5:"},
            "--trace_steps=5: is no window of steps. Expected FIRST:LAST, such as 100:105, or one number.",
        ),
        (
            {"trace_steps": "0:3"},
            "--trace_steps=0:3 is no window of steps. Expected a first one from 1, and a last one that is not before it.",
        ),
        (
            {"trace_steps": "9:8"},
            "--trace_steps=9:8 is no window of steps. Expected a first one from 1, and a last one that is not before it.",
        ),
        (
            {"trace_steps": "1:1001"},
            "--trace_steps=1:1001 is 1001 steps. Expected 1000 at most: a step is some kilobytes and more.",
        ),
        (
            {"trace_steps": "1", "profile_steps": 4},
            "--trace_steps and --profile_steps (or bench) both trace steps. Leave out one of the two.",
        ),
        (
            {"trace_steps": "1", "autotune": True},
            "--autotune changes how the steps go that --trace_steps shows. Leave out one of the two: trace with the flags that a run "
            "with --autotune has logged.",
        ),
        (
            {"trace_steps": "1", "update": "allreduce"},
            "--trace_steps is not for --update=allreduce, where each worker has all variables and takes part in every step. Leave it "
            "out.",
        ),
    ],
)
def test_windows_that_cannot_be(settings, line):
    assert TrainConfig(**settings).problems(num_workers=2) == [line]
