"""How a loss goes over a run, in a hundred points or so however long that is: what the report has of it.

>>> curve = Curve()
>>> for loss in (4.0, 2.0):
...     curve.note(loss)
>>> curve.mark(secs=0.5, step=2)
>>> curve.mark(secs=1.0, step=2)            # nothing new
>>> curve.points
[[0.5, 2, 3.0]]
"""

from __future__ import annotations

from typing import NamedTuple, SupportsFloat

MAX_POINTS = 128


class _Stretch(NamedTuple):
    """Steps in a row: the moment and the global step of the last of them, their losses' sum and number."""

    secs: float
    step: int
    total: float
    number: int


class Curve:
    """Means of the losses between two marks. When there are MAX_POINTS, every two neighbours become one.

    Attributes:
      points: `[seconds, global step, mean loss]` of each, in order; always the same list.
    """

    def __init__(self) -> None:
        self.points: list[list[float]] = []
        self._stretches: list[_Stretch] = []
        self._total, self._count = 0.0, 0

    def note(self, loss: SupportsFloat | None) -> None:
        """Takes in a step's loss; called with each step, so it does next to nothing."""
        if loss is not None:
            self._total += float(loss)
            self._count += 1

    def mark(self, secs: float, step: int) -> None:
        """Makes a point of the losses since the last mark, if there are any.

        Args:
          secs: of training so far.
          step: the global step.
        """
        if not self._count:
            return
        if len(self._stretches) >= MAX_POINTS:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
            self._stretches = [
                _Stretch(last.secs, last.step, first.total + last.total, first.number + last.number)
                for first, last in pairs
            ]
            self.points[:] = map(_point, self._stretches)
        self._stretches.append(_Stretch(secs, step, self._total, self._count))
        self.points.append(_point(self._stretches[-1]))
        self._total, self._count = 0.0, 0


def _point(one: _Stretch) -> list[float]:
    return [round(one.secs, 3), one.step, float(f"{one.total / one.number:.6g}")]
