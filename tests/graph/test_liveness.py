"""Waits, links and views, with the clock in the test's hand."""

import logging
import os

import pytest
from fakes import Clock, FakeGuard

from ps_train import liveness
from ps_train.board import BoardError
from ps_train.cluster import Cluster, TaskId
from ps_train.errors import PeerLostError, StoppedError
from ps_train.liveness import Link, Monitor, View, wait_until
from ps_train.tables import digest

pytestmark = pytest.mark.graph
PS = TaskId("ps", 0)


@pytest.fixture
def lines(caplog, monkeypatch):
    """Messages of ps_train's log so far."""
    monkeypatch.setattr(liveness.log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    return lambda: [record.getMessage() for record in caplog.records]


def wait(condition, clock, timeout_secs=25, guard=None, describe=lambda: "ps:0 at p0:1 (refused)"):
    return wait_until(condition, describe, timeout_secs, guard, clock, clock.sleep)


def test_wait_gives_the_condition_s_value_at_once(lines):
    clock = Clock()
    assert wait(lambda: "value", clock) == "value"
    assert clock.slept == [] and lines() == []


def test_wait_ends_when_the_condition_holds(lines):
    clock = Clock()
    assert wait(lambda: clock.now >= 1001.5, clock)
    assert 1001.5 <= clock.now < 1001.7
    assert lines() == [], "a short wait is no news"


def test_wait_says_after_two_seconds_and_then_every_ten(lines):
    clock = Clock()
    with pytest.raises(PeerLostError) as raised:
        wait(lambda: False, clock)
    assert str(raised.value) == "gave up after 25 s of waiting for ps:0 at p0:1 (refused)"
    assert 1025 < clock.now < 1025.3
    assert lines() == [
        f"waiting for ps:0 at p0:1 (refused): {secs} s so far, giving up after 25 s" for secs in (2, 12, 22)
    ]


def test_a_wait_that_goes_on_with_another_has_its_bound(lines):
    clock = Clock()
    with pytest.raises(PeerLostError) as raised:
        wait_until(lambda: False, lambda: "ps:0", 25, None, clock, clock.sleep, deadline=1004.0)
    assert str(raised.value) == "gave up after 25 s of waiting for ps:0"
    assert 1004 < clock.now < 1004.3
    assert lines() == ["waiting for ps:0: 23 s so far, giving up after 25 s"]


def test_wait_describes_anew_for_each_line(lines):
    clock = Clock()
    wait(lambda: clock.now > 1013, clock, describe=lambda: f"something at {clock.now:.0f}")
    assert [line.split(":")[0] for line in lines()] == [
        "waiting for something at 1002",
        "waiting for something at 1012",
    ]


def test_wait_ends_with_what_the_guard_has_decided():
    clock, guard = Clock(), FakeGuard(StoppedError("stopped by SIGTERM", 143))
    with pytest.raises(StoppedError, match="stopped by SIGTERM"):
        wait(lambda: False, clock, guard=guard)
    assert clock.slept == []
    assert wait(lambda: True, clock, guard=guard), "what is there already is taken"


class ScriptedBoard:
    """Answers with the next of its answers: a list of records, or a reason."""

    task, address = PS, "p0:1"

    def __init__(self, *answers):
        self.answers, self.written, self.replaced = list(answers), [], {}

    def exchange(self, records, timeout_secs=2.0):
        self.written.append(records)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise BoardError(answer)
        return {record["key"]: record for record in answer}


def beat(key, number, **fields):
    return {"key": key, "beat": number, **fields}


def test_link_knows_since_when_its_ps_is_silent():
    clock = Clock()
    link = Link(ScriptedBoard("refused", [], "closed"), clock)
    assert (link.reason, link.is_up) == ("not tried yet", False)
    clock.now += 3
    assert not link.exchange([])
    assert (link.reason, link.silent_secs()) == ("refused", 3)
    assert link.exchange([])
    assert (link.silent_secs(), link.is_up) == (0, True)
    clock.now += 4
    assert not link.exchange([])
    assert (link.reason, link.silent_secs(), link.is_up) == ("closed", 4, True)
    clock.now += 1
    assert not link.is_up


def test_age_of_a_record_is_by_the_observers_clock():
    """It counts from when the record was seen to change, whatever the beat's number."""
    clock = Clock()
    link = Link(ScriptedBoard(*[[beat("worker:0", n), beat("worker:1", 7)] for n in (900, 20, 20)]), clock)
    for _ in range(3):
        link.exchange([])
        clock.now += 10
    records, ages = link.read()
    assert records["worker:0"]["beat"] == 20
    assert ages == {"worker:0": 20, "worker:1": 30}


def test_view_takes_the_newest_record_and_the_least_age():
    clock = Clock()
    early = Link(ScriptedBoard([beat("worker:0", 1, step=5), beat("worker:1", 3)]), clock)
    late = Link(ScriptedBoard([beat("worker:0", 2, step=6)]), clock)
    early.exchange([])
    clock.now += 4
    late.exchange([])
    view = View([early, late])
    assert view.record("worker:0")["step"] == 6 and view.age("worker:0") == 0
    assert view.record(TaskId("worker", 1))["beat"] == 3 and view.age("worker:1") == 4
    assert view.record("worker:2") == {} and view.age("worker:2") == float("inf")
    assert View([early, late]).records == View([late, early]).records


def test_monitor_writes_its_record_and_what_it_publishes():
    board = ScriptedBoard([], [], [])
    monitor = Monitor(TaskId("worker", 1), [board], cluster={"ps": {}})
    monitor.post(state="training", step=12)
    monitor.publish("job", is_over=True)
    assert monitor.flush(1)
    own, job = board.written[0]
    assert (own["key"], own["state"], own["step"], own["run"]) == ("worker:1", "training", 12, monitor.run_id)
    assert (own["pid"], own["cluster"]) == (os.getpid(), {"ps": {}})
    assert (job["key"], job["is_over"]) == ("job", True)
    assert monitor.get("step") == 12 and monitor.get("nothing") is None
    monitor.flush(1)
    again, job_again = board.written[1]
    assert again["beat"] > own["beat"], "each write is a beat"
    assert job_again == job, "what is published keeps the age of its news"


class Texts(ScriptedBoard):
    """A board that keeps texts, too, if it is not told to fail."""

    def __init__(self, *answers):
        super().__init__(*answers)
        self.texts, self.fails = [], False

    def write_text(self, key, text, timeout_secs):
        if self.fails:
            raise BoardError("no answer")
        self.texts.append((key, text))


def test_a_long_text_is_written_once_to_each_process_of_a_ps():
    boards = [[{"key": "ps:0", "beat": n, "run": run}] for n, run in enumerate("aaaabb")]
    board = Texts([], *boards)
    monitor = Monitor(TaskId("worker", 1), [board])
    (link,) = monitor.links

    def beat():
        assert monitor._exchange(link)
        monitor._write_texts(link)
        return board.texts

    monitor.publish_text("traffic", "one")
    assert beat() == [], "the ps has not said who it is"
    assert beat() == beat() == [("worker:1/traffic", "one")]
    monitor.publish_text("traffic", "two")
    monitor.publish_text("placement", "three")
    board.fails = True
    beat()
    board.fails = False
    both = [("worker:1/traffic", "two"), ("worker:1/placement", "three")]
    assert beat()[1:] == both
    assert beat()[3:] == both, "the ps was started again"
    assert len(beat()) == 5 and monitor.get("texts") == {
        "traffic": digest("two"),
        "placement": digest("three"),
    }
    assert board.written[-1][0]["texts"] == monitor.get("texts")


def test_monitor_flush_says_when_a_board_did_not_answer():
    monitor = Monitor(TaskId("worker", 1), [ScriptedBoard("refused")])
    assert not monitor.flush(1)


def test_ps_runs_leaves_out_who_is_not_up():
    boards = [ScriptedBoard([beat("ps:0", 1, run="a")]), ScriptedBoard("refused")]
    boards[1].task = TaskId("ps", 1)
    monitor = Monitor(TaskId("worker", 1), boards)
    monitor.flush(1)
    assert monitor.ps_runs() == {"ps:0": "a"}
    assert monitor.link(TaskId("ps", 1)).reason == "refused"


# Before it is admitted.


def test_a_task_writes_nothing_before_it_is_admitted():
    cluster = Cluster.from_hosts(ps="p0:1", worker="w0:1,w1:1")
    introduced = [beat("ps:0", 1, run="p", cluster=cluster.as_dict(), protocol=liveness.PROTOCOL)]
    board = ScriptedBoard("refused", [], introduced, introduced)
    monitor = Monitor(TaskId("worker", 1), [board], admitted_to=cluster)
    answers = [monitor._exchange(monitor.links[0]) for _ in range(3)]
    assert answers == [False, False, True] and monitor.is_admitted
    assert board.written[:3] == [[]] * 3 and board.written[3][0]["key"] == "worker:1"
