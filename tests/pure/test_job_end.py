"""The order of a job's end: who gets which signal when, and with what status it ends."""

import signal
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM

import pytest

from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import REPEAT_SECS
from ps_train.failures import End, Policy
from ps_train.job_end import JobEnd

PS, CHIEF, WORKER = TASKS = [TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)]
WORKERS = [CHIEF, WORKER]
SECS = 30.0


class Run:
    """A job whose time is `now`; `tick` lets some pass and gives the signals that are sent then."""

    def __init__(self, update="sync", **settings):
        self.policy = Policy(Cluster.from_hosts("p:1", "w0:1,w1:1"), TrainConfig(update=update))
        self.end = JobEnd(self.policy, WORKERS, SECS, SECS, "log of {}".format, **settings)
        self.now = 100.0

    def ends(self, **statuses):
        for name, status in statuses.items():
            task = {"ps": PS, "chief": CHIEF, "worker": WORKER}[name]
            killed = status - 128 if status == 137 else None
            self.policy.note(End(task, status, "why", ended_by=killed), is_ending=self.end.is_asked)

    def tick(self, secs=0.1):
        self.now += secs
        return self.end.steer(TASKS, self.now)

    def hear(self, number, secs=0.1):
        self.now += secs
        return self.end.hear(number, TASKS, self.now)


def to(number, *tasks):
    return [(task, number) for task in tasks]


def test_nothing_is_sent_while_all_run():
    run = Run()
    assert run.tick() == [] and run.tick(1e6) == []
    assert not run.end.is_asked and not run.end.is_resting and run.end.status == 0


@pytest.mark.parametrize(("number", "passed_on"), [(SIGINT, SIGINT), (SIGTERM, SIGTERM), (SIGHUP, SIGTERM)])
def test_a_signal_ends_the_workers_and_then_the_ps(number, passed_on):
    run = Run()
    assert run.hear(number) == to(passed_on, *WORKERS)
    run.ends(worker=143)
    assert run.tick() == []
    run.ends(chief=143)
    assert run.tick() == to(SIGTERM, PS)
    assert run.tick() == [], "a second one would end it at once"
    assert run.end.status == 128 + number


def test_a_second_signal_kills_and_one_that_follows_at_once_is_the_same():
    run = Run()
    run.hear(SIGINT)
    assert run.hear(SIGINT, REPEAT_SECS - 0.1) == []
    run.ends(worker=130)
    assert run.hear(SIGTERM, 0.2) == to(SIGKILL, PS, CHIEF)
    assert run.end.status == 130


def test_a_signal_while_a_failed_job_ends_changes_nothing_and_a_second_one_kills():
    run = Run()
    run.ends(worker=1)
    assert run.tick() == to(SIGTERM, CHIEF)
    assert run.hear(SIGTERM, 5.0) == [], "the chief is saving"
    assert run.tick() == []
    assert run.hear(SIGTERM, 5.0) == to(SIGKILL, PS, CHIEF)
    assert run.end.status == 1 and run.end.signal is None


def test_what_does_not_end_in_time_is_killed():
    run = Run()
    run.hear(SIGINT)
    assert run.tick(SECS - 1) == []
    assert run.tick(2) == to(SIGKILL, *TASKS)


def test_a_worker_that_does_not_hear_a_sigint_may_get_one_sigterm():
    run = Run(escalate_secs=5.0)
    run.hear(SIGINT)
    assert run.tick(4.0) == []
    assert run.tick(2.0) == to(SIGTERM, *WORKERS)
    assert run.tick() == []
    run = Run(escalate_secs=5.0)
    run.hear(SIGTERM)
    assert run.tick(6.0) == [], "it has had one"


def test_a_ps_that_stays_after_the_workers_is_a_failure():
    run = Run()
    run.ends(worker=0, chief=0)
    assert run.tick() == [] and run.end.is_resting
    assert run.tick(SECS - 1) == []
    assert run.tick(2) == to(SIGKILL, PS)
    assert run.end.failure == ("ps:0", 1, "did not end within 30 s after the last worker", "log of ps:0")
    assert run.end.status == 1


def test_servers_that_are_free_to_stay_get_a_sigterm_and_that_is_no_failure():
    run = Run(is_rest_free=True)
    run.ends(worker=0, chief=0)
    run.tick()
    assert run.tick(SECS + 1) == to(SIGTERM, PS)
    assert run.tick() == []
    assert run.tick(SECS) == to(SIGKILL, PS)
    assert run.end.status == 0


def test_a_lost_worker_is_not_waited_for():
    run = Run(update="async")
    run.ends(worker=137, chief=0)
    run.tick()
    assert run.end.is_resting and not run.end.is_asked
    run.ends(ps=138)
    run.tick()
    assert (run.end.failure.name, run.end.status) == ("ps:0", 138)


def test_a_signal_while_the_ps_are_about_to_end_ends_them():
    run = Run()
    run.ends(worker=0, chief=0)
    run.tick()
    assert run.hear(signal.SIGINT) == []
    assert run.tick() == to(SIGTERM, PS)
    assert run.end.status == 130


def test_a_bench_asks_for_the_end_itself():
    run = Run()
    assert run.end.ask(SIGTERM, TASKS, run.now) == to(SIGTERM, *WORKERS)
    assert run.end.is_asked and run.end.status == 0
