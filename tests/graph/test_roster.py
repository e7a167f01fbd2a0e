"""Whom the chief calls lost, and when it does not know."""

import pytest
from fakes import Clock, FakeLink, FakeMonitor, FakeView

from ps_train.cluster import TaskId
from ps_train.updates.roster import Roster

pytestmark = pytest.mark.graph

TASKS = [TaskId("worker", 0), TaskId("worker", 1)]
RECORDS = {"worker:0": {"state": "training"}, "worker:1": {"state": "training", "run": "r"}}


class Optimizer:
    def __init__(self):
        self.removed, self.forgotten = [], []

    def forget_push(self, session, replica):
        self.forgotten.append(replica)

    def remove(self, session, replica):
        self.removed.append(replica)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def optimizer():
    return Optimizer()


@pytest.fixture
def roster(clock, optimizer):
    monitor = FakeMonitor(FakeView(RECORDS), [FakeLink(TaskId("ps", 0), "p0:1")])
    monitor.links[0].is_up = True
    return Roster([optimizer], monitor, TASKS, TASKS[0], None, 5.0, 1, clock)


def test_a_silent_worker_is_removed_once(roster, optimizer):
    roster._monitor.shown = FakeView(RECORDS, {"worker:1": 5.1})
    roster.look(None)
    roster.look(None)
    assert optimizer.removed == [1]


def test_no_more_are_removed_than_the_job_goes_on_without(clock, optimizer):
    tasks = [TaskId("worker", index) for index in range(4)]
    records = {str(task): {"state": "training", "run": "r"} for task in tasks}
    monitor = FakeMonitor(FakeView(records), [FakeLink(TaskId("ps", 0), "p0:1")])
    monitor.links[0].is_up = True
    roster = Roster([optimizer], monitor, tasks, tasks[0], None, 5.0, 2, clock)
    for lost in (("worker:3",), ("worker:3", "worker:1", "worker:2")):
        monitor.shown = FakeView(records, dict.fromkeys(lost, 6.0))
        roster.look(None)
    assert (optimizer.removed, optimizer.forgotten) == ([3, 1], [2])


def test_one_that_came_back_may_be_lost_again(roster, optimizer):
    for age in (6.0, 0.2, 6.0):
        roster._monitor.shown = FakeView(RECORDS, {"worker:1": age})
        roster.look(None)
    assert optimizer.removed == [1, 1]


def test_nobody_is_lost_because_the_boards_were_silent(roster, optimizer, clock):
    """As when every ps stood still: the first thing that is heard then is old."""
    link = roster._monitor.links[0]
    roster._monitor.shown = FakeView(RECORDS, {"worker:1": 30.0})
    link.is_up = False
    roster.look(None)
    link.is_up = True
    clock.now += 1.0
    roster.look(None)
    assert optimizer.removed == []
    clock.now += 3.0
    roster.look(None)
    assert optimizer.removed == [1]
