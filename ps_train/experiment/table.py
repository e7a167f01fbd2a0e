"""Figures over the seeds of each point: what the table of a report shows, and what its words compare.

measures = measures_of(records)
Spread.of(measures[0], records_of_a_point).text        # '187.4 (181.0-192.5)'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ps_train.experiment.grid import Point, axes_of
from ps_train.experiment.results import DONE, Record, metric_names

RATE, STEPS, SECS = "examples_per_sec", "steps_per_sec", "train_secs"
_TITLES = {
    RATE: "examples/s", STEPS: "steps/s", SECS: "training s", "loss": "last loss", "staleness": "staleness",
    "dropped": "dropped", "cpu_secs": "CPU s",
}  # fmt: skip


class Measure(NamedTuple):
    """A figure of each run: `name` is its key among the figures, or, with `is_metric`, among the metrics of the evaluation."""

    name: str
    title: str
    is_metric: bool = False

    def of(self, record: Record) -> float | None:
        """The figure of a run, None if that has none."""
        return record["metrics" if self.is_metric else "figures"].get(self.name)


class Spread(NamedTuple):
    """A figure of the seeds of one point, those that have it."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, measure: Measure, records: Iterable[Record]) -> Spread:
        """Of runs of a point; those that failed do not count."""
        found = (measure.of(record) for record in records if record["outcome"] == DONE)
        return cls(tuple(value for value in found if value is not None))

    @property
    def mean(self) -> float:
        """Of the values; there has to be one."""
        return math.fsum(self.values) / len(self.values)

    @property
    def range(self) -> str:
        """The least and the largest, as they are shown."""
        low, high = shown(min(self.values)), shown(max(self.values))
        return low if low == high else f"{low}-{high}"

    @property
    def text(self) -> str:
        """Mean and range; "" without a value.

        >>> Spread((1.0, 2.0, 6.0)).text, Spread((2.5,)).text, Spread(()).text
        ('3 (1-6)', '2.5', '')
        """
        if not self.values:
            return ""
        return shown(self.mean) if len(self.values) == 1 else f"{shown(self.mean)} ({self.range})"

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges have a value in common; to touch is to overlap.

        >>> Spread((1, 3)).overlaps(Spread((3, 4))), Spread((1, 3)).overlaps(Spread((3.1, 4)))
        (True, False)
        """
        return min(self.values) <= max(other.values) and min(other.values) <= max(self.values)


def shown(value: float) -> str:
    """A number with four digits.

    >>> [shown(value) for value in (0.97333, 187.44, 60000, 0.0, 12345.6)]
    ['0.9733', '187.4', '60000', '0', '12346']
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def measures_of(records: Sequence[Record]) -> list[Measure]:
    """Those that any run has, but for what is the same as another one or zero in all."""
    found = [Measure(name, title) for name, title in _TITLES.items()]
    found[3:3] = [Measure(name, f"held-out {name}", is_metric=True) for name in metric_names(records)]
    done = [record for record in records if record["outcome"] == DONE]
    values = {measure: [measure.of(record) for record in done] for measure in found}
    return [
        measure
        for measure in found
        if any(value is not None for value in values[measure])
        and not (
            measure.name in ("dropped", "staleness") and not measure.is_metric and not any(values[measure])
        )
    ]


def of_point(records: Iterable[Record], point: Point) -> list[Record]:
    """The runs of one point."""
    return [record for record in records if record["point"] == dict(point.settings)]


def rows(records: Sequence[Record], points: Sequence[Point]) -> list[list[str]]:
    """The table of a report, its head first: a row for each point, its axes, seeds and figures."""
    axes, measures = axes_of(points), measures_of(records)
    table = [[*axes, "seeds", *(measure.title for measure in measures)]]
    for point in points:
        runs = of_point(records, point)
        num_done = sum(record["outcome"] == DONE for record in runs)
        num_failed = len(runs) - num_done
        seeds = f"{num_done}" + (f", {num_failed} failed" if num_failed else "")
        spreads = (Spread.of(measure, runs).text for measure in measures)
        table.append([*(point.value(axis) or "" for axis in axes), seeds, *spreads])
    return table


class SpeedUp(NamedTuple):
    """The mean rate of points that differ in num_workers alone, by the number of workers; `label` is what they share."""

    label: str
    rates: dict[int, Spread]

    def factors(self) -> dict[int, float]:
        """The rate over that of the fewest workers, per worker of those: the ideal is the number of workers itself."""
        first = min(self.rates)
        return {count: first * rate.mean / self.rates[first].mean for count, rate in self.rates.items()}


def speed_ups(records: Sequence[Record], points: Sequence[Point]) -> list[SpeedUp]:
    """A line for each setting of the other axes that has several numbers of workers; none where that is no axis."""
    lines: dict[tuple[tuple[str, str], ...], dict[int, Spread]] = {}
    for point in points:
        count, rate = point.value("num_workers"), Spread.of(Measure(RATE, ""), of_point(records, point))
        if count is not None and rate.values:
            others = tuple(setting for setting in point.settings if setting[0] != "num_workers")
            lines.setdefault(others, {})[int(count)] = rate
    return [
        SpeedUp(Point(others).text if others else "", dict(sorted(rates.items())))
        for others, rates in lines.items()
        if len(rates) > 1
    ]
