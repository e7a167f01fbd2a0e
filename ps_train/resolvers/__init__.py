"""Where this process's cluster and task come from: flags, TF_CONFIG, or nowhere (a local cluster).

    resolved = resolve("auto", ClusterFlags(job_name="worker", ...), os.environ)
    resolved.task       # None: start a local cluster

`auto` takes what the flags give and fills in what they leave out from TF_CONFIG; where both say something and it is
not the same, that is refused. Naming one source (`flags`, `tf_config`) leaves the other out of account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_train.cluster import Cluster
from ps_train.errors import UsageError
from ps_train.resolvers import from_flags, tf_config
from ps_train.resolvers.resolved import ClusterFlags, Resolved, check_place

__all__ = ["AVAILABLE", "CHOICES", "ClusterFlags", "Resolved", "check_choice", "resolve"]

AVAILABLE = ("auto", "flags", "tf_config")
CHOICES = (*AVAILABLE, "slurm", "mpi")


def resolve(choice: str, flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    """The place of this process by --cluster_resolver=`choice`; raises `UsageError` with all problems."""
    check_choice(choice)
    if choice == "auto":
        return _resolve_auto(flags, env)
    if choice == "flags":
        return from_flags.resolve(flags)
    return _resolve_tf_config(flags, env)


def check_choice(choice: str) -> None:
    """Raises `UsageError` for a resolver that there is not, or not yet."""
    if choice in AVAILABLE:
        return
    if choice in CHOICES:
        raise UsageError(
            f"--cluster_resolver={choice} is not available yet. "
            f"Expected {', '.join(AVAILABLE[:-1])} or {AVAILABLE[-1]}."
        )
    raise UsageError(f"--cluster_resolver={choice} is not a resolver. Expected one of {', '.join(CHOICES)}.")


def _resolve_auto(flags: ClusterFlags, env: Mapping[str, str]) -> Resolved:
    found = tf_config.resolve(env, flags.colocate_ps)
    if not found.is_a_place:
        return from_flags.resolve(flags)
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
