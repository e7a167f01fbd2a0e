"""`ps_train experiment`: local clusters on a grid of settings, several seeds each, and a report of what they show.

| the flags name | then |
|---|---|
| a model and its settings, as for `train` | these hold for every point |
| --grid | the points: `flag=value,value` for each axis |
| --seed, --seeds | the first seed (1), and how many follow on it, itself included (3) |
| --evaluations | so many checkpoints of each run, at even distances, are evaluated when it is over (10); 1: the last alone |
| --hosts or --hostfile | each run is a job of the command launch on the first of their slots; without: a local cluster |
| --out | everything is written there; what is done there already is not run again |
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train import flags, paths
from ps_train.commands import launch, train
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.experiment.grid import PARAM, Point, axes_of, make_points
from ps_train.experiment.runs import Run
from ps_train.local_config import fill_in
from ps_train.params import format_model_params
from ps_train.resolvers import host_list
from ps_train.resolvers.host_list import Host
from ps_train.wording import counted, did_you_mean, shown

NUM_SEEDS = 3
NUM_EVALUATIONS = 10
FIRST_SEED = 1
_OF_A_RUN = ("train_dir", "report_file", "log_dir", "record")
_AXES = {field.name for field in dataclasses.fields(TrainConfig)} - {*_OF_A_RUN, "seed"} | {
    "num_ps",
    "num_workers",
}


class Plan(NamedTuple):
    """Where to write, the points, and all runs in order."""

    out: str
    points: list[Point]
    runs: list[Run]


def run(values: FlagValues) -> int:
    """Runs what is not done yet; gives the exit status."""
    plan = make_plan(values)
    from ps_train.experiment import job

    return job.run_experiment(*plan)


def make_plan(values: FlagValues) -> Plan:
    """Reads all flags; raises `UsageError` with everything that is wrong with them at any point."""
    problems = _problems_of_the_whole(values)
    base = train.collect(lambda: flags.config_from_flags(values), problems) or TrainConfig()
    points = train.collect(lambda: make_points(values.grid or []), problems) or []
    hosts = train.collect(lambda: launch.read_hosts(values), problems) or []
    problems += [
        f"--grid has the axis {shown(axis)}, which is no setting of a run. {did_you_mean(axis, _AXES)}Expected a flag of "
        "train but --seed and the places of files, such as update or num_workers, or model_params.KEY."
        for axis in axes_of(points)
        if axis not in _AXES and not axis.startswith(PARAM)
    ]
    if problems:
        raise UsageError.from_problems(problems)
    first = FIRST_SEED if base.seed is None else base.seed
    seeds = range(first, first + _num_seeds(values))
    plans = {point: _plan_point(point, base, values, seeds[-1], hosts) for point in points}
    problems = _joined({point: found for point, (_, found) in plans.items()})
    if problems:
        raise UsageError.from_problems(problems)
    runs = [_placed(plans[point][0], seed, values.out) for seed in seeds for point in points]
    return Plan(values.out, points, runs)


def _problems_of_the_whole(values: FlagValues) -> list[str]:
    """Of the flags that are no settings of a run."""
    found = [
        f"--{name}={values[name].value} is each run's own with the command experiment, below --out. Leave it out."
        for name in _OF_A_RUN
        if values[name].value
    ]
    if _num_seeds(values) < 1:
        found.append(f"--seeds={values.seeds} is out of range. Expected a whole number from 1.")
    if values.evaluations is not None and values.evaluations < 1:
        found.append(f"--evaluations={values.evaluations} is out of range. Expected a whole number from 1.")
    if not values.out:
        return [
            *found,
            "The command experiment needs a directory for its results, and none is given. Add --out=DIR.",
        ]
    config = TrainConfig(train_dir=values.out)
    found += launch.host_flag_problems(values)
    if values.private_network and (values.hosts or values.hostfile):
        found.append(
            "--private_network is for local clusters, and hosts are given. Leave out one of the two."
        )
    wrong = config.problems() + paths.problems(config, is_local=True)
    return found + [problem.replace("--train_dir", "--out") for problem in wrong]


def _num_seeds(values: FlagValues) -> int:
    return NUM_SEEDS if values.seeds is None else values.seeds


def _plan_point(
    point: Point, base: TrainConfig, values: FlagValues, seed: int, hosts: Sequence[Host]
) -> tuple[Run, list[str]]:
    """A run of a point, and what is wrong with it; `seed` is the largest."""
    given = [*flags.cluster_flags(values).names_given, "num_ps", "num_workers"]
    given += [] if hosts else ["port_base"]
    args = [*dataclasses.replace(base, seed=seed).as_flags()]
    args += [f"--{name}={values[name].value}" for name in given if not values[name].using_default_value]
    problems: list[str] = []
    try:
        parsed, _ = flags.parse([*args, *point.as_flags(format_model_params(base.model_params))])
    except UsageError as error:
        return Run(point, base, 1, 1), str(error).splitlines()
    config = train.local_config(parsed, "experiment", problems, is_saving=False)
    config = dataclasses.replace(config, train_steps=fill_in(config).train_steps)
    if config.train_steps is None:
        problems.append(
            "The command experiment compares runs of the same target, but no --train_steps is given. Add it."
        )
    config = _with_evaluations(config, NUM_EVALUATIONS if values.evaluations is None else values.evaluations)
    run = Run(point, config, parsed.num_ps, parsed.num_workers)
    if hosts:
        run = run._replace(launch=_launch_flags(run, values, hosts, problems))
    return run, problems


def _launch_flags(
    run: Run, values: FlagValues, hosts: Sequence[Host], problems: list[str]
) -> tuple[str, ...]:
    """Those of the command launch for a run, on as many slots as it has tasks."""
    wanted = run.num_workers + (0 if run.config.has_no_ps else run.num_ps)
    slots = host_list.first_slots(hosts, wanted)
    num_slots = sum(host.slots for host in slots)
    if num_slots < wanted:
        problems.append(
            f"The hosts have {counted(num_slots, 'slot')}, and {counted(wanted, 'task')} need {wanted}. Change --hosts or the grid."
        )
    rest = [
        f"--{name}={value}" for name in (*launch.FLAGS_OF_HOSTS, "port_base") if (value := values[name].value)
    ]
    return (f"--hosts={host_list.as_text(slots)}", *rest)


def _with_evaluations(config: TrainConfig, number: int) -> TrainConfig:
    """The settings with checkpoints at even distances, unless they say how often to save, and with their evaluation."""
    if config.evaluate is False:
        return config
    config = dataclasses.replace(config, evaluate=True)
    if number == 1 or not config.train_steps:
        return config
    if config.save_checkpoint_steps is None and config.save_checkpoint_secs is None:
        every = math.ceil(config.train_steps / number)
        config = dataclasses.replace(config, save_checkpoint_steps=every, keep_checkpoint_max=0)
    return dataclasses.replace(config, eval_checkpoints="all")


def _joined(problems: dict[Point, list[str]]) -> list[str]:
    """Each problem once, with the first point that has it, unless all have."""
    found = []
    for line in dict.fromkeys(line for lines in problems.values() for line in lines):
        where = [point for point, lines in problems.items() if line in lines]
        more = f" and {counted(len(where) - 1, 'more point')}" if len(where) > 1 else ""
        found.append(line if len(where) == len(problems) else f"At {where[0].text}{more}: {line}")
    return found


def _placed(run: Run, seed: int, out: str) -> Run:
    """A run with its seed, in its folder."""
    folder = os.path.join(out, "runs", f"{run.point.name}-{seed}")
    config = dataclasses.replace(
        run.config, seed=seed, train_dir=folder, log_dir=os.path.join(folder, "logs"),
        report_file=os.path.join(folder, "report.json"),
    )  # fmt: skip
    return run._replace(config=config)
