"""Who decides on a transport and who follows, by the boards: no worker waits for another, whatever becomes of that one."""

from types import SimpleNamespace

import pytest
from fakes import Clock, FakeMonitor, FakeView

from ps_train import autotune, task_context, tuning
from ps_train.autotune import PLAIN, Setting
from ps_train.cluster import Cluster, TaskId
from ps_train.reports import Report
from ps_train.tuning import BOARD_KEY, GATHER_SECS, SETTLE_SECS, Leader, Led

pytestmark = pytest.mark.graph
PACKED, HALF = Setting(4096), Setting(4096, "bfloat16")
SETTINGS = [HALF, PACKED, PLAIN]
STEP_SECS = {HALF: 0.05, PACKED: 0.02, PLAIN: 0.03}
CLUSTER = Cluster.from_hosts(["a:1"], ["b:1", "c:1"])


class Boards(FakeMonitor):
    def publish(self, key, **fields):
        self.shown.records[key] = {"key": key, **fields}


def runtime(index, view, update="sync"):
    task = TaskId("worker", index)
    context = task_context.TaskContext(
        task, CLUSTER, update, pack_bytes=4096, wire_dtype="bfloat16", autotune=True
    )
    return SimpleNamespace(context=context, monitor=Boards(view), report=Report(task))


def says(view, name, setting, state="training"):
    view.records[name] = {"key": name, "state": state, BOARD_KEY: setting and setting.name}


class Job:
    """A Leader whose steps move the clock, and what the other worker says."""

    def __init__(self, update="sync", other=None):
        self.clock, self.view = Clock(), FakeView()
        self.other = other or (lambda setting: setting)
        self.runtime = runtime(0, self.view, update)
        self.leader = Leader(self.runtime, SETTINGS, self.clock)
        self.leader.begin_session()

    def run(self, most=10**4):
        """Steps until it is decided; how many."""
        for number in range(most):
            if self.leader.kept is not None:
                return number
            wanted = self.leader.wanted()
            says(self.view, "worker:1", self.other(wanted))
            self.clock.now += STEP_SECS[wanted]
            self.leader.note(STEP_SECS[wanted])
        raise AssertionError(f"nothing is decided after {most} steps")


def test_only_a_synchronous_worker_that_is_not_the_chief_is_led():
    kinds = [type(tuning.tuner_for(runtime(*of))) for of in ((0, None), (1, None), (1, None, "async"))]
    assert kinds == [Leader, Led, Leader]


@pytest.mark.parametrize("update", ["sync", "async"])
def test_the_fastest_is_kept_and_reported(update):
    job = Job(update)
    job.run()
    assert job.leader.kept == job.leader.wanted() == PACKED
    assert job.runtime.report.transport == PACKED.flags
    told = {"key": BOARD_KEY, "trying": PACKED.name, "kept": PACKED.name}
    assert job.view.record(BOARD_KEY) == (told if update == "sync" else {})


def test_nothing_is_timed_before_all_workers_train_or_it_takes_too_long():
    job = Job("async", other=lambda setting: None)
    says(job.view, "worker:1", None, state="starting")
    step_secs = []
    while job.clock.now < 1000 + GATHER_SECS:
        job.clock.now += 0.5
        job.leader.note(0.5)
        step_secs.append(job.leader._trial.num_steps)
    assert set(step_secs) == {0}
    assert job.run() > 100, "the other has not come, and it is tried all the same"


def test_a_worker_that_does_not_follow_costs_a_bounded_time():
    follows, stays = Job(), Job(other=lambda setting: HALF)
    follows.run()
    stays.run()
    assert follows.leader.kept == stays.leader.kept == PACKED
    turns = autotune.ROUNDS * len(SETTINGS)
    assert follows.clock.now < stays.clock.now < follows.clock.now + turns * (SETTLE_SECS + 1)


def test_a_session_that_was_lost_begins_the_turn_anew():
    job = Job()
    for _ in range(15):
        says(job.view, "worker:1", HALF)
        job.clock.now += 9.0
        job.leader.note(0.001)
        job.leader.begin_session()
    assert job.leader.wanted() == HALF and job.leader._trial.step_secs() == {}


def test_the_end_of_the_training_decides_by_what_there_is():
    job = Job()
    job.leader.finish()
    assert job.leader.kept == HALF
    assert job.view.record(BOARD_KEY)["kept"] == HALF.name, (
        "for the others, and for steps that a lost ps brings back"
    )


def test_a_chief_that_comes_again_keeps_what_was_decided_and_before_that_tries_anew():
    job = Job()
    again = Leader(runtime(0, job.view), SETTINGS, job.clock)
    again.begin_session()
    assert (again.kept, again.wanted()) == (None, HALF)
    job.run()
    again = Leader(runtime(0, job.view), SETTINGS, job.clock)
    again.begin_session()
    assert (again.kept, again.wanted()) == (PACKED, PACKED)
    assert job.view.record(BOARD_KEY)["kept"] == PACKED.name


def test_a_worker_follows_what_the_chief_says_as_far_as_its_flags_allow():
    clock, view = Clock(), FakeView()
    led = Led(runtime(1, view), SETTINGS, clock)
    assert (led.wanted(), led.kept) == (HALF, None)
    for told, expected in ((PLAIN, PLAIN), (Setting(4096, "int8"), PLAIN), (PACKED, PACKED)):
        view.records[BOARD_KEY] = {"trying": told.name, "kept": None}
        clock.now += 1
        assert (led.wanted(), led.kept) == (expected, None)
    view.records[BOARD_KEY] = {"trying": PACKED.name, "kept": PACKED.name}
    clock.now += 1
    assert (led.wanted(), led.kept) == (PACKED, PACKED)


def test_where_there_is_nothing_to_choose_from_the_flags_are_kept():
    job = Job()
    job.leader.give_up()
    job.leader.begin_session()
    assert job.leader.kept == HALF and job.view.record(BOARD_KEY)["kept"] == HALF.name
    assert job.runtime.report.transport == HALF.flags
