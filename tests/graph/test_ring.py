"""Which processes an all-reduce begins with, and what its workers name when they end for a loss."""

import pytest
from fakes import Clock, FakeGuard, FakeLink, FakeMonitor, FakeRuntime, FakeView

from ps_train import ring, worker
from ps_train.cluster import Cluster, TaskId
from ps_train.errors import PeerLostError

pytestmark = pytest.mark.graph
CLUSTER = Cluster.from_hosts(worker="w0:1,w1:1,w2:1", is_colocated=True)
PEERS = {"ps:0": "a", "ps:1": "b", "ps:2": "c"}
LOST_CHIEF = {"worker:0": "the server was restarted"}


class PeerLink(FakeLink):
    """A link to a board that is of process `run`; None: it has not introduced itself."""

    def __init__(self, number, run, reason="", silent_secs=0.0):
        super().__init__(TaskId("ps", number), f"w{number}:1", silent_secs, reason)
        self._records = {f"ps:{number}": {"run": run}} if run else {}

    def read(self):
        return self._records, {}


class RingMonitor(FakeMonitor):
    """What is `shown` and the links change to `later` when the boards are asked anew."""

    run_id, later = "b", None

    def link(self, task):
        return next(link for link in self.links if link.task == task)

    def flush(self):
        if self.later:
            self.shown, self.links = self.later


def links(runs=("a", "b", "c"), reasons=("", "", "")):
    return [
        PeerLink(number, run, reason) for number, (run, reason) in enumerate(zip(runs, reasons, strict=True))
    ]


def runtime_of(task, records=None, of_links=None, **fields):
    monitor = RingMonitor(FakeView(records), links() if of_links is None else of_links, **fields)
    runtime = FakeRuntime(task, CLUSTER, monitor, update="allreduce")
    runtime.peers, runtime.guard = PEERS, FakeGuard()
    return runtime


def loss(task, records, of_links=None, is_stuck=False):
    runtime = runtime_of(task, records, of_links)
    return ring.find_loss(runtime, runtime.monitor.view(), is_stuck)


def ended(run, reason="", **fields):
    return {"state": "failed", "exit_status": 138, "run": run, "reason": reason, **fields}


def test_nobody_is_lost():
    assert loss("worker:1", {"worker:0": {"state": "training", "run": "a"}}) is None
    no_answer = links(reasons=("no answer", "", ""))
    assert loss("worker:1", {}, no_answer) is None, "it may yet answer"
    assert loss("worker:1", {}, no_answer, is_stuck=True).lost == {"worker:0": "no answer"}


@pytest.mark.parametrize(("secs", "is_lost"), [(59, False), (61, True)])
def test_a_peer_that_is_silent_during_the_first_broadcast_is_lost(secs, is_lost):
    """A session's calls have no bound, and the others have been there: none of a start counts any more."""
    silent = [*links()[:2], PeerLink(2, "c", "no answer", secs)]
    runtime = runtime_of("worker:1", of_links=silent, state="starting")
    failure = worker.judge(runtime)
    assert (getattr(failure, "lost", None) == {"worker:2": "gone for 60 s"}) is is_lost, failure


@pytest.mark.parametrize("number", [1, 2], ids=["its own board", "another's"])
def test_who_is_silent_for_too_long_is_named_with_what_to_do(number):
    silent = [PeerLink(n, run, "no answer", 61 if n == number else 0) for n, run in enumerate("abc")]
    failure = worker.judge(runtime_of("worker:1", of_links=silent, state="training"))
    assert (
        str(failure) == f"lost: worker:{number} at w{number}:1 (gone for 60 s: no answer); {ring.NO_WAY_ON}"
    )
    assert failure.is_model_safe


def test_a_worker_that_lost_itself_is_a_cause():
    """Its own board did not answer it, and it says so."""
    records = {"worker:1": ended("b", lost={"worker:1": "gone for 60 s"}), "worker:2": ended("c", "x")}
    assert loss("worker:0", records).lost.keys() == {"worker:1", "worker:2"}


@pytest.mark.parametrize("stops", [False, True])
def test_the_wait_for_a_reason_has_an_end(stops):
    clock = Clock()
    runtime = runtime_of("worker:1", {"worker:0": {"state": "training", "run": "a"}})
    runtime.guard = FakeGuard(PeerLostError("stopped") if stops else None)
    assert ring.await_loss(runtime, clock, clock.sleep) is None
    assert sum(clock.slept) == (0 if stops else pytest.approx(ring.LOSS_SECS, abs=0.3))


def test_the_record_of_a_process_that_was_no_peer_does_not_count():
    assert loss("worker:1", {"worker:2": ended("old", "x")}) is None


@pytest.mark.parametrize("run", ["new", None])
def test_another_process_at_a_peers_address(run):
    error = loss("worker:1", {}, links((run, "b", "c")))
    assert str(error).startswith("lost: worker:0 at w0:1 (was started again); an all-reduce does not go on")
    assert error.is_model_safe and error.exit_status == 138


def test_what_one_has_lost_that_ended_is_named_and_not_its_end():
    records = {"worker:2": ended("c", "lost: ...", lost=LOST_CHIEF)}
    error = loss("worker:1", records)
    assert str(error).startswith(
        "lost: worker:0 at w0:1 (the server was restarted), worker:2 (ended for that); an all-reduce"
    )
    assert error.lost == LOST_CHIEF, "those that hear of this one only are told the same"
    gone = links(reasons=("", "", "connection refused"))
    assert loss("worker:1", records, gone, is_stuck=True).lost == LOST_CHIEF


def test_who_has_ended_by_itself_is_named_with_its_reason():
    error = loss("worker:1", {"worker:2": ended("c", f"no memory; {ring.NO_WAY_ON}")})
    assert str(error) == f"lost: worker:2 at w2:1 (no memory); {ring.NO_WAY_ON}"


@pytest.mark.parametrize("theirs", [{"worker:1": "no answer"}, {"worker:0": "x"}])
def test_one_that_takes_this_one_or_another_that_says_the_same_of_it_for_lost(theirs):
    """As where the network was cut: there is no first."""
    records = {
        "worker:2": ended("c", "r2", lost=theirs),
        "worker:0": ended("a", "r0", lost={"worker:2": "y"}),
    }
    error = loss("worker:1", records)
    assert set(error.lost) == ({"worker:2"} if "worker:1" in theirs else {"worker:0", "worker:2"})


def test_one_that_is_stuck_asks_again_before_it_names_anybody():
    """The chief was back within a second, as another process; worker:2, which noticed, has ended since."""
    runtime = runtime_of("worker:1", {}, links(reasons=("", "", "connection refused")))
    runtime.monitor.later = FakeView(), links(("new", "b", "c"), ("", "", "connection refused"))
    assert "worker:0 at w0:1 (was started again)" in str(ring.await_loss(runtime))
    runtime = runtime_of("worker:1", {}, links(reasons=("", "", "connection refused")))
    runtime.monitor.later = FakeView({"worker:2": ended("c", lost=LOST_CHIEF)}), runtime.monitor.links
    assert ring.await_loss(runtime).lost == LOST_CHIEF


def test_a_failure_for_good_comes_before_the_loss_that_it_is():
    record = ended("c", "NaN in the loss") | {"exit_status": 1}
    error = ring.await_loss(runtime_of("worker:1", {"worker:2": record}))
    assert (str(error), error.exit_status) == ("worker:2 failed: NaN in the loss", 1)


def test_the_chief_begins_with_those_that_wait_for_its_own_process_only():
    runs = {"ps:0": "b", "ps:1": "d", "ps:2": "e"}
    now = {"state": "starting", "awaits": "b"}
    runtime = runtime_of("worker:0", {"worker:1": {**now, "run": "d"}, "worker:2": {**now, "run": "e"}})
    assert ring.not_ready(runtime, runs) == {}
    for record in (
        {**now, "run": "e", "awaits": "a"},
        {**now, "run": "old"},
        {**now, "run": "e", "state": "training"},
        {"state": "starting", "run": "e"},
    ):
        runtime.monitor.shown = FakeView({"worker:1": {**now, "run": "d"}, "worker:2": record})
        assert ring.not_ready(runtime, runs) == {"worker:2": record["state"]}
    runtime.monitor.shown = FakeView({"worker:1": {**now, "run": "d"}})
    assert ring.not_ready(runtime, runs) == {"worker:2": "not heard of"}


def test_a_worker_that_starts_waits_for_the_chief_that_is_there():
    runtime = runtime_of("worker:1")
    for runs, expected in (({"ps:1": "b"}, None), ({"ps:0": "a"}, "a"), ({}, "a"), ({"ps:0": "new"}, "new")):
        ring.await_chief(runtime, runs)
        assert runtime.monitor.get("awaits") == expected
