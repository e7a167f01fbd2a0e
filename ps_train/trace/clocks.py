"""By how much the clocks of a cluster's tasks differ, from what cannot be: that something arrives before it was sent.

    ahead = {("worker:0", "ps:0"): 3_700_200_000, ("ps:0", "worker:0"): -3_699_900_000}     # at most, in nanoseconds
    align(ahead, ["worker:0", "ps:0"], "worker:0")["ps:0"]       # Clock(ahead=3700050000, error=150000)

Whatever went from one task to another bounds how far the other's clock is ahead: by no more than it says later at the arrival than
the one said when it was sent. Messages both ways bound it from both sides; what is known of two tasks bounds a third. Clocks are
taken as they are while nothing contradicts that, as on one host nothing does, and else put into the middle of what is possible,
one after the other, each with those before it fixed: so no message of the trace goes backwards. The error is how far off that may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FIRST_SLACK = 1000  # nanoseconds: what clocks drift in a moment

Bounds = Mapping[tuple[str, str], float]


class Clock(NamedTuple):
    """One task's clock.

    Attributes:
      ahead: nanoseconds that it is ahead of the reference's.
      error: by how much that may be wrong; infinite if nothing is known.
    """

    ahead: int
    error: float


def align(ahead: Bounds, tasks: Iterable[str], reference: str) -> dict[str, Clock]:
    """The Clock of each task.

    Args:
      ahead: (one, other) -> by how many nanoseconds the other's clock is ahead of the one's at most.
      tasks: all of them.
      reference: whose clock the others are compared with.
    """
    names = [reference, *(task for task in tasks if task != reference)]
    closed = _consistent(ahead, names)
    fixed = {reference: Clock(0, 0)}
    for task in names[1:]:
        lowest = max(clock.ahead - closed[task, other] for other, clock in fixed.items())
        highest = min(clock.ahead + closed[other, task] for other, clock in fixed.items())
        value = _between(lowest, highest)
        error = max(value + closed[task, reference], closed[reference, task] - value)
        fixed[task] = Clock(value, error)
    return fixed


def _between(lowest: float, highest: float) -> int:
    if lowest <= 0 <= highest:
        return 0
    if math.isinf(lowest) or math.isinf(highest):
        return int(highest if math.isinf(lowest) else lowest)
    return math.floor((lowest + highest) / 2)


def _consistent(ahead: Bounds, names: list[str]) -> dict[tuple[str, str], float]:
    """The bounds, and those that follow from them. Where they contradict each other, as clocks drift, all are loosened."""
    slack = 0
    while True:
        closed = _closed(ahead, names, slack)
        if all(closed[name, name] >= 0 for name in names):
            return closed
        slack = 2 * slack or FIRST_SLACK


def _closed(ahead: Bounds, names: list[str], slack: int) -> dict[tuple[str, str], float]:
    """The shortest ways (Floyd and Warshall)."""
    closed = {(a, b): ahead.get((a, b), math.inf) + slack for a in names for b in names}
    closed.update(((name, name), min(0, ahead.get((name, name), 0) + slack)) for name in names)
    for middle in names:
        for a in names:
            for b in names:
                closed[a, b] = min(closed[a, b], closed[a, middle] + closed[middle, b])
    return closed
