"""What an experiment's figures support, in words, and what they do not. No file is read here, and no clock.

for sentence in conclusions(records, points, num_runs=12) + limits(records, points):
    print(sentence)

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
from ps_train.wording import as_bytes, counted

MAX_JOINT = 8  # combinations of flags that vary together, up to which each is compared with each
MAX_NAMED = 4  # pairs without a difference that are named
BUSY_CORES = 0.2


class Comparison(NamedTuple):
    """Two points in one figure, the higher one first, and what they have in common, as words."""

    measure: Measure
    high: str
    high_values: Spread
    low: str
    low_values: Spread
    shared: str

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
            f"ranges of {_seeds(self)} do not overlap"
        )


def chance(num_first: int, num_second: int) -> float:
    """How often the ranges of two samples from one distribution are apart.

    >>> chance(1, 1), round(chance(3, 3), 3), round(chance(5, 5), 4)
    (1.0, 0.1, 0.0079)
    """
    return 2 / math.comb(num_first + num_second, num_first)


def conclusions(records: Sequence[Record], points: Sequence[Point], num_runs: int) -> list[str]:
    """What the figures say, a sentence each: runs that are missing, differences, what shows none, and how sure that is."""
    found = _missing(records, points, num_runs)
    compared = list(comparisons(records, points))
    measures = list(dict.fromkeys(one.measure for one in compared))
    for measure in measures:
        of_it = [one for one in compared if one.measure == measure]
        found += [f"{measure.title}: {one}." for one in of_it if one.is_difference]
        found += _without_difference(measure, [one for one in of_it if not one.is_difference])
    if compared:
        found.append(_certainty(compared))
    elif len(points) > 1:
        found.append(
            "No two points have two seeds each: nothing can be said about the spread, so no difference is called one. "
            "Give --seeds=3 or more."
        )
    return found


def comparisons(records: Sequence[Record], points: Sequence[Point]) -> Iterator[Comparison]:
    """Each figure of speed and of the evaluation, of each pair of points that has two seeds each.

    A pair is one that differs in one axis, or in some that vary together (`grid.factors`).
    """
    axes, allowed = axes_of(points), factors(points)
    joint = {tuple(point.value(axis) for axis in allowed[-1]) for point in points} if allowed else set()
    for measure in _compared_measures(records, points):
        for first, second in itertools.combinations(points, 2):
            differing = [axis for axis in axes if first.value(axis) != second.value(axis)]
            spreads = [Spread.of(measure, of_point(records, point)) for point in (first, second)]
            is_known = all(len(spread.values) > 1 for spread in spreads)
            is_pair = any(set(differing) <= set(factor) for factor in allowed)
            if not is_known or not is_pair or (len(differing) > 1 and len(joint) > MAX_JOINT):
                continue
            names = [_named(point, differing) for point in (first, second)]
            shared = tuple(setting for setting in first.settings if setting[0] not in differing)
            pairs = sorted(zip(names, spreads, strict=True), key=lambda pair: -pair[1].mean)
            yield Comparison(measure, *pairs[0], *pairs[1], Point(shared).text if shared else "")


def _compared_measures(records: Sequence[Record], points: Sequence[Point]) -> list[Measure]:
    """Those whose differences are told: not one that says what another does, nor the loss of one batch.

    With the same examples a step, steps/s say what examples/s do; with the same steps, seconds say what steps/s do.
    """
    names = {RATE}
    of_a_step = {round(ratio) for ratio in _examples_of_a_step(records)}
    if "train_steps" in axes_of(points):
        names.add(SECS)
    elif len(of_a_step) > 1:
        names.add(STEPS)
    return [one for one in measures_of(records) if one.is_metric or one.name in names]


def _named(point: Point, axes: Sequence[str]) -> str:
    settings = tuple((axis, value) for axis in axes if (value := point.value(axis)) is not None)
    left_out = [f"no {axis}" for axis in axes if point.value(axis) is None]
    return " ".join([*([Point(settings).text] if settings else []), *left_out])


def _missing(records: Sequence[Record], points: Sequence[Point], num_runs: int) -> list[str]:
    found = []
    failed = [record for record in records if record["outcome"] != DONE]
    if failed:
        where = ", ".join(dict.fromkeys(Point(tuple(record["point"].items())).text for record in failed))
        found.append(
            f"{len(failed)} of {counted(num_runs, 'run')} failed ({where}): the figures are those of the others, and a point "
            "whose runs fail often is worse than its figures."
        )
    if len(records) < num_runs:
        found.append(
            f"{num_runs - len(records)} of {counted(num_runs, 'run')} have no result yet: the same command goes on with them."
        )
    alone = [
        point.text for point in points if sum(r["outcome"] == DONE for r in of_point(records, point)) == 1
    ]
    if alone:
        found.append(f"One seed of {'; '.join(alone)}: nothing can be said about the spread.")
    return found


def _without_difference(measure: Measure, pairs: Sequence[Comparison]) -> list[str]:
    if len(pairs) > MAX_NAMED:
        return [
            f"{measure.title}: no difference is shown in {len(pairs)} more comparisons: the ranges overlap."
        ]
    return [f"{measure.title}: {one}: the ranges of {_seeds(one)} overlap." for one in pairs]


def _seeds(one: Comparison) -> str:
    counts = sorted({len(one.high_values.values), len(one.low_values.values)})
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} and {counts[1]} seeds"


def _certainty(compared: Sequence[Comparison]) -> str:
    worst, expected = max(one.chance for one in compared), sum(one.chance for one in compared)
    called = sum(one.is_difference for one in compared)
    return (
        f"{called} of {counted(len(compared), 'comparison')} {'is' if called == 1 else 'are'} called a difference. With so few "
        f"seeds the ranges of two equal points are apart by chance in {worst:.0%} of cases: if all points were equal, about "
        f"{expected:.1f} would be called one."
    )


def limits(records: Sequence[Record], points: Sequence[Point]) -> list[str]:
    """What else a reader has to know before believing the figures, a sentence each."""
    done = [record for record in records if record["outcome"] == DONE]
    remarks = [f"{record['name']}: {record['reason']}." for record in done if record["reason"]]
    return [*remarks, *_of_the_machine(done), *_of_the_steps(done, points)] if done else []


def _of_the_machine(done: Sequence[Record]) -> Iterator[str]:
    machines = [record["machine"] for record in done]
    if any(machine != machines[0] for machine in machines):
        yield "The runs were made on different machines or versions: their speeds cannot be compared."
    if any(record["is_launched"] for record in done):
        yield "The tasks ran on hosts over ssh: the machine named here, and how busy it was, are those of the one that started them."
        return
    cores = min(machine["cores_allowed"] or machine["cores"] for machine in machines)
    tasks = max(record["num_ps"] + record["num_workers"] for record in done)
    if tasks > cores:
        yield (
            f"Up to {counted(tasks, 'task')} shared {cores:g} processors: speeds tell how well that goes, and not how a job on "
            "hosts of their own scales."
        )
    others = [record["others_cores"] for record in done if record.get("others_cores") is not None]
    if others and max(others) >= BUSY_CORES:
        yield (
            f"Other processes kept {min(others):.1f} to {max(others):.1f} processors busy during the runs: that is in the speeds, "
            "and in their spread."
        )
    free = [record["before"]["free_bytes"] for record in done if record["before"]["free_bytes"] is not None]
    if free and min(free) < 2**30:
        yield f"There was no more than {as_bytes(min(free))} of free memory before one of the runs."


def _examples_of_a_step(records: Sequence[Record]) -> list[float]:
    """Of each run where that is known."""
    return [
        record["figures"]["examples"] / record["figures"]["global_step"]
        for record in records
        if record["figures"]["examples"] and record["figures"]["global_step"]
    ]


def _of_the_steps(done: Sequence[Record], points: Sequence[Point]) -> Iterator[str]:
    per_step = {}
    for point in points:
        ratios = _examples_of_a_step(of_point(done, point))
        if ratios:
            per_step[point.text] = sum(ratios) / len(ratios)
    if per_step and max(per_step.values()) > 1.05 * min(per_step.values()):
        low, high = min(per_step, key=per_step.__getitem__), max(per_step, key=per_step.__getitem__)
        yield (
            f"A global step takes {shown(per_step[low])} examples at {low} and {shown(per_step[high])} at {high}: losses and metrics "
            "after as many steps are not after as many examples, nor after the same time."
        )
    if any(record["metrics"] for record in done):
        if any(len(record["evaluations"]) > 1 for record in done):
            yield (
                "Metrics before the end are of checkpoints: their saving is in the speeds, and their seconds lie between those of the "
                "loss's points."
            )
        yield (
            "Held-out figures are those at the end of each run. The last loss is that of one batch of the chief: it is in the table, "
            "and no difference is read from it."
        )
    else:
        yield "No run was evaluated on held-out data: nothing is said about what was learnt."
