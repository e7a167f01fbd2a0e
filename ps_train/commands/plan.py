"""`ps_train plan`: what a job would make of other numbers of ps tasks and workers, links and schemes, by simulation.

| the flags name | then |
|---|---|
| --bench_report | a step is as was measured there, and the scheme, too, but for what flags say |
| --compute_ms, --megabytes, --link_mbit and others | this is so, whatever was measured |
| --num_workers | so many, and fewer, by halves; default 64 |
| --num_ps | so many ps tasks; without it as many as it takes |
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from absl.flags import FlagValues

from ps_train.commands import print_json, print_text, train
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, UsageError
from ps_train.flags import cluster_flags, config_from_flags
from ps_train.plan import inputs, sizes, table
from ps_train.plan.inputs import BYTES_FACTORS, Measured
from ps_train.plan.setup import Setup
from ps_train.plan.simulate import simulate
from ps_train.resolvers.resolved import size_problems

MOST_WORKERS = 64
MOST_CV = 10
MUCH = 0.15  # by which a simulation of what was measured is off
LIMIT = 10_000  # of workers and of ps tasks
_NEEDED = ("compute_ms", "megabytes", "link_mbit")
_AMOUNTS = ("megabytes", "update_ms", "latency_ms")
_RATES = ("compute_ms", "link_mbit", "ps_link_mbit", "slow_factor")


class Plan(NamedTuple):
    """The job on the most workers, how many ps tasks (None: as many as it takes), its bytes' type, what to say of it beforehand."""

    setup: Setup
    num_ps: int | None
    wire_dtype: str
    notes: list[str]
    is_json: bool


def run(values: FlagValues) -> int:
    """Simulates and prints; gives the exit status."""
    made = make_plan(values)
    rows = sizes.grow(made.setup, sizes.doublings(made.setup.num_workers), made.num_ps)
    now = BYTES_FACTORS[made.wire_dtype]
    smaller = {name: BYTES_FACTORS[name] / now for name in ("bfloat16", "int8") if BYTES_FACTORS[name] < now}
    helps = sizes.helps(rows[-1], smaller)
    is_enough = made.num_ps is None
    if made.is_json:
        print_json(table.as_dict(rows, helps, is_enough, made.notes))
    else:
        print_text("\n".join(table.lines(rows, helps, is_enough, made.notes)))
    return EXIT_DONE


def make_plan(values: FlagValues) -> Plan:
    """Reads the flags, and the report if one is named; raises `UsageError` with everything that is wrong with them."""
    problems = _problems(values)
    wrong_sizes = size_problems(cluster_flags(values))
    num_workers = MOST_WORKERS if values["num_workers"].using_default_value else values.num_workers
    config = train.collect(lambda: config_from_flags(values), problems) or TrainConfig()
    problems += wrong_sizes + config.problems(None if wrong_sizes else num_workers)
    problems += _size_limits(values, num_workers)
    was = (
        train.collect(lambda: inputs.measured(values.bench_report), problems) if values.bench_report else None
    )
    if problems:
        raise UsageError.from_problems(problems)
    setup, dtype = _setup(values, was, config, num_workers)
    num_ps = None if values["num_ps"].using_default_value else values.num_ps
    return Plan(setup, num_ps, dtype, _notes(values, was), values.json)


def _problems(values: FlagValues) -> list[str]:
    found = []
    if cluster_flags(values).is_given:
        found.append(
            "The command plan starts no task. Leave out --job_name, --task_index and the lists of hosts; --num_ps and "
            "--num_workers are the sizes."
        )
    missing = [f"--{name}" for name in _NEEDED if values[name].value is None]
    if missing and not values.bench_report:
        found.append(
            f"The command plan does not know what a step takes. Add --bench_report=FILE, which bench --report_file=FILE wrote, or "
            f"{' and '.join(missing)}."
        )
    if values.update == "allreduce":
        found.append("--update=allreduce has no ps to plan for. Expected async or sync.")
    for names, is_right, expected in (
        (_AMOUNTS, lambda value: 0 <= value < math.inf, "0 or more"),
        (_RATES, lambda value: 0 < value < math.inf, "above 0"),
        (("compute_cv",), lambda value: 0 <= value <= MOST_CV, f"from 0 to {MOST_CV}"),
    ):
        for name in names:
            value = values[name].value
            if value is not None and not is_right(value):
                found.append(f"--{name}={value:g} is out of range. Expected a number {expected}.")
    if values.ps_link_mbit is not None and cluster_flags(values).colocate_ps:
        found.append(
            "--ps_link_mbit beside --colocate_ps: each host has one link there. Give --link_mbit alone."
        )
    return found


def _size_limits(values: FlagValues, num_workers: int) -> list[str]:
    found = [
        f"--{name}={number} is more than can be simulated. Expected {LIMIT} at most."
        for name, number in (("num_workers", num_workers), ("num_ps", values.num_ps))
        if number > LIMIT
    ]
    slow = values.slow_workers
    if slow is not None and not 0 <= slow <= num_workers:
        found.append(
            f"--slow_workers={slow} is out of range. Expected a number from 0 to the {num_workers} workers."
        )
    return found


def _setup(
    values: FlagValues, was: Measured | None, config: TrainConfig, num_workers: int
) -> tuple[Setup, str]:
    """What was measured, as the flags change it, and the type of its bytes."""
    setup = was.setup if was else Setup(0.0)
    changes: dict[str, Any] = {"num_workers": num_workers, "seed": config.seed or 0}
    for name, field, unit in (
        ("compute_ms", "compute_secs", 1e-3), ("update_ms", "update_secs", 1e-3), ("latency_ms", "latency_secs", 1e-3),
        ("compute_cv", "compute_cv", 1.0), ("megabytes", "pull_bytes", 1e6), ("megabytes", "push_bytes", 1e6),
        ("slow_workers", "num_slow", 1), ("slow_factor", "slow_factor", 1.0),
    ):  # fmt: skip
        value = values[name].value
        if value is not None:
            changes[field] = unit * value
    if not values["update"].using_default_value or values["sync_replicas"].value is not None:
        changes["is_sync"] = config.update == "sync"
    if config.replicas_to_aggregate is not None:
        changes["num_backups"] = num_workers - config.replicas_to_aggregate
    changes["max_lead"], changes["overlap"] = config.max_lead, values.overlap
    if config.prefetch:
        changes["prefetch"] = True
    if config.colocate_ps or not values["num_ps"].using_default_value:
        changes["is_colocated"] = config.colocate_ps
    setup = dataclasses.replace(setup, **changes)
    setup = inputs.on_links(setup, values.link_mbit, values.ps_link_mbit)
    dtype = was.wire_dtype if was and values.megabytes is None else "float32"
    if values["wire_dtype"].using_default_value:
        return setup, dtype
    return inputs.in_dtype(setup, config.wire_dtype, dtype), config.wire_dtype


def _notes(values: FlagValues, was: Measured | None) -> list[str]:
    if was is None:
        return []
    rate = simulate(was.setup).steps_per_sec
    size = f"{was.setup.num_workers} workers" + (
        "" if was.setup.is_colocated else f" and {was.setup.num_ps} ps"
    )
    found = [f"The bench itself, {size}: {was.steps_per_sec:.3g} steps/s measured, {rate:.3g} simulated."]
    error = rate / was.steps_per_sec - 1
    if abs(error) > MUCH:
        why = (
            "more: the machine was busy with something else, or its tasks had too few processors. Bench where each has its own."
            if error > 0
            else "less: parts of a step went on at the same time, for which there is --overlap."
        )
        found.append(f"That is {abs(error):.0%} {why} Expect no better of the other rows.")
    if values.compute_ms is None:
        compute, read, other = (f"{1e3 * was.own[part]:.3g} ms" for part in inputs.OWN)
        found.append(
            f"A worker's own time is what needs neither link nor ps: of {1e3 * was.setup.compute_secs:.3g} ms measured, compute "
            f"{compute}, input {read}, and {other} of other, which bench calls overhead."
        )
    if was.is_local and values.link_mbit is None:
        found.append(
            "It was measured on one host: the links are loopback. Give --link_mbit for hosts of their own."
        )
    return found
