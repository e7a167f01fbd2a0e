"""The curve of a run's loss: exact means, and a bounded number of points."""

import math

import pytest

from ps_train.curve import MAX_POINTS, Curve


def test_a_point_is_the_mean_since_the_one_before():
    curve = Curve()
    for step, losses in ((3, (3.0, 2.0, 1.0)), (4, (7.0,))):
        for loss in losses:
            curve.note(loss)
        curve.mark(secs=step / 2, step=step)
    assert curve.points == [[1.5, 3, 2.0], [2.0, 4, 7.0]]


def test_steps_without_a_loss_make_no_point():
    curve = Curve()
    curve.note(None)
    curve.mark(1.0, 1)
    assert curve.points == []


def test_a_long_run_has_as_many_points_as_a_short_one_and_the_same_mean():
    curve, points = Curve(), None
    losses = [math.sin(number) for number in range(10_000)]
    for number, loss in enumerate(losses):
        curve.note(loss)
        curve.mark(secs=0.5 * (number + 1), step=number + 1)
        points = points or curve.points
        assert len(curve.points) <= MAX_POINTS
    assert curve.points is points and len(points) > MAX_POINTS / 2
    assert points[-1][:2] == [5000.0, 10_000]
    assert [step for _, step, _ in points] == sorted({step for _, step, _ in points})
    counts = [
        step - before for (_, step, _), before in zip(points, [0, *(p[1] for p in points)], strict=False)
    ]
    total = sum(mean * count for (_, _, mean), count in zip(points, counts, strict=True))
    assert total == pytest.approx(sum(losses), abs=1e-3)
