"""The cluster and the task from --job_name, --task_index and the lists of hosts, as legacy scripts have them.

>>> flags = ClusterFlags(job_name="worker", task_index=1, ps_hosts="p:2222", worker_hosts="w0:2222,w1:2222")
>>> str(resolve(flags).task)
'worker:1'
"""

from __future__ import annotations

from ps_train.cluster import Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.resolvers.resolved import ClusterFlags, Resolved, check_place, default_index


def resolve(flags: ClusterFlags) -> Resolved:
    """Raises `UsageError` with all problems; without any of the flags both parts are None."""
    problems: list[str] = []
    cluster = None
    if flags.has_hosts or flags.job_name in ("ps", "worker", "chief"):
        try:
            cluster = Cluster.from_hosts(
                flags.ps_hosts, flags.worker_hosts, flags.chief_host, flags.colocate_ps
            )
        except UsageError as error:
            problems.append(str(error))
    if not flags.job_name and flags.is_given:
        given = "--task_index" if flags.task_index is not None else "The cluster"
        problems.append(
            f"{given} is given without --job_name, so this process has no place in it. "
            "Add --job_name and --task_index, or leave all of them out for a local cluster."
        )
    task = None
    if flags.job_name and not problems:
        try:
            task = task_from_flags(flags, cluster)
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError.from_problems(problems)
    return Resolved(cluster, task)


def task_from_flags(flags: ClusterFlags, cluster: Cluster | None) -> TaskId:
    """The task of --job_name and --task_index; the index may be left out where only one is possible."""
    job = flags.job_name or ""
    index = flags.task_index
    if index is None:
        index = default_index(job, cluster)
    if index is None:
        raise UsageError(
            f"--job_name={job} is given without --task_index, and job {job!r} has several tasks. Add --task_index."
        )
    if index < 0:
        raise UsageError(f"--task_index={index} is negative. Expected a whole number from 0.")
    task = TaskId(job, index)
    check_place(task, cluster)
    return task
