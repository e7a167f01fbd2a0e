"""Who is in the cluster and where: `TaskId` and `Cluster`, frozen values that need no TensorFlow.

>>> cluster = Cluster.from_hosts(ps="ps0.lan:2222", worker="w0.lan:2222,w1.lan:2222")
>>> [str(task) for task in cluster.training_tasks]
['worker:0', 'worker:1']
>>> str(cluster.chief_task)
'worker:0'
>>> cluster.address(TaskId("ps", 0))
'ps0.lan:2222'

A `Cluster` that exists is valid: every constructor checks the whole description and raises one `UsageError` that has a
line for each problem. Addresses are kept as they were written (less surrounding blanks); they are compared by what
they mean, so `LOCALHOST:2222`, `127.0.0.1:2222` and `[::1]:2222` are one address.

The evaluator is a task, but never in the cluster: nobody waits for it and it talks to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps_train.addresses import address_problem, comparable, split_address
from ps_train.errors import EXIT_PERMANENT, UsageError
from ps_train.wording import counted, nearest, shown

JOBS = ("ps", "worker", "chief", "evaluator")
ENDED = ("left", "failed", "stopped")  # what a task's record calls its state when its process is about to end
# The state of a training task at the target: it makes no step any more, unless the model goes back before it is saved.
AT_TARGET = "at target"
SERVING = "serving"  # of a ps, and of a worker whose devices another task uses
WARMING_UP = "warming up"  # of a training task that lets the chief train alone at first
UP = ("training", WARMING_UP, "ending", AT_TARGET)  # the states of a training task that has a session
OVER = ("ending", AT_TARGET, *ENDED)  # of one that makes no step any more
FROM_FLAGS = "flags"
FROM_TF_CONFIG = "TF_CONFIG"
FROM_SRUN = "the nodes of srun's job step"
FROM_MPIRUN = "the hosts of mpirun's ranks"
FROM_SERVER = "what ps_train.Server was given"

Indexed = tuple[tuple[int, str], ...]
"""A job's addresses: (index, "host:port") pairs by rising index; a sparse job leaves indices out."""


@dataclass(frozen=True, order=True)
class TaskId:
    """One task's name: its job and its index in the job, from 0. Printed as `worker:1`.

    >>> str(TaskId("worker", 1)), TaskId.from_string("ps:0")
    ('worker:1', TaskId(job='ps', index=0))
    """

    job: str
    index: int

    def __str__(self) -> str:
        """`job:index`, as log lines and messages have it."""
        return f"{self.job}:{self.index}"

    @classmethod
    def from_string(cls, text: str) -> TaskId:
        """The inverse of `str()`: `TaskId.from_string("worker:1")`. Raises `UsageError` for anything else."""
        match = re.fullmatch(r"([a-z]+):([0-9]{1,9})", text.strip())
        if match is None or match[1] not in JOBS:
            raise UsageError(
                f"Task {shown(text)} is not a task. Write job:index, such as worker:1; {_JOBS_LINE}"
            )
        return cls(match[1], int(match[2]))


EVALUATOR = TaskId("evaluator", 0)
_JOBS_LINE = "the jobs are ps, worker, chief and evaluator."


@dataclass(frozen=True)
class Cluster:
    """The ps and training tasks of one job and their addresses. Equal, hashable, and the same in every process.

    >>> cluster = Cluster.from_dict({"chief": ["c:2222"], "ps": ["p:2222"], "worker": ["w:2222"]})
    >>> str(cluster.chief_task), cluster.num_workers, cluster.address(TaskId("ps", 0))
    ('chief:0', 2, 'p:2222')

    Make one with `from_hosts` or `from_dict`. `source` names where it came from, for the remedy in messages; it takes
    no part in comparisons.

    Where it is colocated, the process of each training task is a ps, too: ps:0 is the chief's, and so on by shard index.

    >>> cluster = Cluster.from_hosts(worker="w0:2222,w1:2222", is_colocated=True)
    >>> [str(task) for task in cluster.tasks], str(cluster.host(TaskId("ps", 1))), cluster.address(TaskId("ps", 1))
    (['worker:0', 'worker:1'], 'worker:1', 'w1:2222')
    """

    ps: Indexed
    worker: Indexed
    chief: str | None = None
    source: str = field(default=FROM_FLAGS, compare=False, repr=False)
    is_colocated: bool = False

    def __post_init__(self) -> None:
        """Sorts by index and checks; raises `UsageError`."""
        object.__setattr__(self, "ps", tuple(sorted(self.ps)))
        object.__setattr__(self, "worker", tuple(sorted(self.worker)))
        problems = _find_problems(self._listed(), self.source, is_colocated=self.is_colocated)
        if problems:
            raise UsageError.from_problems(problems)
        if self.is_colocated:
            held = (self.address(task) for task in self.training_tasks)
            object.__setattr__(self, "ps", tuple(enumerate(held)))

    @classmethod
    def from_hosts(
        cls,
        ps: str | Sequence[str] | None = None,
        worker: str | Sequence[str] | None = None,
        chief: str | Sequence[str] | None = None,
        is_colocated: bool = False,
    ) -> Cluster:
        """From lists of `host:port`, each a sequence or one comma-separated string as in --ps_hosts."""
        return cls._from_jobs({"ps": ps, "worker": worker, "chief": chief}, FROM_FLAGS, [], is_colocated)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Cluster:
        """The inverse of `as_record`."""
        return cls.from_dict(record["cluster"], is_colocated=record.get("is_colocated", False))

    @classmethod
    def from_dict(
        cls, jobs: Mapping[str, Any], source: str = FROM_TF_CONFIG, is_colocated: bool = False
    ) -> Cluster:
        """From `{job: [address, ...]}` or `{job: {index: address}}`, as TF_CONFIG and `tf.train.ClusterSpec` have it.

        Indices may be text ("0") and may have gaps. `master` is another word for `chief`. `evaluator` and jobs that
        are none of ours are left out; one that may be a slip for a job that is not there ("workers") is refused.
        """
        if not isinstance(jobs, Mapping):
            raise UsageError(f"The cluster is {shown(jobs)}. Expected an object such as {_EXAMPLE_DICT}.")
        wanted = {job: jobs.get(job) for job in ("ps", "worker", "chief")}
        problems = []
        if jobs.get("master"):
            if wanted["chief"]:
                problems.append(
                    "The cluster has both a 'chief' and a 'master', which are the same job. Keep one."
                )
            else:
                wanted["chief"] = jobs["master"]
        unknown = sorted((job for job in jobs if job not in (*JOBS, "master")), key=shown)
        for job in list(unknown):
            meant = nearest(str(job), (*JOBS, "master"))
            if meant and not jobs.get(meant):  # beside the job itself, it may be another thing of the user's
                unknown.remove(job)
                problems.append(
                    f"The cluster has the job {shown(job)}. Did you mean {meant}? Check {source}."
                )
                wanted["chief" if meant == "master" else meant] = jobs[job]  # its hosts are checked, too
        wanted.pop("evaluator", None)
        note = f" Not a job, left out: {', '.join(map(shown, unknown))}." if unknown else ""
        return cls._from_jobs(wanted, source, problems, is_colocated, note)

    @classmethod
    def _from_jobs(
        cls, jobs: Mapping[str, Any], source: str, problems: list[str], is_colocated: bool, note: str = ""
    ) -> Cluster:
        problems = list(problems)
        indexed = {job: _index_hosts(job, hosts, problems) for job, hosts in jobs.items()}
        if is_colocated and indexed["ps"]:
            problems.append(
                "--colocate_ps or --update=allreduce is given, and the cluster has a job 'ps': there the workers hold the variables. Leave out one "
                f"of the two. {_remedy(source, 'ps')}"
            )
            indexed["ps"] = []
        chiefs = indexed["chief"]
        if len(chiefs) > 1:
            problems.append(
                f"There are {len(chiefs)} chiefs, expected at most one. {_remedy(source, 'chief')}"
            )
        problems += _find_problems(indexed, source, note, is_colocated)
        if problems:
            raise UsageError.from_problems(problems)
        chief = chiefs[0][1] if chiefs else None
        return cls(tuple(indexed["ps"]), tuple(indexed["worker"]), chief, source, is_colocated)

    @property
    def ps_tasks(self) -> tuple[TaskId, ...]:
        """The ps tasks by rising index."""
        return tuple(TaskId("ps", index) for index, _ in self.ps)

    @property
    def training_tasks(self) -> tuple[TaskId, ...]:
        """All tasks that compute gradients: the chief job if there is one, then the workers by rising index.

        The order is the same in every process; it numbers the data shards.
        """
        chief = (TaskId("chief", 0),) if self.chief is not None else ()
        return chief + tuple(TaskId("worker", index) for index, _ in self.worker)

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task that has a process of its own, ps first."""
        return self.training_tasks if self.is_colocated else self.ps_tasks + self.training_tasks

    def host(self, ps: TaskId) -> TaskId:
        """The task whose process a ps is part of: itself, unless it is colocated."""
        return self.training_tasks[ps.index] if self.is_colocated else ps

    def server_task(self, task: TaskId) -> TaskId:
        """The name that TensorFlow's server of a task's process has: that of the ps in it, if there is one."""
        if not self.is_colocated or task.job == "ps":
            return task
        return TaskId("ps", self.shard_index(task))

    @property
    def num_ps(self) -> int:
        """How many ps tasks there are."""
        return len(self.ps)

    @property
    def num_workers(self) -> int:
        """How many training tasks there are, the chief among them."""
        return len(self.training_tasks)

    @property
    def chief_task(self) -> TaskId:
        """The one task that initialises variables and writes checkpoints: `chief:0`, else `worker:0`."""
        return self.training_tasks[0]

    def is_chief(self, task: TaskId) -> bool:
        """Whether `task` is the chief."""
        return task == self.chief_task

    def shard_index(self, task: TaskId) -> int:
        """The position of a training task in `training_tasks`, from 0 (the chief)."""
        if task.job == "ps":
            raise UsageError(
                f"Task {task} does not train, so it has no data shard. Expected a worker or the chief."
            )
        self.check_member(task)
        return self.training_tasks.index(task)

    def address(self, task: TaskId) -> str:
        """`host:port` of a member."""
        if task not in self.ps_tasks:
            self.check_member(task)
        return dict(self._jobs()[task.job])[task.index]

    def num_on_host_of(self, task: TaskId) -> int:
        """How many processes of the cluster, that of `task` among them, its lists put on one host by the same name.

        >>> Cluster.from_hosts("localhost:1,ps1:1", "127.0.0.1:2,ps1:2,ps1:3").num_on_host_of(TaskId("worker", 1))
        3
        """
        hosts = [split_address(comparable(self.address(other)))[0] for other in self.tasks]
        return hosts.count(split_address(comparable(self.address(task)))[0])

    def check_member(self, task: TaskId) -> None:
        """Raises `UsageError` if no process of the cluster is `task`. The evaluator never is in it."""
        if task in self.tasks:
            return
        where = f"Task {task} is not in the cluster: "
        if task.job not in JOBS:
            raise UsageError(f"{where}there is no job {shown(task.job)}; {_JOBS_LINE}")
        if task.job == "ps" and self.is_colocated:
            raise UsageError(
                f"{where}by --colocate_ps or --update=allreduce the workers hold the variables. Start the workers only, or leave it out."
            )
        if task.job == "evaluator":
            raise UsageError(f"{where}an evaluator reads checkpoints only, no task talks to it.")
        indices = [index for index, _ in self._jobs()[task.job]]
        if not indices and task.job == "chief":
            raise UsageError(
                f"{where}it has no job 'chief', so worker:0 is the chief. {_task_remedy(self.source, 'chief')}"
            )
        if not indices:
            raise UsageError(f"{where}it has no job {task.job!r}. {_task_remedy(self.source, task.job)}")
        raise UsageError(
            f"{where}job {task.job!r} has {_count(indices)}. {_task_remedy(self.source, task.job)}"
        )

    def as_dict(self) -> dict[str, dict[int, str]]:
        """`{job: {index: address}}` of all processes; jobs without tasks are left out."""
        return {job: dict(hosts) for job, hosts in self._listed().items() if hosts}

    def as_server_dict(self) -> dict[str, dict[int, str]]:
        """The same for `tf.train.ClusterSpec`, by the names that TensorFlow's servers have."""
        return {"ps": dict(self.ps)} if self.is_colocated else self.as_dict()

    def as_record(self) -> dict[str, Any]:
        """What a board says of the cluster; see `from_record`."""
        return {"cluster": self.as_dict(), "is_colocated": self.is_colocated}

    def differences(self, other: Cluster, here: str = "here", there: str = "there") -> list[str]:
        """A line for each job that differs in meaning, with both lists; empty if their addresses mean the same.

        `here` and `there` say whose lists they are, such as "at ps:0".
        """
        if self.is_colocated != other.is_colocated:
            with_it, without = (here, there) if self.is_colocated else (there, here)
            return [
                f"The workers hold the variables (--colocate_ps or --update=allreduce) {with_it}, and ps tasks do {without}."
            ]
        lines = []
        for job, hosts in self._listed().items():
            others = other._listed()[job]
            mine = [(index, comparable(address)) for index, address in hosts]
            theirs = [(index, comparable(address)) for index, address in others]
            if mine == theirs:
                continue
            reordered = sorted(key for _, key in mine) == sorted(key for _, key in theirs)
            what = "has the same addresses in another order" if reordered else "differs"
            lines.append(f"Job {job!r} {what}: {_join(hosts)} {here}, {_join(others)} {there}.")
        return lines

    def _jobs(self) -> dict[str, Indexed]:
        chief = ((0, self.chief),) if self.chief is not None else ()
        return {"ps": self.ps, "worker": self.worker, "chief": chief}

    def _listed(self) -> dict[str, Indexed]:
        """The jobs without the ps tasks that are in others' processes."""
        return {**self._jobs(), "ps": ()} if self.is_colocated else self._jobs()


_EXAMPLE_DICT = '{"ps": ["host:port"], "worker": ["host:port"]}'


def ends_the_job(record: Mapping[str, Any]) -> bool:
    """Whether a task's record says that it failed for good. One that was refused did so alone: who needs it waits for the right one.

    >>> ends_the_job({"state": "failed", "exit_status": 1}), ends_the_job({"state": "failed", "exit_status": 138})
    (True, False)
    """
    has_failed = record.get("state") == "failed" and record.get("exit_status") == EXIT_PERMANENT
    return has_failed and not record.get("is_refused")


def _index_hosts(job: str, hosts: Any, problems: list[str]) -> list[tuple[int, Any]]:
    """(index, address) pairs of one job's list, mapping or comma-separated string; appends what it cannot index."""
    if hosts is None or isinstance(hosts, str) and not hosts.strip():
        return []
    if isinstance(hosts, str):
        hosts = hosts.split(",")
    if not isinstance(hosts, Mapping):
        if not isinstance(hosts, Iterable):
            problems.append(f"Job {job!r} is {shown(hosts)}. Expected a list of host:port.")
            return []
        return [(index, _stripped(address)) for index, address in enumerate(hosts)]
    indexed: dict[int, Any] = {}
    for key, address in hosts.items():
        if isinstance(key, bool) or not re.fullmatch(r"[0-9]{1,9}", str(key).strip()):
            problems.append(f"Job {job!r} has the index {shown(key)}. Expected a whole number from 0.")
        elif int(key) in indexed:
            problems.append(f"Job {job!r} has the index {int(key)} twice. Expected each index once.")
        else:
            indexed[int(key)] = _stripped(address)
    return sorted(indexed.items(), key=lambda item: item[0])


def _stripped(address: Any) -> Any:
    return address.strip() if isinstance(address, str) else address


def _find_problems(
    jobs: Mapping[str, Sequence[tuple[int, Any]]], source: str, note: str = "", is_colocated: bool = False
) -> list[str]:
    """Everything that is wrong with the addresses and with the cluster as a whole."""
    problems = []
    if not jobs["ps"] and not is_colocated:
        or_none = "" if source == FROM_SERVER else ", or --colocate_ps where the workers hold the variables"
        problems.append(
            f"The cluster has no ps. Expected at least one host:port{or_none}. {_remedy(source, 'ps')}{note}"
        )
    if not jobs["worker"] and not jobs["chief"]:
        problems.append(
            f"The cluster has no worker and no chief. Expected at least one host:port. {_remedy(source, 'worker')}{note}"
        )
    elif not jobs["chief"] and 0 not in dict(jobs["worker"]):
        problems.append(
            f"The cluster has neither a chief nor a worker:0 to be the chief; its workers are {_indices(jobs['worker'])}. "
            f"{_remedy(source, 'worker')}"
        )
    owners: dict[str, TaskId] = {}
    for job, hosts in jobs.items():
        for index, address in hosts:
            task = TaskId(job, index)
            problem = address_problem(address)
            if problem:
                problems.append(f"Address {shown(address)} of {task} {problem} {_remedy(source, job)}")
                continue
            owner = owners.setdefault(comparable(address), task)
            if owner != task:
                problems.append(
                    f"Address {shown(address)} of {task} is also that of {owner}. "
                    f"Each task needs a port of its own. {_remedy(source, job)}"
                )
    return problems


def _remedy(source: str, job: str) -> str:
    if source != FROM_FLAGS:
        return f"Check {source}."
    return f"Check --{job}_host." if job == "chief" else f"Check --{job}_hosts."


def _task_remedy(source: str, job: str) -> str:
    if source == FROM_TF_CONFIG:
        return f"Check 'task' and 'cluster' in {source}."
    if source != FROM_FLAGS:
        return f"Check {source}."
    return f"Check --task_index or --{job}_host{'' if job == 'chief' else 's'}."


def _indices(hosts: Sequence[tuple[int, Any]]) -> str:
    return ", ".join(str(index) for index, _ in hosts)


def _count(indices: list[int]) -> str:
    """`2 tasks (0-1)`, `1 task (0)`, `2 tasks (0, 3)`."""
    if len(indices) > 1 and indices == list(range(indices[-1] + 1)):
        span = f"0-{indices[-1]}"
    else:
        span = ", ".join(str(index) for index in indices)
    return f"{counted(len(indices), 'task')} ({span})"


def _join(hosts: Indexed) -> str:
    if not hosts:
        return "none"
    if [index for index, _ in hosts] == list(range(len(hosts))):
        return ",".join(address for _, address in hosts)
    return ",".join(f"{index}={address}" for index, address in hosts)
