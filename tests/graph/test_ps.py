"""A ps's verdict on the job, read off the board, with the clock in the test's hand."""

import pytest
from fakes import Clock, FakeMonitor, FakeRuntime, FakeView

from ps_train.cluster import TaskId
from ps_train.errors import PeerLostError, PsTrainError
from ps_train.ps import STOPPING_SECS, Verdict, _silent, _wait_for_the_chief
from ps_train.session import Timeouts

pytestmark = pytest.mark.graph
TRAINING = {"state": "training", "step": 7}
OVER = {"is_over": True, "reason": "global step 50: target of 50 reached"}
TIMEOUTS = Timeouts(startup_timeout_secs=300, peer_timeout_secs=60, shutdown_timeout_secs=30)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def verdict(clock):
    return Verdict(["worker:0", "worker:1"], TIMEOUTS, clock)


def left(step=50):
    return {"state": "left", "step": step}


def test_who_is_silent_is_told_to_those_who_look_but_once():
    tasks = [TaskId("worker", index) for index in range(4)]
    records = {"worker:0": TRAINING, "worker:1": TRAINING, "worker:2": left()}
    ages = {"worker:0": 0.6, "worker:1": 41.27, "worker:2": 41.27}
    assert _silent(FakeView(records, ages), tasks) == {"worker:1": 41.3}


def test_over_when_everyone_who_joined_has_left(verdict):
    view = FakeView({"worker:0": left(50), "worker:1": left(49), "job": OVER})
    assert verdict.look(view) == "the job is over: global step 50: target of 50 reached"
    assert verdict.step == 50


def test_a_worker_that_never_came_holds_nobody_up(verdict):
    assert verdict.look(FakeView({"worker:0": left(), "job": OVER}))


def test_a_worker_that_has_not_left_is_served(verdict):
    assert verdict.look(FakeView({"worker:0": left(), "worker:1": TRAINING, "job": OVER})) == ""
    assert verdict.waits_for == "worker:1 to end, 30 s at most"


def test_not_over_before_the_chief_says_so(verdict):
    assert verdict.look(FakeView({"worker:0": TRAINING, "worker:1": left()})) == ""
    assert verdict.look(FakeView({"worker:0": left(), "worker:1": left()})) == ""


def test_after_the_end_a_silent_worker_is_waited_for_a_bound(verdict):
    records = {"worker:0": left(), "worker:1": TRAINING, "job": OVER}
    assert verdict.look(FakeView(records, {"worker:1": 29})) == ""
    assert verdict.look(FakeView(records, {"worker:1": 31}))


def test_the_job_is_over_whatever_the_peer_timeout(clock):
    verdict = Verdict(
        ["worker:0", "worker:1"], Timeouts(peer_timeout_secs=3, shutdown_timeout_secs=30), clock
    )
    records = {"worker:0": left(), "worker:1": TRAINING, "job": OVER}
    for age in (1, 19, 21, 25, 29):
        clock.now = 1000.0 + age
        assert verdict.look(FakeView(records, {"worker:1": age})) == ""
    assert verdict.look(FakeView(records, {"worker:1": 31}))


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_worker_that_ended_otherwise_is_not_waited_for(verdict, state):
    record = {"state": state, "exit_status": 143 if state == "stopped" else 138}
    assert verdict.look(FakeView({"worker:0": left(), "worker:1": record, "job": OVER}))


def test_nobody_comes(verdict, clock):
    assert verdict.look(FakeView()) == ""
    clock.now += 12
    assert verdict.look(FakeView()) == ""
    assert verdict.waits_for == "the first worker: 12 s so far, giving up after 300 s"
    clock.now += 289
    with pytest.raises(PeerLostError) as raised:
        verdict.look(FakeView())
    assert (str(raised.value), raised.value.exit_status) == ("no worker has come within 300 s", 138)


def test_everyone_is_gone(verdict, clock):
    records = {"worker:0": TRAINING, "worker:1": TRAINING}
    assert verdict.look(FakeView(records)) == ""
    clock.now += 40
    assert verdict.look(FakeView(records, {"worker:0": 40, "worker:1": 40})) == ""
    assert verdict.waits_for == "workers to come back: all gone for 40 s, giving up after 60 s"
    clock.now += 21
    with pytest.raises(PeerLostError) as raised:
        verdict.look(FakeView(records, {"worker:0": 61, "worker:1": 61}))
    assert str(raised.value) == "every worker has been gone for 60 s and the job is not over"


def test_one_that_comes_back_is_enough(verdict, clock):
    records = {"worker:0": TRAINING, "worker:1": TRAINING}
    verdict.look(FakeView(records))
    clock.now += 50
    verdict.look(FakeView(records, {"worker:0": 50, "worker:1": 50}))
    verdict.look(FakeView(records, {"worker:0": 50}))
    clock.now += 50
    assert verdict.look(FakeView(records, {"worker:0": 100, "worker:1": 50})) == ""


@pytest.mark.parametrize("other", ["ends", "stays"])
def test_a_failure_for_good_ends_the_ps_when_the_others_have_read_it_here(verdict, clock, other):
    record = {"state": "failed", "exit_status": 1, "reason": "ModelError: no loss"}
    assert verdict.look(FakeView({"worker:0": TRAINING, "worker:1": record})) == ""
    clock.now += 29
    assert verdict.look(FakeView({"worker:0": TRAINING, "worker:1": record})) == ""
    chief = TRAINING
    if other == "ends":
        chief = {"state": "failed", "exit_status": 1, "reason": "worker:1 failed: ModelError: no loss"}
    clock.now += 2 * (other == "stays")
    with pytest.raises(PsTrainError) as raised:
        verdict.look(FakeView({"worker:1": record, "worker:0": chief}))
    assert (str(raised.value), raised.value.exit_status) == ("worker:1 failed: ModelError: no loss", 1)


def test_a_failure_that_may_heal_does_not(verdict):
    record = {"state": "failed", "exit_status": 138, "reason": "ps:1 is gone"}
    assert verdict.look(FakeView({"worker:0": TRAINING, "worker:1": record})) == ""


@pytest.mark.parametrize(
    ("records", "secs"),
    [
        ({}, 0),
        ({"worker:1": TRAINING}, 0),
        ({"worker:0": TRAINING}, STOPPING_SECS),
        ({"worker:0": {"state": "ending"}}, STOPPING_SECS),
        ({"worker:0": {**TRAINING, "saved_for": ["r0"]}}, STOPPING_SECS),
        ({"worker:0": {**TRAINING, "saved_for": ["r0", "r1"]}}, 0),
        ({"worker:0": {"state": "stopped"}}, 0),
        ({"worker:0": {"state": "starting"}}, 1.5),
    ],
)
def test_a_ps_that_is_asked_to_end_waits_for_the_chief_to_save(records, secs, clock):
    runtime = FakeRuntime("ps:0", monitor=FakeMonitor(FakeView(records)))
    runtime.monitor.run_id, runtime.monitor.flush = "r1", lambda: True
    start = clock.now
    _wait_for_the_chief(runtime, clock.sleep, clock)
    assert runtime.monitor.fields["state"] == "stopping"
    assert secs <= clock.now - start < secs + 0.2
