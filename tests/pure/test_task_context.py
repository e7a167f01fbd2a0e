"""What a global step uses, by the update rule and the size of the cluster."""

import pytest

import ps_train
from ps_train import task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.task_context import TaskContext

BATCH, EXAMPLES = 50, 60_000


@pytest.fixture
def enter(monkeypatch):
    """Makes this process a worker of such a cluster."""
    monkeypatch.setattr(task_context, "_current", [])

    def set_to(update, num_workers, quorum=None, **settings):
        workers = ",".join(f"w{number}:1" for number in range(num_workers))
        cluster = Cluster.from_hosts("p0:1", workers)
        task_context.set_current(TaskContext(TaskId("worker", 0), cluster, update, quorum, **settings))

    return set_to


@pytest.mark.parametrize(
    ("update", "num_workers", "quorum", "batches"),
    [("async", 1, None, 1), ("async", 4, None, 1), ("sync", 1, None, 1), ("sync", 2, None, 2), ("sync", 4, None, 4), ("sync", 4, 3, 3)],
)  # fmt: skip
def test_a_schedule_by_examples_is_the_same_in_every_cluster(enter, update, num_workers, quorum, batches):
    enter(update, num_workers, quorum)
    decay_steps = 2 * EXAMPLES // ps_train.global_batch_size(BATCH)
    used = decay_steps * batches * BATCH  # by the definition of a global step
    assert used == 2 * EXAMPLES


def test_all_batches_of_a_step_count(enter):
    enter("sync", 4, 3, accumulate_steps=5)
    assert ps_train.global_batch_size(10) == 10 * 3 * 5
    enter("async", 4, local_steps=5)
    assert ps_train.global_batch_size(10) == 10 * 5


def test_outside_a_cluster_a_step_is_a_batch(monkeypatch):
    monkeypatch.setattr(task_context, "_current", [])
    assert ps_train.global_batch_size(64) == 64
