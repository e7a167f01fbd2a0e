"""How fast a run trained while all of its workers did, and when on a clock of that speed it was where.

A job's processes do not start at once: the first step of a synchronous chief waits for the last one, and in async those that are there
train alone. So a speed is that of the steps from the one at which every worker had made its first, by the chief's clock, to the chief's
last one. The seconds of training are what all steps take at it: 0 is the beginning, and the steps before all trained count as long as
the same number of later ones.

>>> chief = {"global_step": 50, "curve": [[2.0, 1, 0.9], [4.0, 10, 0.8], [6.0, 50, 0.7]]}
>>> speed = Speed.of(chief, [chief, {"curve": [[0.5, 10, 0.9]]}])
>>> speed.steps_per_sec, speed.train_secs(50), speed.train_secs(30)
(20.0, 2.5, 1.5)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Speed(NamedTuple):
    """Of a run.

    Attributes:
      steps_per_sec: global steps a second while all workers trained; None: they never did so all at once.
      marks: (seconds of training, global step), in order; none without a speed.
    """

    steps_per_sec: float | None = None
    marks: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, chief: Mapping[str, Any], workers: Iterable[Mapping[str, Any]]) -> Speed:
        """From the reports of the chief and of all workers, the chief included; their curves have half-second steps."""
        own = [(secs, step) for secs, step, _ in chief.get("curve") or []]
        firsts = [report["curve"][0][1] for report in workers if report.get("curve")]
        begun = max(firsts, default=0)
        begun_secs = secs_at(begun, own)
        if begun_secs is None or own[-1][1] <= begun or own[-1][0] <= begun_secs:
            return cls()
        rate = (own[-1][1] - begun) / (own[-1][0] - begun_secs)
        later = [(begun / rate + secs - begun_secs, step) for secs, step in own if step > begun]
        # Other workers may have made steps after the chief's last.
        end = max(chief.get("global_step") or 0, own[-1][1])
        return cls(rate, ((0.0, 0), (begun / rate, begun), *later, (end / rate, end)))

    def train_secs(self, step: int | None) -> float | None:
        """When a step was made, None where that is not known."""
        found = None if step is None else secs_at(step, self.marks)
        return None if found is None else round(found, 3)


def secs_at(step: int, marks: Sequence[tuple[float, int]]) -> float | None:
    """When a step was made, on a straight line between the two marks around it; None if it is beyond them.

    >>> secs_at(150, [(0.0, 0), (4.0, 100), (5.0, 200)])
    4.5

    Args:
      step: the global step.
      marks: (seconds, global step), in order.
    """
    for (secs, before), (later, after) in itertools.pairwise(marks):
        if before <= step <= after:
            share = (step - before) / (after - before) if after > before else 0.0
            return secs + share * (later - secs)
    return None
