"""Which task of a local cluster is to blame, and which one the job can do without."""

import signal

import pytest

from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.failures import End, Policy, describe_end

PS, CHIEF, WORKER = TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)


def make_policy(num_workers=2, **settings):
    workers = [f"w{number}:1" for number in range(num_workers)]
    return Policy(Cluster.from_hosts(ps="p:1", worker=workers), TrainConfig(**settings))


@pytest.fixture
def policy():
    return make_policy()


def test_the_first_that_failed_is_to_blame(policy):
    assert not policy.note(End(CHIEF, 0, "done"))
    assert policy.find_failure(0.0) is None
    policy.note(End(WORKER, 138, "Lost ps:0.", "logs/worker1.log"))
    policy.note(End(PS, 1, "other"))
    assert str(policy.find_failure(0.0)) == (
        "worker:1 failed (status 138): Lost ps:0.\nIts log: logs/worker1.log"
    )


def test_one_that_ended_because_of_another_points_to_it(policy):
    policy.note(End(PS, 1, "worker:1 failed: no attribute"))
    assert policy.find_failure(0.0) is None  # worker:1 is about to end
    policy.note(End(WORKER, 1, "no attribute"))
    assert policy.find_failure(0.1)[:3] == ("worker:1", 1, "no attribute")


def test_one_that_does_not_end_is_not_waited_for(policy):
    policy.note(End(PS, 1, "worker:1 failed: no attribute"))
    assert policy.find_failure(0.0) is None
    assert policy.find_failure(10.0)[:3] == ("ps:0", 1, "worker:1 failed: no attribute")


def test_one_that_blames_a_task_that_is_done_is_to_blame_itself(policy):
    policy.note(End(WORKER, 0, "done"))
    policy.note(End(PS, 1, "worker:1 failed: no attribute"))
    assert policy.find_failure(0.0)[0] == "ps:0"


@pytest.mark.parametrize(
    ("reported", "ended_by", "line", "reason"),
    [
        (None, signal.SIGKILL, "step 3", "ended by SIGKILL, which may be the system's, for want of memory"),
        ("", signal.SIGSEGV, "", "ended by SIGSEGV"),
        (None, signal.SIGUSR1, "", "ended by SIGUSR1"),
        (None, 40, "", "ended by signal 40"),
        (None, None, "Lost ps:0.", "Lost ps:0."),
        (None, None, "", "no output"),
        ("no attribute", signal.SIGKILL, "step 3", "no attribute"),
    ],
)
def test_without_a_report_the_signal_or_the_log_tells(reported, ended_by, line, reason):
    assert describe_end(reported, ended_by, line) == reason


KILLED = {"status": 137, "ended_by": signal.SIGKILL}
CUT_OFF = {"status": 138, "is_cut_off": True}
SYNC, BACKUP = {"update": "sync"}, {"update": "sync", "replicas_to_aggregate": 2, "num_workers": 4}


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({}, [KILLED]),
        ({"num_workers": 3}, [KILLED, KILLED]),
        ({}, [{"status": 143}]),
        ({}, [CUT_OFF]),
        (BACKUP, [CUT_OFF, KILLED]),
        (BACKUP, [KILLED, KILLED]),
        (BACKUP, [{"status": 0}, KILLED]),
        (BACKUP, [{"status": 0}, {"status": 0}, KILLED]),
        (BACKUP, [KILLED, {"status": 0}, {"status": 0}]),
        ({**SYNC, "on_worker_loss": "continue"}, [KILLED]),
    ],
)
def test_a_job_goes_on_without_a_lost_worker(settings, ends):
    policy = make_policy(**settings)
    for index, end in enumerate(ends, start=1):
        assert policy.note(End(TaskId("worker", index), **end)) == (end["status"] != 0)
        assert policy.find_failure(100.0) is None


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        (SYNC, [KILLED]),
        (SYNC, [CUT_OFF]),
        (BACKUP, [KILLED, KILLED, KILLED]),
        (BACKUP, [KILLED, {"status": 0}, KILLED, KILLED]),
        ({}, [{"status": 1}]),
        ({}, [{"status": 138}]),
    ],
)
def test_a_job_that_needs_the_worker_ends(settings, ends):
    policy = make_policy(**settings)
    for index, end in enumerate(ends, start=1):
        assert policy.find_failure(100.0) is None
        policy.note(End(TaskId("worker", index), **end))
    assert policy.find_failure(100.0)[:2] == (f"worker:{len(ends)}", ends[-1]["status"])


@pytest.mark.parametrize("task", [PS, CHIEF])
def test_a_job_ends_with_its_chief_and_with_a_ps(policy, task):
    assert not policy.note(End(task, **KILLED))
    assert policy.find_failure(100.0)[:2] == (str(task), 137)


def test_nobody_is_lost_once_the_tasks_are_asked_to_end(policy):
    assert not policy.note(End(WORKER, **KILLED), is_ending=True)
    assert policy.lost == {}
