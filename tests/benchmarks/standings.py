"""The arithmetic of the contest, and its table.

    measured = judge([read_points(text) for text in files], cores, warm_secs=2)    # .rate, in steps a second
    print(*table([{"plain async": 23.0, "ps_train async": 80.0}, ...]), sep="\n")  # rates, a dict for each repeat
    for ours, theirs, over in losses([...]): ...

A point is the number of a worker's steps, the moment in seconds, and the loss.
"""

import bisect
import math
import statistics
from typing import NamedTuple

PLAIN = "plain async"
OURS = "ps_train "
MIN_LOSSES = 4
MIN_CORES = 0.02


class ContestError(Exception):
    """A contestant that did not run or did not train."""


class Measured(NamedTuple):
    """Steps a second over all workers, each task's processor time in cores, the worst worker's fall of its loss."""

    rate: float
    cores: dict
    losses: tuple


def read_points(text):
    """(steps, seconds, loss) of each whole line that a worker wrote."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [(int(count), float(secs), float(loss)) for count, secs, loss in (line.split() for line in lines)]


def common_window(workers, warm_secs):
    """(start, end) in seconds: from `warm_secs` after the first step of the last worker, as long as all have points.

    >>> common_window([[(1, 10.0, 2.0), (9, 20.0, 1.0)], [(0, 11.0, 2.0), (1, 12.0, 2.0), (9, 19.0, 1.0)]], 2)
    (14.0, 19.0)
    """
    start = warm_secs + max(next(secs for count, secs, _ in points if count) for points in workers)
    return start, min(points[-1][1] for points in workers)


def steps_at(points, secs):
    """The steps done by then, with the fraction of the one that was going on.

    >>> steps_at([(1, 10.0, 2.0), (3, 20.0, 1.0)], 15.0)
    2.0
    """
    after = bisect.bisect_left([point[1] for point in points], secs)
    if not 0 < after < len(points):
        return float(points[min(after, len(points) - 1)][0])
    (count, then, _), (next_count, next_then, _) = points[after - 1 : after + 1]
    return count + (next_count - count) * (secs - then) / (next_then - then)


def steps_per_sec(points, start, end):
    """A worker's rate between two moments."""
    return (steps_at(points, end) - steps_at(points, start)) / (end - start)


def fall_of_loss(points):
    """(mean loss of the first tenth of the points, of the last tenth); None with too few of them."""
    losses = [loss for count, _, loss in points if count]
    if len(losses) < MIN_LOSSES:
        return None
    tenth = math.ceil(len(losses) / 10)
    return statistics.mean(losses[:tenth]), statistics.mean(losses[-tenth:])


def judge(workers, cores, warm_secs, min_cores=MIN_CORES):
    """The measured rate; ContestError if it is not one of training.

    Args:
      workers: for each counter its points.
      cores: of each task.
      warm_secs: what the window leaves out at first.
      min_cores: of a worker that trains.
    """
    start, end = common_window(workers, warm_secs)
    if any(steps_at(points, end) - steps_at(points, start) < 1 for points in workers):
        raise ContestError("a worker made no step while it was measured")
    falls = [fall_of_loss(points) for points in workers]
    if any(fall is None or not fall[1] < fall[0] for fall in falls):
        raise ContestError(f"it does not train: loss, at first and at last, of each worker: {falls}")
    idle = [name for name, used in cores.items() if name.startswith("worker") and used < min_cores]
    if idle:
        raise ContestError(f"{', '.join(idle)} did nothing while it was measured")
    rate = sum(steps_per_sec(points, start, end) for points in workers)
    return Measured(rate, cores, max(falls, key=lambda fall: fall[1] - fall[0]))


def kb_per_sec(rate, kb, num_ps, num_workers):
    """What leaves a ps's host at so many steps/s of all workers; `num_ps` is 0 if each worker is one.

    >>> kb_per_sec(6.0, 1000, 2, 3)
    3000.0
    >>> kb_per_sec(6.0, 900, 0, 3)          # two a second each: the 2 others pull 300 kB, and it pushes 600
    2400.0
    """
    if num_ps:
        return rate * kb / num_ps
    return 2 * rate * kb / num_workers * (num_workers - 1) / num_workers


def ratios(rounds, name, to):
    """The rates of one contestant over those of another, in the repeats that have both."""
    return [rates[name] / rates[to] for rates in rounds if name in rates and to in rates]


def spread(values):
    """Median and range in words.

    >>> spread([3.0, 1.0, 2.0])
    '2.00 (1.00-3.00)'
    """
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def table(rounds):
    """Lines of a markdown table of the contestants, in the order of the first repeat; ratios to `plain async` or the first.

    Each repeat has the same contestants; there may be none.
    """
    base = PLAIN if PLAIN in rounds[0] else next(iter(rounds[0]), PLAIN)
    yield f"| contestant | steps/s, all workers | over {base} |"
    yield "|---|---|---|"
    for name in rounds[0]:
        rates = [rates[name] for rates in rounds]
        low, middle, high = (f"{value:.3g}" for value in (min(rates), statistics.median(rates), max(rates)))
        over = ratios(rounds, name, base)
        yield f"| {name} | {middle} ({low}-{high}) | {spread(over) if over else ''} |"


def update_of(name):
    """`async` or `sync`, the second word of a contestant's name."""
    return name.split()[1] if " " in name else ""


def losses(rounds):
    """(ours, theirs, ratios) where a ps_train is slower than a peer with the same kind of update."""
    for ours in (name for name in rounds[0] if name.startswith(OURS)):
        for theirs in rounds[0]:
            if theirs.startswith(OURS) or update_of(theirs) != update_of(ours):
                continue
            over = ratios(rounds, ours, theirs)
            if statistics.median(over) < 1:
                yield ours, theirs, over
