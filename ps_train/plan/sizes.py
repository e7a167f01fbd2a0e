"""Which sizes are tried, how many ps tasks are enough, and what else would help.

    rows = grow(setup, [1, 2, 4, 8], None)      # an Outcome for each number of workers, with as many ps tasks as it takes
    for words, outcome in helps(rows[-1].setup): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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
      setup: the job on the most workers, with their backups.
      sizes: numbers of workers.
      num_ps: of each; None: what is enough.
    """
    alone: dict[int, float] = {}
    rows = []
    for size in sizes:
        each = dataclasses.replace(setup, num_workers=size, num_slow=min(setup.num_slow, size))
        if not setup.is_colocated:
            count = num_ps or enough_ps(each)
            each = with_ps(each, count)
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
    """The fewest ps tasks that give ENOUGH of what as many as there are workers would, by halving; these hold even shares."""
    most = min(setup.num_workers, MAX_PS)
    wanted = ENOUGH * _rate(setup, most)
    too_few, count = 0, 1
    while count < most and _rate(setup, count) < wanted:
        too_few, count = count, 2 * count
    count = min(count, most)
    while count - too_few > 1:
        middle = (count + too_few) // 2
        if _rate(setup, middle) < wanted:
            too_few = middle
        else:
            count = middle
    return count


def _rate(setup: Setup, num_ps: int) -> float:
    return simulate(with_ps(setup, num_ps), FEW_STEPS).steps_per_sec


def helps(outcome: Outcome, bytes_factors: dict[str, float]) -> list[tuple[str, float]]:
    """(flag, steps/s over those without it) of one change each, those that help most first.

    Args:
      outcome: of the job as it is.
      bytes_factors: wire dtype -> what becomes of the bytes.
    """
    found = [
        (words, simulate(change(outcome.setup)).steps_per_sec / outcome.steps_per_sec)
        for words, change in _changes(outcome.setup, bytes_factors)
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _changes(
    setup: Setup, bytes_factors: dict[str, float]
) -> list[tuple[str, Callable[[Setup], Setup]]]:
    replace = dataclasses.replace
    found: list[tuple[str, Callable[[Setup], Setup]]] = [
        (
            f"--wire_dtype={dtype}",
            lambda each, factor=factor: replace(
                each, pull_bytes=factor * each.pull_bytes, push_bytes=factor * each.push_bytes
            ),
        )
        for dtype, factor in bytes_factors.items()
    ]
    if not setup.is_colocated:
        found.append((f"--num_ps={2 * setup.num_ps}", lambda each: with_ps(each, 2 * each.num_ps)))
    if setup.is_sync:
        found.append(("--update=async", lambda each: replace(each, is_sync=False, num_backups=0)))
        if setup.num_workers > 1:
            quorum = setup.quorum - max(setup.num_workers // 20, 1)
            backups = setup.num_workers - quorum
            if quorum >= 1:
                found.append(
                    (f"--replicas_to_aggregate={quorum}", lambda each: replace(each, num_backups=backups))
                )
    elif not setup.prefetch:
        found.append(("--prefetch", lambda each: replace(each, prefetch=True)))
    if setup.max_lead is not None:
        found.append(("no --max_lead", lambda each: replace(each, max_lead=None)))
    return found
