"""`ps_train train`: one task of a cluster, or a local cluster of several.

| the flags and TF_CONFIG name | then |
|---|---|
| nothing | `launcher.run_local` starts the tasks on this host |
| a task, as the environment of srun or mpirun does | `runner.run_task` is that task |
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from absl.flags import FlagValues

from ps_train import isolation, paths
from ps_train.cluster import EVALUATOR, FROM_FLAGS, FROM_MPIRUN, FROM_SRUN, Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import ModelError, UsageError
from ps_train.flags import cluster_flags, config_from_flags
from ps_train.model.loading import check_exists
from ps_train.resolvers import Resolved, resolve, slurm
from ps_train.resolvers.resolved import size_problems

if TYPE_CHECKING:
    from ps_train.launcher import Roles

Value = TypeVar("Value")


class Plan(NamedTuple):
    """What to run: a place in a cluster (or none: a local cluster), and the settings."""

    place: Resolved
    config: TrainConfig


def run(values: FlagValues) -> int:
    """Runs until the task or the local cluster has ended; gives its exit status."""
    plan = make_plan(values, os.environ)
    cluster, task = plan.place
    if task is None:
        hint = slurm.unused_nodes(os.environ)
        if hint:
            sys.stderr.write(f"ps_train: {hint}\n")
        if plan.config.private_network:
            isolation.enter_private_network()
        from ps_train import launcher

        return launcher.run_local(plan.config, values.num_ps, values.num_workers, make_roles())
    from ps_train import runner

    return runner.run_task(task, cluster, plan.config)


def make_roles() -> Roles:
    """What the processes of a local cluster run."""
    from ps_train import launcher

    return launcher.Roles(_import_roles, _run_task, _evaluate)


def _import_roles() -> None:
    """Imports TensorFlow and all that tasks of any job need; starts nothing of its runtime."""
    from ps_train import evaluator, ps, runner, worker  # noqa: F401


def _run_task(task: TaskId, cluster: Cluster, config: TrainConfig) -> int:
    from ps_train import runner

    return runner.run_task(task, cluster, config)


def _evaluate(config: TrainConfig) -> int:
    from ps_train import evaluator

    return evaluator.run_once(config)


def make_plan(values: FlagValues, env: Mapping[str, str]) -> Plan:
    """Reads all flags and `env`; raises `UsageError` with everything that is wrong with them."""
    problems: list[str] = []
    place = collect(lambda: resolve(values.cluster_resolver, cluster_flags(values), env), problems)
    config = collect(lambda: config_from_flags(values), problems)
    num_workers = None  # not known for an evaluator without a cluster, or after a problem
    if place is not None and place.cluster is not None:
        num_workers = place.cluster.num_workers
        problems += _size_problems(values, place)
    elif place is not None and place.task is None:
        size_problems = local_problems(values)
        problems += size_problems
        num_workers = None if size_problems else values.num_workers
    if config is not None:
        problems += config.problems(num_workers)
        problems += paths.problems(
            config, _is_saving(place), is_local=place is not None and place.task is None
        )
        if config.model and place is not None and place.task is None:  # a task tells its peers, too
            collect(partial(check_exists, config.model), problems)
        if config.private_network and place is not None and place.task is not None:
            problems.append(
                f"--private_network is for a local cluster, and this is {place.task}. Leave it out."
            )
        if place is not None and place.task == EVALUATOR and not config.train_dir:
            problems.append(
                "Task evaluator:0 reads checkpoints, but no --train_dir is given. Add --train_dir."
            )
    if problems or place is None or config is None:
        raise UsageError.from_problems(problems)
    return Plan(place, config)


def _is_saving(place: Resolved | None) -> bool:
    """Whether this process writes to train_dir: a local cluster, a chief, the evaluator."""
    if place is None or place.task is None or place.cluster is None:
        return place is not None
    return place.task.job == "evaluator" or place.cluster.is_chief(place.task)


def local_config(
    values: FlagValues, command: str, problems: list[str], is_saving: bool = True, hint: str = ""
) -> TrainConfig:
    """The settings of another command that starts a local cluster.

    Args:
      values: all flags.
      command: its name.
      problems: what is wrong with the settings or the size is appended.
      is_saving: whether it uses train_dir.
      hint: what to use in a cluster of one's own, after a semicolon.
    """
    size_problems = local_problems(values)
    problems += size_problems
    if cluster_flags(values).is_given:
        problems.append(
            f"The command {command} starts a local cluster. Leave out --job_name, --task_index and the lists of hosts{hint}."
        )
    config = collect(lambda: config_from_flags(values), problems) or TrainConfig()
    problems += config.problems(None if size_problems else values.num_workers)
    checked = config if is_saving else dataclasses.replace(config, train_dir=None)
    problems += paths.problems(checked, is_local=True)
    if config.model:
        collect(partial(check_exists, config.model), problems)
    return config


def local_problems(values: FlagValues) -> list[str]:
    """What is wrong with the size of a local cluster."""
    return size_problems(cluster_flags(values)) + _unused_port(values)


def _unused_port(values: FlagValues) -> list[str]:
    if values.port_base is None:
        return []
    return [
        f"--port_base={values.port_base} is for tasks that srun or mpirun has started, and this is none of several. Leave it out."
    ]


def _size_problems(values: FlagValues, place: Resolved) -> list[str]:
    """The sizes of a local cluster beside a cluster that has its own; a flagfile may give what is true or the default."""
    cluster, source = place.cluster, "TF_CONFIG"
    assert cluster is not None
    if cluster.source in (
        FROM_SRUN,
        FROM_MPIRUN,
    ):  # there they are the launched tasks' number, and the resolver has looked
        return []
    if cluster.source == FROM_FLAGS:
        source = "--job_name and the lists of hosts"
    return [
        f"--{name}={values[name].value} is for a local cluster, and this is {place.task} of a cluster with "
        f"{getattr(cluster, name)}. Leave it out, or for a local cluster leave out {source}."
        for name in ("num_ps", "num_workers")
        if values[name].value not in (values[name].default, getattr(cluster, name))
    ] + _unused_port(values)


def collect(make: Callable[[], Value], problems: list[str]) -> Value | None:
    """What `make` gives; None if it raises a user's mistake, which is added to `problems`."""
    try:
        return make()
    except (UsageError, ModelError) as error:
        problems.append(str(error))
        return None
