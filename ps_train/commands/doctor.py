"""`ps_train doctor`: whether this machine, and the cluster as it sees it, are fit for a job; a line for each finding.

| the flags and TF_CONFIG name | then |
|---|---|
| nothing | this machine is checked for a local cluster of --num_ps and --num_workers |
| a task of a cluster | its address, its port and its peers are, too |
| a cluster without a task | the cluster is looked at from outside |
| --train_dir | whether checkpoints can be written there |

Status 0 without a PROBLEM, else 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train.cluster import Cluster
from ps_train.commands import print_json, print_text, train
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, UsageError
from ps_train.flags import cluster_flags
from ps_train.resolvers import Resolved, check_choice, resolve, tf_config


class Plan(NamedTuple):
    """What to look at; `num_tasks` is a local cluster's."""

    place: Resolved
    train_dir: str | None
    num_tasks: int


def run(values: FlagValues) -> int:
    """Checks, prints, and gives the exit status."""
    plan = make_plan(values)
    from ps_train import doctor

    findings = doctor.examine(*plan, os.environ)
    if values.json:
        print_json(doctor.as_dict(findings))
    else:
        print_text(doctor.as_text(findings))
    return EXIT_PERMANENT if any(one.level == doctor.PROBLEM for one in findings) else EXIT_DONE


def make_plan(values: FlagValues, env: Mapping[str, str] = os.environ) -> Plan:
    """Reads the flags that matter here and `env`; raises `UsageError` with what is wrong with them."""
    problems: list[str] = []
    place = train.collect(lambda: _place(values, env), problems)
    if place is not None and place.cluster is None:
        problems += train.local_problems(values)
    if problems or place is None:
        raise UsageError.from_problems(problems)
    num_tasks = cluster_flags(values).wanted_ps + values.num_workers
    return Plan(place, values.train_dir or None, num_tasks)


def _place(values: FlagValues, env: Mapping[str, str]) -> Resolved:
    """That of a task; or a whole cluster and no task, which no other command is content with."""
    choice, flags = values.cluster_resolver, cluster_flags(values)
    check_choice(choice)
    if flags.job_name:
        return resolve(choice, flags, env)
    if flags.has_hosts and choice in ("auto", "flags") and flags.task_index is None:
        found = tf_config.resolve(env, flags.colocate_ps) if choice == "auto" else Resolved(None, None)
        if not found.is_a_place:
            cluster = Cluster.from_hosts(
                flags.ps_hosts, flags.worker_hosts, flags.chief_host, flags.colocate_ps
            )
            return Resolved(cluster, None)
    return resolve(choice, flags, env)
