"""`ps_train eval`: the metrics of the newest checkpoint of --train_dir on held-out data, in this process."""

from __future__ import annotations

from absl.flags import FlagValues

from ps_train import paths
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.flags import config_from_flags


def run(values: FlagValues) -> int:
    """Evaluates once; gives the exit status."""
    config = make_plan(values)
    from ps_train import evaluator

    return evaluator.run_once(config)


def make_plan(values: FlagValues) -> TrainConfig:
    """Reads the flags that matter here; raises `UsageError` with all problems."""
    config = config_from_flags(values)
    problems = config.problems() + paths.problems(config)
    if not config.train_dir:
        problems.append("The command eval reads a checkpoint, but no --train_dir is given. Add --train_dir.")
    if problems:
        raise UsageError.from_problems(problems)
    return config
