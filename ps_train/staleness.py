"""How old a worker's gradients are, in updates: the figures of the report, of the boards, and of a line in the log.

staleness = Staleness(pulls_ahead=0)
staleness.note(12, begun=10)                # someone else's update was the 11th, this one the 12th: 1
staleness.mean, staleness.counts
staleness.histogram.as_list()               # short enough for the boards, however many workers there are

The global steps are those that `updates.stale` has read on the ps.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SHARES = 8  # in the line of the log
EXACT_BITS = 4  # of a value that a Histogram keeps


@dataclass
class Histogram:
    """Counts of whole numbers from 0 on: each one below 16 by itself, above that eight ranges for each power of two.

    >>> one = Histogram()
    >>> for value in (3, 17):
    ...     one.note(value)
    >>> one
    Histogram(number=2, total=20, squares=298, counts={3: 1, 16: 1})
    >>> later = Histogram.from_list(one.as_list())
    >>> later.note(3)
    >>> later.since(one)
    Histogram(number=1, total=3, squares=9, counts={3: 1})

    Attributes:
      number, total, squares: how many, their sum, and that of their squares.
      counts: least value of a range -> how many.
    """

    number: int = 0
    total: int = 0
    squares: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    def note(self, value: int, number: int = 1) -> None:
        """Counts a value."""
        self.number += number
        self.total += number * value
        self.squares += number * value * value
        shift = _shift(value)
        least = value >> shift << shift
        self.counts[least] = self.counts.get(least, 0) + number

    def since(self, before: Histogram) -> Histogram:
        """What was counted after `before`, an earlier state of this one."""
        counts = {least: count - before.counts.get(least, 0) for least, count in self.counts.items()}
        return Histogram(
            self.number - before.number,
            self.total - before.total,
            self.squares - before.squares,
            {least: count for least, count in sorted(counts.items()) if count},
        )

    @property
    def mean(self) -> float | None:
        """None if nothing was counted."""
        return self.total / self.number if self.number else None

    @property
    def least(self) -> int:
        """The least value that can have been counted; there has to be one."""
        return min(self.counts)

    @property
    def most(self) -> int:
        """The same of the largest."""
        return _most(max(self.counts))

    def edges(self) -> tuple[list[float], list[int]]:
        """(upper edges, counts) of ranges side by side, the empty ones between them included.

        >>> Histogram(2, 20, 298, {3: 1, 16: 1}).edges()
        ([2.5, 3.5, 15.5, 17.5], [0, 1, 0, 1])
        """
        edges: list[float] = []
        counts: list[int] = []
        for least, count in sorted(self.counts.items()):
            if not edges or edges[-1] < least - 0.5:
                edges.append(least - 0.5)
                counts.append(0)
            edges.append(_most(least) + 0.5)
            counts.append(count)
        return edges, counts

    def as_list(self) -> list[Any]:
        """For JSON."""
        return [self.number, self.total, self.squares, dict(self.counts)]

    @classmethod
    def from_list(cls, values: Any) -> Histogram:
        """Of `as_list`, also after JSON has made texts of the keys; of None an empty one."""
        number, total, squares, counts = values or (0, 0, 0, {})
        return cls(number, total, squares, {int(least): count for least, count in counts.items()})


def _shift(value: int) -> int:
    return max(value.bit_length() - EXACT_BITS, 0)


def _most(least: int) -> int:
    return least + (1 << _shift(least)) - 1


class Staleness:
    """How many updates are made between the pull of a step's variables and its own.

    Those are others', and with `pulls_ahead` its worker's own one before, too.

    >>> staleness = Staleness(pulls_ahead=1)
    >>> staleness.start(10)
    >>> for step, begun in ((11, 10), (13, 12), (14, 13)):           # someone else's is the 12th
    ...     _ = staleness.note(step, begun)
    >>> round(staleness.mean, 3)
    1.0
    >>> staleness.counts
    {0: 1, 1: 1, 2: 1}
    >>> staleness.describe()
    'mean 1.0 updates; 0: 33%, 1: 33%, 2: 33%'

    Args:
      pulls_ahead: 0: variables are pulled when the step begins; 1: when the run before does that pushes.
    """

    def __init__(self, pulls_ahead: int):
        self.pulls_ahead = pulls_ahead
        self._pulled_ahead_at = 0
        self._counts: collections.Counter[int] = collections.Counter()

    def start(self, step: int) -> None:
        """A session begins, and pulls what is pulled ahead, at this global step."""
        self._pulled_ahead_at = step

    def note(self, step: int, begun: int, first_begun: int | None = None) -> int:
        """A step is done.

        Args:
          step: the global step after it.
          begun: the one when the run began that pushed.
          first_begun: if others came before, for the batches of one step: when the first did.

        Returns:
          its staleness.
        """
        pulled_at = begun if first_begun is None else first_begun
        if self.pulls_ahead:
            pulled_at, self._pulled_ahead_at = self._pulled_ahead_at, begun
        return self.count(max(step - 1 - pulled_at, 0))  # the model may have gone back

    def count(self, value: int) -> int:
        """Counts a staleness that is known, and gives it back."""
        self._counts[value] += 1
        return value

    @property
    def mean(self) -> float | None:
        """Of all gradients so far; None before the first."""
        return self.histogram.mean

    @property
    def counts(self) -> Mapping[int, int]:
        """Staleness -> number of gradients, the lowest first."""
        return dict(sorted(self._counts.items()))

    @property
    def histogram(self) -> Histogram:
        """Of all gradients so far."""
        found = Histogram()
        for value, number in sorted(self._counts.items()):
            found.note(value, number)
        return found

    def describe(self) -> str:
        """The mean and the shares of the commonest values; "" before the first."""
        total = sum(self._counts.values())
        commonest = sorted(value for value, _ in self._counts.most_common(MAX_SHARES))
        shares = [f"{value}: {self._counts[value] / total:.0%}" for value in commonest]
        more = ["others"] if len(self._counts) > MAX_SHARES else []
        return f"mean {self.mean:.1f} updates; {', '.join([*shares, *more])}" if total else ""
