"""`ps_train status`: how a running job is: its tasks, steps and rates, who is late; as a table, or with --json as JSON.

| what answers | exit status |
|---|---|
| at least one ps | 0 |
| none | 138 |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train.addresses import comparable
from ps_train.cluster import Cluster, TaskId
from ps_train.commands import print_text
from ps_train.errors import EXIT_DONE, PeerLostError, UsageError
from ps_train.flags import cluster_flags
from ps_train.resolvers import ClusterFlags, check_choice, tf_config

_SOME_WORKER = "worker0.not.given:1"


class Watched(NamedTuple):
    """Whom to ask, and the cluster if all of it is known."""

    ps: list[tuple[TaskId, str]]
    cluster: Cluster | None


def run(values: FlagValues) -> int:
    """Looks for about a second and prints what it saw; gives the exit status."""
    watched = make_plan(values)
    from ps_train import status

    seen = status.summarize(status.look(watched.ps), watched.cluster)
    text = json.dumps(status.as_dict(seen)) if values.json else status.as_text(seen)
    print_text(text)
    if not seen.is_answered:
        raise PeerLostError(status.why_unanswered(seen))
    return EXIT_DONE


def make_plan(values: FlagValues, env: Mapping[str, str] = os.environ) -> Watched:
    """Reads the flags that matter here and `env`; raises `UsageError` with what is wrong with them."""
    choice = values.cluster_resolver
    check_choice(choice)
    if choice in ("slurm", "mpi"):
        raise UsageError(
            f"--cluster_resolver={choice}: the command status is no task of the job that it asks. Leave it out, and give --ps_hosts=host:port as "
            "the tasks' logs name them."
        )
    flags = cluster_flags(values)
    theirs = tf_config.resolve(env, flags.colocate_ps).cluster if choice != "flags" else None
    ours = _from_flags(flags) if flags.has_hosts and choice != "tf_config" else None
    if ours is not None and theirs is not None and _ps_of(ours) != _ps_of(theirs):
        raise UsageError(
            f"--ps_hosts={flags.ps_hosts} and TF_CONFIG name different ps tasks. Remove one, or choose with "
            "--cluster_resolver=flags or --cluster_resolver=tf_config."
        )
    cluster = ours or theirs
    if cluster is None:
        raise UsageError(
            "The command status asks the ps tasks of a running job, and none is named. Add --ps_hosts=host:port,host:port, "
            "or set TF_CONFIG."
        )
    ps = [(task, cluster.address(task)) for task in cluster.ps_tasks]
    is_whole = theirs is not None or bool(flags.worker_hosts or flags.chief_host)
    return Watched(ps, (theirs or cluster) if is_whole else None)


def _ps_of(cluster: Cluster) -> dict[TaskId, str]:
    """The ps tasks with their addresses, in one spelling."""
    return {task: comparable(cluster.address(task)) for task in cluster.ps_tasks}


def _from_flags(flags: ClusterFlags) -> Cluster:
    """The lists of hosts, of which those of the workers may be left out."""
    workers = flags.worker_hosts or (None if flags.chief_host else _SOME_WORKER)
    return Cluster.from_hosts(flags.ps_hosts, workers, flags.chief_host, flags.colocate_ps)
