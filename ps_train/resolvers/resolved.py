"""What a resolver finds out (`Resolved`) and what the flags say about the cluster (`ClusterFlags`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ps_train.cluster import Cluster, TaskId
from ps_train.errors import UsageError

SOLE_TASK_JOBS = ("chief", "evaluator")


class Resolved(NamedTuple):
    """This process's place. Both None: no cluster is named, so the run is a local one.

    An evaluator may have no cluster; every other task has one and is its member.
    """

    cluster: Cluster | None
    task: TaskId | None

    @property
    def is_a_place(self) -> bool:
        """Whether a cluster is named, or the evaluator, which needs none."""
        return self.cluster is not None or self.task is not None and self.task.job == "evaluator"


@dataclass(frozen=True)
class ClusterFlags:
    """The flags that place this process; None or empty where not given."""

    job_name: str | None = None
    task_index: int | None = None
    ps_hosts: str | None = None
    worker_hosts: str | None = None
    chief_host: str | None = None
    colocate_ps: bool = False
    num_ps: int | None = None
    num_workers: int | None = None
    port_base: int | None = None

    @property
    def wanted_ps(self) -> int:
        """How many ps tasks are asked for, where nothing but their number is."""
        return 0 if self.colocate_ps else self.num_ps or 1

    @property
    def has_hosts(self) -> bool:
        """Whether any list of hosts is given."""
        return bool(self.ps_hosts or self.worker_hosts or self.chief_host)

    @property
    def is_given(self) -> bool:
        """Whether any of those that name this task or the others' hosts is given."""
        return bool(self.names_given)

    @property
    def names_given(self) -> list[str]:
        """Which of those are."""
        names = ("job_name", "task_index", "ps_hosts", "worker_hosts", "chief_host")
        return [name for name in names if getattr(self, name) not in (None, "")]


def size_problems(flags: ClusterFlags) -> list[str]:
    """What is wrong with the number of tasks that the flags ask for."""
    problems = []
    if flags.colocate_ps and flags.num_ps is not None:
        problems.append(
            f"--num_ps={flags.num_ps} beside --colocate_ps or --update=allreduce: there the workers hold the variables. Leave out one "
            "of the two."
        )
    return problems + [
        f"--{name}={number} is out of range. Expected a whole number from 1."
        for name, number in (("num_ps", flags.num_ps), ("num_workers", flags.num_workers))
        if number is not None and number < 1
    ]


def default_index(job: str, cluster: Cluster | None) -> int | None:
    """The index of the only task that `job` can have; None if there are several, so that it must be told."""
    if job in SOLE_TASK_JOBS:
        return 0
    indices = [task.index for task in cluster.tasks if task.job == job] if cluster else []
    if len(indices) == 1:
        return indices[0]
    return None if indices else 0


def check_place(task: TaskId, cluster: Cluster | None) -> None:
    """Raises `UsageError` unless `task` is in `cluster`, or is the one evaluator."""
    if task.job == "evaluator":
        if task.index != 0:
            raise UsageError(f"Task {task} does not exist: there is one evaluator. Expected the index 0.")
    elif cluster is not None:
        cluster.check_member(task)
