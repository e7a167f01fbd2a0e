"""Which steps a worker traces, how its part comes to the chief, and what the chief says of those that are missing."""

import logging
import pathlib

import pytest
from fakes import Clock, FakeGuard, FakeLink, FakeMonitor, FakeRuntime, FakeView

from ps_train import tracer
from ps_train.board import BoardError
from ps_train.cluster import TaskId
from ps_train.compat import tf1
from ps_train.trace import chrome
from ps_train.traced_steps import TracedCall
from ps_train.tracer import PATIENCE_SECS, StepTracer

pytestmark = pytest.mark.graph
BASE = 1_795_974_000_000_000_000
MS = 1_000_000
PS = [TaskId("ps", 0), TaskId("ps", 1)]


@pytest.fixture(autouse=True)
def boards(monkeypatch):
    """Texts by ps and key; the ps tasks in `down` take none."""
    kept: dict = {"down": set()}

    class FakeBoard:
        def __init__(self, address, task):
            self._name = str(task)

        def write_text(self, key, text, timeout_secs):
            if self._name in kept["down"]:
                raise BoardError("no answer in 20 s")
            kept[self._name, key] = text

        def read_text(self, key, timeout_secs):
            return kept[self._name, key]

        def close(self):
            pass

    monkeypatch.setattr(tracer, "Board", FakeBoard)
    return kept


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(tracer.log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    return lambda: [record.getMessage() for record in caplog.records]


def make(task="worker:1", window=(100, 102), records=None, folder=None, clock=None, update="async"):
    links = [FakeLink(ps, f"p{ps.index}:1") for ps in PS]
    runtime = FakeRuntime(task, monitor=FakeMonitor(FakeView(records), links), update=update)
    runtime.guard = FakeGuard()
    clock = clock or Clock()
    return StepTracer(runtime, window, folder and str(folder), clock, clock.sleep)


def call(at, length=10, owner="worker:1"):
    """A traced call of one op, from `at` milliseconds on."""
    stats = tf1.RunMetadata().step_stats
    device = stats.dev_stats.add(device=f"/job:worker/replica:0/task:{owner[-1]}/device:CPU:0")
    begin = BASE + at * MS
    device.node_stats.add(node_name="matmul", timeline_label="matmul = MatMul(a, b)", scheduled_nanos=begin + MS,
                          all_start_nanos=begin + MS, all_end_rel_nanos=(length - 2) * MS)  # fmt: skip
    return TracedCall(begin, begin + length * MS, stats)


def traced_steps(made, steps):
    """Which of the steps, (before, after), are traced and kept."""
    wanted = []
    for before, after in steps:
        if made.wants(before):
            wanted.append(after)
        made.note(before, after, [call(20 * after)] if wanted[-1:] == [after] else None)
    return wanted, [after for after, _ in made._steps]


def test_the_steps_that_make_the_window_are_traced():
    made = make()
    wanted, kept = traced_steps(made, [(step, step + 1) for step in range(80, 102)])
    assert kept == [100, 101, 102]
    assert wanted == list(range(86, 103))  # 3 workers may be 15 steps further when this one has made its
    assert not made.wants(102) and not made.wants(103)


def test_a_slow_worker_traces_the_step_in_which_the_window_passes():
    made = make()
    wanted, kept = traced_steps(made, [(0, 45), (45, 92), (92, 140)])
    assert wanted == [140] or wanted == [92, 140]
    assert kept == [140] and not made.wants(140)


def test_what_comes_back_after_the_window_traces_nothing(lines):
    made = make("worker:0")
    with made:
        assert not made.wants(300)
    assert lines() == ["no step was traced: it made no step from 100 to 102, and is at global step None"]


def deliver(task, boards, steps=(100, 101, 102), **settings):
    """The record that a worker posts when it has delivered these steps."""
    made = make(task, **settings)
    with made:
        for step in steps:
            assert made.wants(step - 1)
            made.note(step - 1, step, [call(20 * step, owner=task)])
    return {"state": "training", "step": 102, "trace": made._monitor.fields["trace"]}


def test_parts_go_by_the_boards_and_are_taken_off_them(boards, tmp_path, lines, monkeypatch):
    monkeypatch.setattr(tracer, "CHUNK_BYTES", 100)
    records = {task: deliver(task, boards) for task in ("worker:1", "worker:2")}
    assert records["worker:1"]["trace"]["ps"] == "ps:1" and records["worker:2"]["trace"]["ps"] == "ps:0"
    assert records["worker:1"]["trace"]["chunks"] > 2
    chief = make("worker:0", records=records, folder=tmp_path)
    with chief:
        for step in 100, 101, 102:
            chief.wants(step - 1)
            chief.note(step - 1, step, [call(20 * step + 5, owner="worker:0")])
    path = tmp_path / "trace-100-102.json"
    assert chief._runtime.report.trace == str(path)
    merged, facts = chrome.read(str(path))
    assert sorted((run.owner, run.step) for run in merged.runs) == [
        (f"worker:{worker}", step) for worker in range(3) for step in (100, 101, 102)
    ]
    assert facts["missing"] == facts["cut"] == {}
    assert all(text == "" for key, text in boards.items() if key != "down")
    assert lines() == [
        f"traced 9 steps of 3 workers: {path}, for ui.perfetto.dev and python -m ps_train trace {path} --summary"
    ]


def test_another_ps_takes_what_the_first_does_not(boards):
    boards["down"] = {"ps:1"}
    assert deliver("worker:1", boards)["trace"]["ps"] == "ps:0"
    boards["down"] = {"ps:0", "ps:1"}
    told = deliver("worker:1", boards)["trace"]
    assert told["chunks"] == 0 and told["reason"] == "ps:0 did not take it: no answer in 20 s"


def test_who_is_missing_and_why(boards, tmp_path, lines):
    clock = Clock()
    records = {
        "worker:1": {"state": "stopped", "reason": "Stopped by SIGTERM", "step": 99},
        "worker:2": {"state": "training", "step": 90},
    }
    chief = make("worker:0", records=records, folder=tmp_path, clock=clock)
    chief.wants(99)
    chief.note(99, 100, [call(1, owner="worker:0")])
    records["worker:2"]["step"] = 150
    chief._monitor.shown = FakeView(records)
    start = clock.now
    chief.finish()
    chief._thread.join(30)
    assert PATIENCE_SECS <= clock.now - start < PATIENCE_SECS + 1
    _, facts = chrome.read(chief._runtime.report.trace)
    assert facts["missing"] == {
        "worker:1": "it has ended: Stopped by SIGTERM",
        "worker:2": "it had not sent its part in time, at step 150",
    }
    assert lines()[1:] == [f"trace: {name} is missing: {reason}" for name, reason in facts["missing"].items()]


def test_one_that_was_killed_is_not_said_to_be_late(tmp_path):
    """It could not say so itself; the launcher of a local cluster writes it to the boards, elsewhere its silence tells."""
    silent, told = (
        {"state": "training", "step": 98},
        {"state": "failed", "reason": "ended by SIGKILL", "step": 98},
    )
    chief = make("worker:0", records={}, folder=tmp_path)
    chief._monitor.shown = FakeView(
        {"worker:1": silent, "worker:2": told}, {"worker:1": 63.4, "worker:2": 63.4}
    )
    with chief:
        chief.wants(99)
        chief.note(99, 100, [call(1, owner="worker:0")])
    _, facts = chrome.read(chief._runtime.report.trace)
    assert facts["missing"] == {
        "worker:1": "it has ended, or was stopped, without a word: not heard of for 63 s, last at step 98",
        "worker:2": "it has ended: ended by SIGKILL",
    }


def test_at_the_end_nobody_waits_for_who_has_not_come(tmp_path):
    clock = Clock()
    chief = make("worker:0", folder=tmp_path, clock=clock)
    start = clock.now
    with chief:
        chief.wants(99)
        chief.note(99, 100, [call(1, owner="worker:0")])
    assert clock.now - start < 1
    _, facts = chrome.read(chief._runtime.report.trace)
    assert set(facts["missing"].values()) == {"it has not joined"}


def test_more_than_may_be_held_or_sent_is_cut_and_said(boards, monkeypatch, lines):
    monkeypatch.setattr(tracer, "MAX_HELD_BYTES", 2 * call(0).step_stats.ByteSize())
    told = deliver("worker:1", boards)["trace"]
    assert told["cut"] == 1 and told["chunks"] == 1
    monkeypatch.setattr(tracer, "MAX_PART_BYTES", 100)
    told = deliver("worker:2", boards)["trace"]
    assert told == {"cut": 3, "chunks": 0, "reason": "one step is more than may be sent"}
    assert lines() == [
        f"trace: {number} traced run{'s'[: number - 1]} left out: there is more than may be sent"
        for number in (1, 3)
    ]


def test_a_file_that_cannot_be_written(tmp_path, lines):
    (tmp_path / "file").write_text("")
    chief = make("worker:0", folder=tmp_path / "file")
    with chief:
        chief.wants(99)
        chief.note(99, 100, [call(1, owner="worker:0")])
    assert chief._runtime.report.trace is None
    assert "cannot be written: " in lines()[0]


def test_each_optimizer_has_updates_of_its_own():
    made: list = []

    class Session:
        def make_callable(self, op, accept_options):
            return lambda options, run_metadata: made.append((self, op))

    chief, first, second = make("worker:0", update="sync"), Session(), Session()
    chief.wants(99)
    one, other = chief.trace_update(first, "a"), chief.trace_update(second, "b")
    one()
    other()
    assert made == [(first, "a"), (second, "b")] and len(chief._updates) == 2


def test_updates_in_the_window_are_traced_and_no_others(tmp_path):
    chief = make("worker:0", folder=tmp_path, update="sync")
    moments = iter([call(0), call(1995), call(3000)])

    class Session:
        def make_callable(self, op, accept_options):
            assert op == "update" and accept_options
            return lambda options, run_metadata: None

    session = Session()
    chief.wants(50)
    assert chief.trace_update(session, "update") is None
    with chief, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracer, "run_traced", lambda call, found: found.append(next(moments)))
        chief.wants(99)
        for _ in range(3):
            chief.trace_update(session, "update")()
        chief.note(99, 100, [call(2000, owner="worker:0")])
    assert chief.trace_update(session, "update") is None
    runs = chrome.read(str(pathlib.Path(tmp_path) / "trace-100-102.json"))[0].runs
    assert [(run.kind, run.begin // MS) for run in runs] == [("round", 0), ("step", 5)]
