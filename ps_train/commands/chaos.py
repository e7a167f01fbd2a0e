"""`ps_train chaos`: a local cluster whose tasks are killed and stopped, and a verdict on how the job stood it.

| the flags name | then |
|---|---|
| faults: --kill, --term, --stop | these, each at its step |
| none | a worker, the chief and a ps are killed, one after the other |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train import checkpoints, isolation
from ps_train.commands import train
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.faults import KINDS, Fault, fault_problems, parse_fault, usual_faults
from ps_train.flags import cluster_flags
from ps_train.local_config import fill_in

BUILTIN_STEPS = 4000  # so that there is time for a fault, a restart and another fault


class Plan(NamedTuple):
    """The settings with all defaults, the size, and what to do."""

    config: TrainConfig
    num_ps: int
    num_workers: int
    faults: Sequence[Fault]


def run(values: FlagValues) -> int:
    """Rehearses; gives the exit status."""
    plan = make_plan(values)
    if plan.config.private_network:
        isolation.enter_private_network()
    from ps_train import chaos

    return chaos.run_rehearsal(*plan)


def make_plan(values: FlagValues) -> Plan:
    """Reads all flags; raises `UsageError` with everything that is wrong with them."""
    problems: list[str] = []
    config = train.local_config(values, "chaos", problems)
    has_size = not train.local_problems(values)
    if cluster_flags(values).colocate_ps:
        problems.append(
            "The command chaos ends ps tasks by themselves. Leave out --colocate_ps and --update=allreduce."
        )
    filled = _fill_in(config)
    if filled.train_steps is None:
        problems.append("The command chaos rehearses up to a target, but no --train_steps is given. Add it.")
    checkpoint = checkpoints.latest_checkpoint(config.train_dir)
    if checkpoint:
        problems.append(
            f"--train_dir={config.train_dir} holds a checkpoint, {checkpoint}. Expected a new directory: a rehearsal "
            "begins at step 0, and nothing of a real job is put at risk."
        )
    faults = _read_faults(values, filled.train_steps if has_size else None, problems)
    if problems:
        raise UsageError.from_problems(problems)
    assert filled.train_steps is not None
    faults = faults or usual_faults(values.num_ps, values.num_workers, filled.train_steps)
    return Plan(filled, values.num_ps, values.num_workers, faults)


def _fill_in(config: TrainConfig) -> TrainConfig:
    """The defaults of a rehearsal: those of a local cluster, a longer job, and ten checkpoints in it."""
    is_builtin = fill_in(config).train_steps is not None
    steps = config.train_steps or (BUILTIN_STEPS if is_builtin else None)
    if steps is not None and config.save_checkpoint_steps is None and config.save_checkpoint_secs is None:
        config = dataclasses.replace(config, save_checkpoint_steps=max(steps // 10, 1))
    return fill_in(dataclasses.replace(config, train_steps=steps))


def _read_faults(values: FlagValues, train_steps: int | None, problems: list[str]) -> list[Fault]:
    """The faults that are asked for, by rising step; appends what is wrong with them."""
    faults = []
    for kind in KINDS:
        for text in values[kind].value or []:
            try:
                fault = parse_fault(kind, text)
            except UsageError as error:
                problems.append(str(error))
                continue
            faults.append(fault)
            problems += fault_problems(fault, values.num_ps, values.num_workers, train_steps)
    return sorted(faults, key=lambda fault: fault.step)
