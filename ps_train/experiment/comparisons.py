"""Which points of an experiment are compared in which figures, and what is called a difference.

[str(one) for one in comparisons(records, points) if one.is_difference]

A difference between two points is called one only if the ranges of their seeds have no value in common. How often that happens
to two equal points is known: of n and m values in a random order, the n lowest are all of one kind, or the m, in two of the
(n + m)! / (n! m!) orders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ps_train.experiment.grid import Point, axes_of, factors
from ps_train.experiment.results import DONE, Record
from ps_train.experiment.table import RATE, SECS, STEPS, Measure, Spread, measures_of, of_point, shown

MAX_JOINT = 8  # combinations of flags that vary together, up to which each is compared with each


class Comparison(NamedTuple):
    """Two points in one figure, the higher one first, and what they have in common, as words.

    `is_rise`: the later one in the grid is the higher one.
    """

    measure: Measure
    high: str
    high_values: Spread
    low: str
    low_values: Spread
    shared: str
    is_rise: bool = False

    @property
    def is_difference(self) -> bool:
        """Whether the ranges of the seeds are apart."""
        return not self.high_values.overlaps(self.low_values)

    @property
    def chance(self) -> float:
        """How often two equal points would show a difference."""
        return chance(len(self.high_values.values), len(self.low_values.values))

    @property
    def how_much(self) -> str:
        """Between the means: speeds as a ratio, metrics as a difference."""
        high, low = self.high_values.mean, self.low_values.mean
        return f"by {shown(high - low)}" if self.measure.is_metric or low <= 0 else f"{high / low:.2f} times"

    @property
    def seeds(self) -> str:
        """How many, as words."""
        counts = sorted({len(self.high_values.values), len(self.low_values.values)})
        return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} and {counts[1]} seeds"

    @property
    def change(self) -> str:
        """What becomes of the figure where the later point takes the place of the earlier one."""
        if not self.is_difference:
            return "no difference"
        high, low = self.high_values.mean, self.low_values.mean
        if self.measure.is_metric or low <= 0:
            return f"{shown(high - low)} {'higher' if self.is_rise else 'lower'}"
        if not self.is_rise:
            return f"{_percent(1 - low / high)} less"
        return f"{high / low:.1f} times as much" if high >= 2 * low else f"{_percent(high / low - 1)} more"

    def __str__(self) -> str:
        """A sentence."""
        where = f" with {self.shared}" if self.shared else ""
        if not self.is_difference:
            return (
                f"no difference is shown between {self.high} ({self.high_values.range}) and {self.low} "
                f"({self.low_values.range}){where}"
            )
        return (
            f"{self.high} ({self.high_values.range}) is above {self.low} ({self.low_values.range}){where}, {self.how_much}: the "
            f"ranges of {self.seeds} do not overlap"
        )


def _percent(part: float) -> str:
    """With a decimal where it would be nothing, or all.

    >>> _percent(0.2), _percent(0.003), _percent(0.997)
    ('20%', '0.3%', '99.7%')
    """
    return f"{part:.1%}" if round(part, 2) in (0.0, 1.0) else f"{part:.0%}"


def chance(num_first: int, num_second: int) -> float:
    """How often the ranges of two samples from one distribution are apart.

    >>> chance(1, 1), round(chance(3, 3), 3), round(chance(5, 5), 4)
    (1.0, 0.1, 0.0079)
    """
    return 2 / math.comb(num_first + num_second, num_first)


def comparisons(records: Sequence[Record], points: Sequence[Point]) -> Iterator[Comparison]:
    """Each figure of speed and of the evaluation, of each pair of points that has two seeds each.

    A pair is one that differs in one axis, or in some that vary together (`grid.factors`). What follows from its examples/s is left out.
    """
    axes, allowed = axes_of(points), factors(points)
    joint = {tuple(point.value(axis) for axis in allowed[-1]) for point in points} if allowed else set()
    told = telling_axes(records, points)
    for measure in _compared_measures(records, points):
        for first, second in itertools.combinations(points, 2):
            differing = [axis for axis in axes if first.value(axis) != second.value(axis)]
            factor = next((factor for factor in allowed if set(differing) <= set(factor)), None)
            spreads = [Spread.of(measure, of_point(records, point)) for point in (first, second)]
            is_known = all(len(spread.values) > 1 for spread in spreads)
            if not is_known or factor is None or (len(differing) > 1 and len(joint) > MAX_JOINT):
                continue
            if _follows(measure, of_point(records, first), of_point(records, second)):
                continue
            names = [_named(point, [axis for axis in told if axis in factor]) for point in (first, second)]
            others = [axis for axis in told if axis not in factor]
            shared = _named(first, others) if others else ""
            pairs = sorted(zip(names, spreads, strict=True), key=lambda pair: -pair[1].mean)
            is_rise = spreads[1].mean > spreads[0].mean
            yield Comparison(measure, *pairs[0], *pairs[1], shared, is_rise)


def telling_axes(records: Sequence[Record], points: Sequence[Point]) -> list[str]:
    """Those that points are named by: not the target, if they differ without it and all have used as many examples."""
    axes = axes_of(points)
    rest = [axis for axis in axes if axis != "train_steps"]
    are_distinct = len({tuple(point.value(axis) for axis in rest) for point in points}) == len(points)
    are_equal = _are_equal([record["figures"]["examples"] for record in records if record["outcome"] == DONE])
    return rest if are_distinct and are_equal else axes


def labels(records: Sequence[Record], points: Sequence[Point]) -> list[str]:
    """What the points are called in pictures."""
    told = telling_axes(records, points)
    return [_named(point, told) if told else point.text for point in points]


def _follows(measure: Measure, first: Sequence[Record], second: Sequence[Record]) -> bool:
    """Whether two points compare in it as they do in examples/s: their runs, or their steps, have as many examples."""
    runs = [record for record in (*first, *second) if record["outcome"] == DONE]
    if measure.is_metric or measure.name not in (STEPS, SECS):
        return False
    if measure.name == STEPS:
        return _are_equal(examples_of_a_step(runs))
    return _are_equal([record["figures"]["examples"] for record in runs])


def _are_equal(numbers: Sequence[float | None]) -> bool:
    """But for what the last steps of an asynchronous run have too many."""
    known = [number for number in numbers if number]
    return len(known) == len(numbers) > 0 and max(known) <= 1.02 * min(known)


def _compared_measures(records: Sequence[Record], points: Sequence[Point]) -> list[Measure]:
    """Those whose differences are told: not one that says what another does, nor the loss of one batch.

    With the same examples a step, steps/s say what examples/s do; with the same steps, seconds say what steps/s do. Between two points
    `_follows` leaves out more.
    """
    names = {RATE}
    of_a_step = {round(ratio) for ratio in examples_of_a_step(records)}
    if "train_steps" in axes_of(points):
        names.add(SECS)
    elif len(of_a_step) > 1:
        names.add(STEPS)
    return [one for one in measures_of(records) if one.is_metric or one.name in names]


def _named(point: Point, axes: Sequence[str]) -> str:
    """By what it sets of these; if that is nothing, by what it does not."""
    settings = tuple(setting for setting in point.settings if setting[0] in axes)
    return Point(settings).text if settings else " ".join(f"no {axis}" for axis in axes)


def examples_of_a_step(records: Sequence[Record]) -> list[float]:
    """Of each run where that is known."""
    return [
        record["figures"]["examples"] / record["figures"]["global_step"]
        for record in records
        if record["figures"]["examples"] and record["figures"]["global_step"]
    ]
