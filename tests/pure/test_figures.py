"""A worker's curves, against sums over what it did; and the histogram that the boards carry."""

import json
import random

import pytest

from ps_train.figures import Figures
from ps_train.staleness import Histogram, Staleness


def histogram(values):
    found = Histogram()
    for value in values:
        found.note(value)
    return found


def record(steps, secs, run="a", **more):
    return {"run": run, "step": 3 * steps, "local_steps": steps, "examples": 32 * steps, "secs": secs, **more}


def test_rates_are_of_what_was_done_since_the_last_point():
    figures = Figures({"run": "a", "step": 0}, is_global=True)
    assert figures.note(record(10, 2.0, loss=0.5)) == {
        "loss": 0.5, "local_steps/sec": 5.0, "examples/sec": 160.0, "global_step/sec": 15.0,
    }  # fmt: skip
    assert figures.note(record(10, 2.0)) == {}, "nothing new"
    assert figures.note(record(14, 2.5, loss=0.4))["local_steps/sec"] == 8.0


def test_the_speed_of_the_job_is_shown_once():
    assert "global_step/sec" not in Figures({}).note(record(10, 2.0))


def test_a_job_that_goes_back_has_no_negative_speed():
    figures = Figures({"step": 90}, is_global=True)
    figures.rewind(30)
    assert figures.note({"step": 50, "local_steps": 10, "secs": 4.0})["global_step/sec"] == 5.0
    assert figures.note({"step": 20, "local_steps": 12, "secs": 5.0})["global_step/sec"] == 0.0


def test_what_was_done_before_the_chief_came_is_not_shown():
    figures = Figures(record(100, 50.0, staleness=histogram([5] * 100).as_list()))
    values = figures.note(record(110, 51.0, staleness=histogram([5] * 100 + [2] * 10).as_list()))
    assert values["local_steps/sec"] == 10.0 and values["staleness/mean"] == 2.0
    assert values["staleness/histogram"] == histogram([2] * 10)


def test_dropped_gradients_add_up_over_restarts_of_the_worker():
    figures = Figures({})
    seen = [
        figures.note(record(steps, 1.0, run, dropped=dropped))["dropped_gradients"]
        for steps, run, dropped in ((5, "a", 2), (9, "a", 3), (2, "b", 1), (3, "b", 1))
    ]
    assert seen == [2, 3, 4, 4]
    assert [figures.note(record(0, 0.0, "c", dropped=0)) for _ in range(2)] == [{}, {}]
    assert figures.note(record(1, 1.0, "c", dropped=0))["dropped_gradients"] == 4, "b's one once"
    assert "dropped_gradients" not in Figures({}).note(record(1, 1.0)), "nothing can be dropped there"


def test_every_gradient_is_in_one_histogram_whatever_is_looked_at():
    chance, figures, staleness = random.Random(1), Figures({}), Staleness(0)
    total, points = Histogram(), []
    for step in range(1, 400):
        staleness.count(int(chance.expovariate(0.02)))
        if chance.random() < 0.05 or step == 399:
            on_the_boards = json.loads(
                json.dumps(record(step, step, staleness=staleness.histogram.as_list()))
            )
            points.append(figures.note(on_the_boards)["staleness/histogram"])
    for one in points:
        for least, count in one.counts.items():
            total.counts[least] = total.counts.get(least, 0) + count
    assert sum(one.number for one in points) == 399 == sum(total.counts.values())
    assert (
        total.counts
        == histogram(value for value, count in staleness.counts.items() for _ in range(count)).counts
    )
    assert sum(one.total for one in points) / 399 == pytest.approx(staleness.mean)


def test_small_values_are_exact_and_large_ones_in_ranges_that_hold_them():
    values = [*range(70), 1000, 1063, 10**6]
    found = histogram(values)
    limits, counts = found.edges()
    assert [found.counts[value] for value in range(16)] == [1] * 16
    assert limits == sorted(limits) and len(limits) == len(counts) and sum(counts) == len(values)
    lower = [-0.5, *limits]
    for low, high, count in zip(lower, limits, counts, strict=False):
        assert count == sum(low < value < high for value in values)
        assert high - low <= max(1, low / 8 + 1) or not count
    assert (found.least, found.number, found.total) == (0, len(values), sum(values))
    assert found.most >= 10**6 and found.squares == sum(value**2 for value in values)


def test_a_long_job_of_many_workers_has_a_short_record():
    chance = random.Random(2)
    found = histogram(int(max(chance.gauss(1000, 100), 0)) for _ in range(20_000))
    assert len(json.dumps(found.as_list())) < 250


def test_what_was_traced():
    traced = {"parts": {"compute": 0.004, "wait": 0.001}, "traffic": {"ps:0": [1000, 800], "ps:1": [0, 20]}}
    values = Figures({}).note(record(10, 5.0, **traced))
    assert {tag: value for tag, value in values.items() if "bytes" in tag or "ms" in tag} == {
        "step_ms/compute": 4.0, "step_ms/wait": 1.0,
        "pulled_bytes/ps_0/step": 1000, "pulled_bytes/ps_0/sec": 2000.0,
        "pushed_bytes/ps_0/step": 800, "pushed_bytes/ps_0/sec": 1600.0,
        "pulled_bytes/ps_1/step": 0, "pulled_bytes/ps_1/sec": 0.0,
        "pushed_bytes/ps_1/step": 20, "pushed_bytes/ps_1/sec": 40.0,
    }  # fmt: skip
