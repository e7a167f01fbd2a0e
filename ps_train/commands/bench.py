"""`ps_train bench`: a local cluster that trains a model for --bench_secs, and where the time of its steps goes.

| the flags name | then |
|---|---|
| a model and its settings, as for `train` | these are measured; --train_dir and --train_steps do not count: nothing is saved |
| --report_file | what was found is written there as JSON |
| --json | it is printed as JSON |
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train import isolation
from ps_train.commands import train
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.local_config import fill_in

BENCH_SECS = 15.0
PROFILE_STEPS = 20
# So that MIN_TRACES are always kept, though every second one is dropped when there are more.
MIN_PROFILE_STEPS = 4


class Plan(NamedTuple):
    """The tasks' settings, the size, and what to do with the outcome."""

    config: TrainConfig
    num_ps: int
    num_workers: int
    bench_secs: float
    is_json: bool
    report_file: str | None


def run(values: FlagValues) -> int:
    """Measures; gives the exit status."""
    plan = make_plan(values)
    if plan.config.private_network:
        isolation.enter_private_network()
    from ps_train import bench

    return bench.run_bench(
        plan.config, plan.num_ps, plan.num_workers, train.make_roles(), plan.bench_secs, plan.is_json, plan.report_file
    )  # fmt: skip


def make_plan(values: FlagValues) -> Plan:
    """Reads all flags; raises `UsageError` with everything that is wrong with them."""
    problems: list[str] = []
    hint = "; a worker of another cluster tells the same with --profile_steps=20"
    config = train.local_config(values, "bench", problems, is_saving=False, hint=hint)
    secs = BENCH_SECS if values.bench_secs is None else values.bench_secs
    if not 0 < secs < math.inf:
        problems.append(
            f"--bench_secs={secs:g} is not a time to measure. Expected a number of seconds above 0."
        )
    if 0 < config.profile_steps < MIN_PROFILE_STEPS:
        problems.append(
            f"--profile_steps={config.profile_steps} is too few for the command bench. Expected {MIN_PROFILE_STEPS} or more, "
            f"or leave it out for {PROFILE_STEPS}."
        )
    if not problems:
        tasks = _of_tasks(config)
        problems += tasks.problems(values.num_workers)
    if problems:
        raise UsageError.from_problems(problems)
    return Plan(tasks, values.num_ps, values.num_workers, secs, values.json, config.report_file)


def _of_tasks(config: TrainConfig) -> TrainConfig:
    """Their settings: they trace steps, save nothing and have no target."""
    filled = fill_in(dataclasses.replace(config, train_dir=None))
    assert filled.train_dir is not None
    return dataclasses.replace(
        config, train_dir=None, train_steps=None, evaluate=False, report_file=None,
        log_dir=config.log_dir or os.path.join(filled.train_dir, "bench"),
        profile_steps=config.profile_steps or PROFILE_STEPS,
    )  # fmt: skip
