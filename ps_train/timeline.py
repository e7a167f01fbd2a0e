"""Where a step's time went: a sweep over intervals that overlap, so that the parts add up to the whole. No TensorFlow in it.

>>> step = [Span("pull", 0.0, 4.0), Span("input", 0.0, 1.0), Span("compute", 3.0, 6.0), Span("push", 5.0, 8.0)]
>>> attribute(step, 0.0, 9.0)
{'pull': 3.0, 'compute': 3.0, 'push': 2.0, 'other': 1.0}

An instant belongs to the computation if this worker computes then. Else it belongs to that of the things under way which ends
last, as the others alone would not have held the step up; to nothing that is known ("other") if nothing is under way.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

COMPUTE, OTHER = "compute", "other"


class Span(NamedTuple):
    """Something that was under way, in seconds of one clock."""

    kind: str
    start: float
    end: float


def attribute(spans: Iterable[Span], start: float, end: float) -> dict[str, float]:
    """Kind -> seconds between `start` and `end`; the values add up to what lies between these."""
    coming = sorted((span for span in spans if span.end > start and span.start < end), key=lambda s: -s.start)
    inner = {moment for span in coming for moment in span[1:] if start < moment < end}
    parts: dict[str, float] = {}
    computes_until = float("-inf")
    open_until: list[tuple[float, str]] = []  # a heap of (- end, kind)
    for left, right in pairwise([start, *sorted(inner), end]):
        while coming and coming[-1].start <= left:
            span = coming.pop()
            if span.kind == COMPUTE:
                computes_until = max(computes_until, span.end)
            else:
                heapq.heappush(open_until, (-span.end, span.kind))
        while open_until and -open_until[0][0] <= left:
            heapq.heappop(open_until)
        kind = open_until[0][1] if open_until else OTHER
        kind = COMPUTE if computes_until > left else kind
        parts[kind] = parts.get(kind, 0.0) + (right - left)
    return parts


def covered_secs(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans was under way.

    >>> covered_secs([Span("pull", 0, 2), Span("pull", 1, 3), Span("pull", 5, 6)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for _, start, end in sorted(spans, key=lambda span: span.start):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def clock_shift(lowest: float, highest: float) -> float:
    """What to add to another host's clock, so that no effect comes before its cause.

    Nothing, if that is so already. Else the middle of what is possible, as if messages took as long one way as the other.

    Args:
      lowest: the other clock is at least so much behind: something was sent from here before it was received there.
      highest: and at most so much: something was sent from there before it was received here.

    >>> clock_shift(-0.5, 0.3), clock_shift(2.0, 3.0), clock_shift(-9.0, -8.0)
    (0.0, 2.5, -8.5)
    >>> clock_shift(1.0, 0.75), clock_shift(1.0, float("inf"))  # the first two contradict each other, by the clocks' own error
    (0.875, 1.0)
    """
    if lowest <= 0.0 <= highest:
        return 0.0
    if math.isinf(lowest) or math.isinf(highest):
        return highest if math.isinf(lowest) else lowest
    return (lowest + highest) / 2
