"""`ps_train replay`: what `--record=DIR` has written is re-applied in this process, and compared with the run.

| what was found | exit status |
|---|---|
| losses, global steps and checkpoints as recorded, up to the last bits | 0 |
| anything else | 1 |
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

from absl.flags import FlagValues

from ps_train import paths
from ps_train.cluster import Cluster
from ps_train.commands import print_json, print_text
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, UsageError
from ps_train.flags import config_from_flags, parse
from ps_train.recorded import Record, read
from ps_train.whole_files import write_report


class Plan(NamedTuple):
    """What to replay, with the settings of each worker's starts, and where to write."""

    directory: str
    record: Record
    configs: dict[int, list[TrainConfig]]
    cluster: Cluster
    given: TrainConfig
    out: str | None
    until: int | None


def run(values: FlagValues) -> int:
    """Replays; gives the exit status."""
    asked = make_plan(values)
    plan = read_plan(*asked)
    from ps_train import logs, replay
    from ps_train.config import BUILTIN_MODEL
    from ps_train.model import load_model
    from ps_train.recorder import hash_file

    logs.start("replay")
    start = plan.record.starts[0][-1]
    model = load_model(plan.configs[0][-1].model or BUILTIN_MODEL)
    if hash_file(model.source) != start["sha256"]:
        logs.log.warning("%s has changed since the run", model.source)
    engine = replay.Replay(
        plan.record, plan.directory, plan.configs, plan.cluster, model, plan.until, plan.given.train_dir
    )
    found = engine.run(plan.out)
    if values.json:
        print_json(found.as_dict())
    else:
        print_text("\n".join(found.lines()))
    if plan.given.report_file:
        write_report(plan.given.report_file, found.as_dict())
    return EXIT_DONE if found.is_true else EXIT_PERMANENT


def make_plan(values: FlagValues) -> tuple[TrainConfig, str | None, int | None]:
    """Reads the flags that matter here; raises `UsageError` with all problems."""
    config = config_from_flags(values)
    problems = paths.problems(dataclasses.replace(config, record=None), is_saving=False)
    if not config.record:
        problems.append(
            "The command replay reads what a job with --record=DIR has written. Add --record=DIR."
        )
    if values.until is not None and values.until < 0:
        problems.append(f"--until={values.until} is out of range. Expected a whole number from 0.")
    if values.out and os.path.isfile(values.out):
        problems.append(f"--out={values.out} is a file. Expected a directory.")
    if problems:
        raise UsageError.from_problems(problems)
    return config, values.out, values.until


def read_plan(given: TrainConfig, out: str | None, until: int | None) -> Plan:
    """Reads the record and the flags in it; raises `UsageError` if it is none."""
    assert given.record is not None
    record = read(given.record)
    configs = {
        worker: [_config_of(start, given) for start in starts] for worker, starts in record.starts.items()
    }
    return Plan(
        given.record, record, configs, Cluster.from_record(record.starts[0][-1]["cluster"]), given, out, until
    )


def _config_of(start: dict[str, Any], given: TrainConfig) -> TrainConfig:
    """The settings of a worker's process, with the model file of then, or the one that is given."""
    config = config_from_flags(parse(start["flags"])[0])
    model = given.model or (start["source"] if (config.model or "").endswith(".py") else config.model)
    return dataclasses.replace(config, model=model, seed=start["seed"])
