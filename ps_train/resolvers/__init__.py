"""Where this process's cluster and task come from: flags, TF_CONFIG, mpirun, srun, or nowhere (a local cluster).

    resolved = resolve("auto", ClusterFlags(job_name="worker", ...), os.environ)
    resolved.task       # None: start a local cluster

`auto` takes what the flags give and fills in what they leave out from TF_CONFIG; where both say something and it is
not the same, that is refused. If neither names anything, a process that is one of several ranks of mpirun, or else one
of several tasks of srun, is one task of a cluster of these. mpirun goes first: within a Slurm job it starts its ranks
through srun, whose variables are then about something else. Naming one source leaves the others out of account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_train.cluster import Cluster
from ps_train.errors import UsageError
from ps_train.resolvers import from_flags, mpi, slurm, tf_config
from ps_train.resolvers.resolved import ClusterFlags, Resolved, check_place

__all__ = ["CHOICES", "ClusterFlags", "Resolved", "check_choice", "resolve"]

CHOICES = ("auto", "flags", "tf_config", "slurm", "mpi")


def resolve(choice: str, flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    """The place of this process by --cluster_resolver=`choice`; raises `UsageError` with all problems."""
    check_choice(choice)
    if choice == "auto":
        return _resolve_auto(flags, env)
    if choice == "flags":
        return from_flags.resolve(flags)
    if choice == "slurm":
        return slurm.resolve(env, flags)
    if choice == "mpi":
        return mpi.resolve(env, flags)
    return _resolve_tf_config(flags, env)


def check_choice(choice: str) -> None:
    """Raises `UsageError` for a resolver that there is not."""
    if choice not in CHOICES:
        raise UsageError(
            f"--cluster_resolver={choice} is not a resolver. Expected one of {', '.join(CHOICES)}."
        )


def _resolve_auto(flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    found = tf_config.resolve(env, flags.colocate_ps)
    if not found.is_a_place:
        return from_flags.resolve(flags) if flags.is_given else _resolve_launched(flags, env)
    if not flags.is_given:
        return _placed(found)
    cluster = found.cluster
    if flags.has_hosts:
        cluster = _filled_in(flags, found.cluster)
        _refuse_conflict(cluster, found.cluster)
    task = found.task
    if flags.job_name:
        task = from_flags.task_from_flags(flags, cluster)
        if found.task is not None and task != found.task:
            raise UsageError(f"The flags say {task} and TF_CONFIG says {found.task}. {_CHOOSE}")
    elif flags.task_index is not None and task is not None and task.index != flags.task_index:
        raise UsageError(
            f"The flags say --task_index={flags.task_index} and TF_CONFIG says {task}. {_CHOOSE}"
        )
    return _placed(Resolved(cluster, task))


def _resolve_launched(flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    """The place among several tasks of a launcher; none, for a local cluster, if this is the only one."""
    if mpi.is_one_of_several(env):
        return mpi.resolve(env, flags)
    if mpi.find_variables(env) is None and slurm.is_one_of_several(env):
        return slurm.resolve(env, flags)
    mpi.check_is_known(env)
    return from_flags.resolve(flags)


def _filled_in(flags: ClusterFlags, theirs: Cluster | None) -> Cluster:
    """The flags' lists, and TF_CONFIG's for those that are not given."""
    given = {"ps": flags.ps_hosts, "worker": flags.worker_hosts, "chief": flags.chief_host}
    spec = theirs.as_dict() if theirs else {}
    lists: dict[str, Any] = {
        job: hosts if hosts is not None else spec.get(job) for job, hosts in given.items()
    }
    return Cluster.from_hosts(lists["ps"], lists["worker"], lists["chief"], flags.colocate_ps)


_CHOOSE = "Remove one, or choose with --cluster_resolver=flags or --cluster_resolver=tf_config."


def _refuse_conflict(ours: Cluster, theirs: Cluster | None) -> None:
    if theirs is None:
        return
    differences = ours.differences(theirs, "in the flags", "in TF_CONFIG")
    if differences:
        raise UsageError(f"The flags and TF_CONFIG name two clusters. {' '.join(differences)} {_CHOOSE}")


def _resolve_tf_config(flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    found = tf_config.resolve(env, flags.colocate_ps)
    if not found.is_a_place:
        raise UsageError(
            "--cluster_resolver=tf_config is given, but the environment variable TF_CONFIG "
            f"{'names no cluster' if env.get(tf_config.VARIABLE, '').strip() else 'is not set'}. "
            "Set it, or leave the flag out for a local cluster."
        )
    return _placed(found)


def _placed(found: Resolved) -> Resolved:
    if found.task is None:
        raise UsageError("TF_CONFIG names a cluster but no task. Add 'task', or --job_name and --task_index.")
    check_place(found.task, found.cluster)
    return found
