"""The arithmetic of the benchmark against peers: the window in which all train, ratios over repeats, who does not train."""

import doctest
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))
import standings
from standings import (
    ContestError,
    common_window,
    fall_of_loss,
    judge,
    losses,
    ratios,
    read_points,
    steps_at,
    steps_per_sec,
    table,
)

BUSY = {"ps0": 0.5, "worker0": 0.5, "worker1": 0.5}


def points(rate, first, last, fall=0.01):
    """Those of a worker that makes `rate` steps a second from `first` to `last`, ten points a second."""
    count = round(10 * (last - first))
    return [(1 + round(rate * i / 10), first + i / 10, 2 - fall * i) for i in range(count + 1)]


def test_examples_in_docstrings():
    results = doctest.testmod(standings)
    assert results.attempted and not results.failed


def test_points_of_a_file_that_is_being_written():
    assert read_points("0 5.0 nan\n3 5.5 0.25\n4 5.6 0.")[1:] == [(3, 5.5, 0.25)]
    assert read_points("4 5.") == []


def test_window_begins_with_the_last_worker_and_ends_with_the_first_that_stops():
    late = [(0, 3.0, float("nan")), *points(10, 7.0, 25.0)]
    assert common_window([points(10, 5.0, 20.0), late], 2) == (9.0, 20.0)


def test_steps_between_two_points_and_outside_of_them():
    worker = [(10, 4.0, 2.0), (30, 8.0, 1.0)]
    assert [steps_at(worker, secs) for secs in (3.0, 4.0, 5.0, 8.0, 9.0)] == [10, 10, 15, 30, 30]
    assert steps_per_sec(worker, 5.0, 7.0) == 5


def test_rate_is_the_sum_over_workers_that_train_at_the_same_time():
    # Worker 1 starts 10 s late; what worker 0 did alone does not count.
    alone, both = points(90, 0.0, 10.0), points(10, 10.1, 30.0)
    fast_then_slow = alone + [(alone[-1][0] + count, secs, 0.5 - secs / 100) for count, secs, _ in both]
    measured = judge([fast_then_slow, points(20, 10.0, 30.0)], BUSY, warm_secs=2)
    assert measured.rate == pytest.approx(30, rel=0.01)
    assert measured.cores == BUSY


def test_the_worst_fall_of_the_loss_is_told():
    measured = judge([points(10, 0.0, 9.9), points(10, 0.0, 9.9, fall=0.001)], BUSY, warm_secs=1)
    assert measured.losses == pytest.approx((1.9955, 1.9055), abs=1e-3)


@pytest.mark.parametrize("fall", [0.0, -0.01, float("nan")])
def test_a_loss_that_does_not_fall_is_no_training(fall):
    with pytest.raises(
        ContestError, match=r"^it does not train: loss, at first and at last, of each worker: \["
    ):
        judge([points(10, 0.0, 10.0), points(10, 0.0, 10.0, fall)], BUSY, warm_secs=1)


def test_too_few_losses_are_no_training():
    assert fall_of_loss([(0, 1.0, float("nan")), (1, 2.0, 3.0), (2, 3.0, 2.0), (3, 4.0, 1.0)]) is None
    with pytest.raises(ContestError, match="it does not train"):
        judge([[(1, 0.0, 2.0), (9, 5.0, 1.0)]], BUSY, warm_secs=1)


def test_a_worker_that_stands_still_or_idles_is_no_contestant():
    still = [(1, 0.0, 2.0), *((2, 0.1 * i, 2 - 0.01 * i) for i in range(1, 101))]
    with pytest.raises(ContestError, match="a worker made no step while it was measured"):
        judge([points(10, 0.0, 10.0), still], BUSY, warm_secs=1)
    with pytest.raises(ContestError, match="worker1 did nothing while it was measured"):
        judge([points(10, 0.0, 10.0)], {**BUSY, "worker1": 0.0, "ps0": 0.0}, warm_secs=1)


ROUNDS = [
    {"plain async": 10.0, "ps_train async": 40.0, "ps_train sync": 30.0, "ddp sync": 20.0, "single": 99.0},
    {"plain async": 20.0, "ps_train async": 50.0, "ps_train sync": 15.0, "ddp sync": 30.0, "single": 99.0},
    {"plain async": 40.0, "ps_train async": 60.0, "ps_train sync": 20.0, "ddp sync": 25.0, "single": 99.0},
]


def test_ratios_are_those_of_the_same_repeat():
    assert ratios(ROUNDS, "ps_train async", "plain async") == [4.0, 2.5, 1.5]
    assert ratios(ROUNDS, "ps_train async", "tf2_ps async") == []


def test_table_has_the_median_of_the_ratios_and_not_the_ratio_of_the_medians():
    *head, plain, ours, _, _, _ = table([*ROUNDS, *ROUNDS[:2]])
    assert head == ["| contestant | steps/s, all workers | over plain async |", "|---|---|---|"]
    assert plain == "| plain async | 20 (10-40) | 1.00 (1.00-1.00) |"
    assert ours == "| ps_train async | 50 (40-60) | 2.50 (1.50-4.00) |"


def test_table_without_the_plain_script():
    assert list(table([{"single": 7.0}]))[2:] == ["| single | 7 (7-7) | 1.00 (1.00-1.00) |"]


def test_table_of_none():
    head, _ = table([{}, {}])
    assert head == "| contestant | steps/s, all workers | over plain async |" and not list(losses([{}, {}]))


def test_losses_are_to_peers_with_the_same_kind_of_update():
    # Not to `single`, which shares nothing, and not to async ones though they are faster.
    assert list(losses(ROUNDS)) == [("ps_train sync", "ddp sync", [1.5, 0.5, 0.8])]
