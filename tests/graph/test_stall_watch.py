"""When a wait is looked into and how often it is told, with the clock in the test's hand."""

import logging

import pytest
from fakes import Clock, FakeLink, FakeMonitor, FakeRuntime, FakeView

from ps_train import stall, stall_watch
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.stall_watch import StallWatch

pytestmark = pytest.mark.graph
CONCLUSION = (
    "this worker's own input gives no data, as it seems: every ps answers, no other task is waited for, and this process is "
    "idle"
)  # fmt: skip


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(stall_watch.log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    return lambda: [record.getMessage().splitlines()[0] for record in caplog.records]


class Task:
    """A worker whose steps are completed when a test says so; what is found out about a wait is always the same."""

    def __init__(self, stall_secs=30.0):
        self.clock = Clock()
        self.runtime = FakeRuntime("worker:1", stall_secs=stall_secs)
        self.runtime.report.global_step = 7
        self.watch = StallWatch(self.runtime, [], self.clock, start=lambda f: self.pending.append(f))
        self.watch.collect = lambda since: stall.Evidence("worker:1", "worker:0", self.clock() - since, 7)
        self.pending = []
        self.is_slow = False

    @property
    def fields(self):
        return self.runtime.monitor.fields

    def wait(self, secs):
        """Looks every half second."""
        for _ in range(int(2 * secs)):
            self.clock.now += 0.5
            self.watch.look()
            if not self.is_slow:
                self.finish()

    def finish(self):
        """The searches that have begun come to their end."""
        while self.pending:
            self.pending.pop()()

    def step(self, secs=0.5, count=1):
        """Steps that take so long each."""
        for _ in range(count):
            self.wait(secs - 0.5)
            self.runtime.report.local_steps += 1
            self.runtime.report.global_step += 1
            self.wait(0.5)


def test_a_wait_is_told_once_and_so_is_its_end(lines):
    task = Task()
    task.step(count=5)
    task.wait(29)
    assert lines() == [] and "stall" not in task.fields
    task.wait(200)
    assert lines() == [
        "no step for 30 s since this task's last, to global step 7. What is known, told once for each such wait:"
    ]
    assert (task.fields["stall"], task.fields["local_rate"]) == (CONCLUSION, 0.0)
    task.step()
    assert lines()[1:] == ["the wait is over after 230 s, at global step 13"] and task.fields["stall"] is None
    task.step(count=5)
    task.wait(31)
    assert len(lines()) == 3, "the next wait is another one"


def test_steps_that_were_done_since_the_last_word_on_the_boards_are_posted():
    task = Task()
    task.step(count=2)
    task.fields.update(step=8, local_steps=1)
    task.wait(1)
    assert task.fields["local_steps"] == 1
    task.wait(1)
    assert (task.fields["step"], task.fields["local_steps"]) == (9, 2)


def test_a_step_that_comes_while_the_wait_is_looked_into(lines):
    task = Task()
    task.is_slow = True
    task.step()
    task.wait(31)
    task.step()
    assert len(task.pending) == 1
    task.finish()
    task.step(count=3)
    assert lines() == [] and not task.fields.get("stall")


def test_steps_that_take_long_by_nature_are_told_of_once(lines):
    task = Task()
    task.step(60, count=5)
    assert [line.partition(" since")[0] for line in lines()] == [
        "no step for 30 s", "the wait is over after 60 s, at global step 8",
    ]  # fmt: skip
    assert task.watch.bound_secs == 180
    task.wait(200)
    assert len(lines()) == 3


def test_one_long_wait_does_not_blunt_the_watch():
    task = Task()
    task.step(300)
    task.step(count=3)
    assert task.watch.bound_secs == 30


@pytest.mark.parametrize("state", ["starting", "ending"])
def test_only_training_is_watched(lines, state):
    task = Task()
    task.step()
    task.fields["state"] = state
    task.wait(100)
    assert lines() == []


def test_a_wait_that_the_end_of_the_data_ends(lines):
    task = Task(stall_secs=3)
    task.step()
    task.wait(6)
    task.fields["state"] = "ending"
    task.wait(1)
    assert lines()[1:] == ["the wait is over after 6 s, at global step 8"]


def test_a_fault_in_the_search_does_no_harm(lines):
    task = Task()

    def fail(since):
        raise KeyError("x")

    task.watch.collect = fail
    task.step()
    task.wait(100)
    assert lines() == ["internal error while a wait of 30.5 s was looked into: KeyError('x')"]


def test_queues_of_the_model_s_on_the_ps_tasks():
    with tf1.Graph().as_default() as graph:
        for device, name in (("/job:ps/task:0", "sync_token_q"), ("/job:ps/task:0", "ps_train_sync0_go"),
                             ("/job:worker/task:1", "input")):  # fmt: skip
            with tf1.device(device):
                tf1.FIFOQueue(-1, tf.int64, shared_name=name)
        tf.constant(1)
    watch = StallWatch(FakeRuntime("worker:1"), [], Clock(), graph=graph)
    assert watch._queues == ["sync_token_q"]


def test_what_is_collected(monkeypatch):
    """Of an async worker: the ps tasks, the others, where the main thread is."""
    monkeypatch.setattr(stall_watch.time, "sleep", lambda secs: None)
    links = [FakeLink(TaskId("ps", 0), "p0:1", 0.2, ""), FakeLink(TaskId("ps", 1), "p1:1", 9.0)]
    records = {
        "worker:0": {"state": "training", "step": 5},
        "worker:2": {"state": "training", "stall": "why"},
    }
    monitor = FakeMonitor(FakeView(records, {"worker:2": 2.5}), links, state="training")
    clock = Clock()
    watch = StallWatch(FakeRuntime("worker:1", monitor=monitor), [], clock)
    found = watch.collect(clock.now - 40)
    assert (found.own, found.chief, found.secs, found.is_first) == ("worker:1", "worker:0", 40, True)
    assert found.servers == [
        stall.Server("ps:0", "p0:1", True, "no answer"),
        stall.Server("ps:1", "p1:1", False, "connection refused (nothing listens there)"),
    ]
    assert found.peers == [
        stall.Peer("worker:0", "training", 0.0, 5), stall.Peer("worker:2", "training", 2.5, None, "why"),
    ]  # fmt: skip
    assert found.stack.place == "code" and found.stack.innermost.startswith("test_what_is_collected in ")
    assert found.standings == [] and found.gradients == [] and found.is_loop_there is None
