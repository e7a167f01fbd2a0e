"""Which sizes are tried, how many ps tasks are enough, and what else would help.

rows = grow(setup, [1, 2, 4, 8], None)      # an Outcome for each number of workers, with as many ps tasks as it takes
for flag, factor in helps(rows[-1], {"bfloat16": 0.5}): ...
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from ps_train.plan.setup import Outcome, Setup
from ps_train.plan.simulate import simulate

ENOUGH = 0.95  # of what as many ps tasks as workers would give
FEW_STEPS = 400  # that count, where sizes are only compared
MAX_PS = 1024


def doublings(most: int) -> list[int]:
    """1, 2, 4 and so on up to `most`.

    >>> doublings(12)
    [1, 2, 4, 8, 12]
    """
    return [2**n for n in range(most.bit_length()) if 2**n < most] + [most]


def grow(setup: Setup, sizes: Sequence[int], num_ps: int | None) -> list[Outcome]:
    """The Outcome for each number of workers.

    Args:
      setup: the job on the most workers; fewer have as large a part of backups, and of slow ones.
      sizes: numbers of workers.
      num_ps: of each; None: what is enough.
    """
    alone: dict[int, float] = {}
    rows = []
    for size in sizes:
        part = size / setup.num_workers
        each = dataclasses.replace(
            setup,
            num_workers=size,
            num_slow=round(part * setup.num_slow),
            num_backups=round(part * setup.num_backups),
        )
        if not setup.is_colocated:
            each = with_ps(each, num_ps or enough_ps(each))
        rows.append(with_speed_up(simulate(each), alone))
    return rows


def with_ps(setup: Setup, num_ps: int) -> Setup:
    """The same with so many ps tasks, which hold even shares unless these are known."""
    shares = setup.shares if setup.shares is not None and len(setup.shares) == num_ps else None
    return dataclasses.replace(setup, num_ps=num_ps, shares=shares)


def with_speed_up(outcome: Outcome, alone: dict[int, float]) -> Outcome:
    """With what it is over one worker with as many ps tasks; `alone` remembers what that makes."""
    setup = outcome.setup
    key = 1 if setup.is_colocated else setup.num_ps
    if key not in alone:
        alone[key] = simulate(setup.alone()).steps_per_sec
    return dataclasses.replace(outcome, speed_up=outcome.steps_per_sec / alone[key])


def enough_ps(setup: Setup) -> int:
    """The fewest ps tasks, or up to a tenth more, that give ENOUGH of what as many as there are workers would."""
    most = min(setup.num_workers, MAX_PS)
    wanted = ENOUGH * _rate(setup, most)
    count = min(_least_ps(setup, wanted), most)
    too_few = count - 1
    while count < most and _rate(setup, count) < wanted:
        too_few, count = count, min(count + (count + 1) // 2, most)
    while count - too_few > max(1, count // 10):
        middle = (count + too_few) // 2
        if _rate(setup, middle) < wanted:
            too_few = middle
        else:
            count = middle
    return count


def _least_ps(setup: Setup, steps_per_sec: float) -> int:
    """Below which links or processors cannot carry so many steps."""
    each = max(
        setup.pull_bytes / setup.ps_out_rate,
        setup.push_bytes / setup.ps_in_rate,
        (setup.carry_secs + setup.update_secs) / setup.ps_cores,
    )
    return max(math.ceil(steps_per_sec * each), 1)


def _rate(setup: Setup, num_ps: int) -> float:
    return simulate(with_ps(setup, num_ps), FEW_STEPS).steps_per_sec


def helps(outcome: Outcome, bytes_factors: Mapping[str, float]) -> list[tuple[str, float]]:
    """(flag, steps/s over those without it) of one change each, those that help most first.

    Args:
      outcome: of the job as it is.
      bytes_factors: wire dtype -> what would become of the bytes.
    """
    found = [
        (words, simulate(changed).steps_per_sec / outcome.steps_per_sec)
        for words, changed in _changes(outcome.setup, bytes_factors)
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _changes(setup: Setup, bytes_factors: Mapping[str, float]) -> Iterator[tuple[str, Setup]]:
    for dtype, factor in bytes_factors.items():
        pull, push = factor * setup.pull_bytes, factor * setup.push_bytes
        yield f"--wire_dtype={dtype}", dataclasses.replace(setup, pull_bytes=pull, push_bytes=push)
    if not setup.is_colocated:
        yield f"--num_ps={2 * setup.num_ps}", with_ps(setup, 2 * setup.num_ps)
    if setup.is_sync:
        yield "--update=async", dataclasses.replace(setup, is_sync=False, num_backups=0)
        quorum = setup.quorum - max(setup.num_workers // 20, 1)
        if quorum >= 1:
            backups = setup.num_workers - quorum
            yield f"--replicas_to_aggregate={quorum}", dataclasses.replace(setup, num_backups=backups)
        return
    if not setup.prefetch:
        yield "--prefetch", dataclasses.replace(setup, prefetch=True)
    if setup.max_lead is not None:
        yield "no --max_lead", dataclasses.replace(setup, max_lead=None)
