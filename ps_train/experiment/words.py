"""What an experiment's figures support, in words, and what they do not. No file is read here, and no clock.

for sentence in answers(records, points) + conclusions(records, points, num_runs=12) + limits(records, points):
    print(sentence)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ps_train.experiment.comparisons import Comparison, comparisons, examples_of_a_step
from ps_train.experiment.grid import Point
from ps_train.experiment.results import DONE, Record
from ps_train.experiment.table import Measure, of_point, shown
from ps_train.wording import as_bytes, counted

MAX_CHANGES = 6  # of settings, up to which each is told in short
MAX_NAMED = 4  # pairs without a difference that are named
BUSY_CORES = 0.2


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


def answers(records: Sequence[Record], points: Sequence[Point]) -> list[str]:
    """The same in short: for each change of a setting what becomes of all figures, at each setting of the others.

    Where there are more than MAX_CHANGES, those from the first value of each.
    """
    changes: dict[tuple[str, str], dict[Measure, list[Comparison]]] = {}
    for one in comparisons(records, points):
        pair = (one.high, one.low) if one.is_rise else (one.low, one.high)
        changes.setdefault(pair, {}).setdefault(one.measure, []).append(one)
    if len(changes) > MAX_CHANGES:
        later = {new for new, _ in changes}
        changes = {pair: measures for pair, measures in changes.items() if pair[1] not in later}
    are_all_compared = all(
        sum(record["outcome"] == DONE for record in of_point(records, point)) > 1 for point in points
    )
    return [
        f"{new} instead of {old}: "
        + "; ".join(
            f"{measure.title} {_at_each(found, are_all_compared)}" for measure, found in measures.items()
        )
        + "."
        for (new, old), measures in changes.items()
    ]


def _at_each(found: Sequence[Comparison], are_all_compared: bool) -> str:
    """The changes, those that are the same put together: `0.31 times with update=sync, no difference with update=async`."""
    where: dict[str, list[str]] = {}
    for one in found:
        where.setdefault(one.change, []).append(one.shared)
    if len(where) == 1 and len(found) > 1 and are_all_compared:
        return f"{next(iter(where))} everywhere"
    if not any(one.shared for one in found):
        return ", ".join(where)
    return ", ".join(f"{change} with {' and with '.join(shared)}" for change, shared in where.items())


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
    return [f"{measure.title}: {one}: the ranges of {one.seeds} overlap." for one in pairs]


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
    unpaced = [record["name"] for record in done if record["figures"]["steps_per_sec"] is None]
    if unpaced:
        remarks.append(
            f"{', '.join(unpaced)}: no speed is known, as its workers never trained all at once. More --train_steps give it time."
        )
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
            f"Up to {counted(tasks, 'task')} shared {cores:g} processors, of which a worker that waits leaves the others more: speeds "
            "tell how well that goes, and not how a job on hosts of their own scales."
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


def _of_the_steps(done: Sequence[Record], points: Sequence[Point]) -> Iterator[str]:
    per_step = {}
    for point in points:
        ratios = examples_of_a_step(of_point(done, point))
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
