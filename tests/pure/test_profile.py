"""What is kept of the traces, and the figures that are made of them."""

import itertools
import json
import statistics

import pytest

from ps_train.profile import (
    Evenly,
    Profile,
    PsFigures,
    Settings,
    least_wait,
    mean_parts,
    spread,
    usual_traffic,
    whole,
)
from ps_train.step_trace import StepTrace, Traffic


def trace(ms, messages=4, **parts):
    parts = {name: value / 1000 for name, value in parts.items()}
    line = Traffic(1000 * messages, 500, messages, 1, 0.001, 0.002)
    return StepTrace(ms / 1000, {"compute": ms / 1000, **parts}, {"ps:0": line})


@pytest.mark.parametrize("offered", [0, 1, 7, 8, 9, 100, 1001])
def test_what_is_kept_is_spread_evenly(offered):
    kept = Evenly(8)
    for value in range(offered):
        kept.add(value)
    assert len(kept.values) <= 8
    assert kept.values == list(range(0, offered, kept.stride))
    assert offered < 8 or len(kept.values) >= 4


def test_those_that_are_made_one_by_one_are_spread_by_making_fewer():
    kept, due = Evenly(8), 0
    for now in range(1000):
        if now >= due:
            kept.append(now)
            due = now + kept.stride
    gaps = {later - earlier for earlier, later in itertools.pairwise(kept.values)}
    assert 4 <= len(kept.values) <= 8 and max(gaps) <= 2 * min(gaps)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_are_kept_than_was_asked_for(limit):
    offered, made = Evenly(limit), Evenly(limit)
    for value in range(20):
        offered.add(value)
        made.append(value)
        assert max(len(offered.values), len(made.values)) <= limit
    assert offered.values[0] == made.values[0] == 0


def test_parts_add_up_to_the_untraced_step():
    traces = [trace(10, compute=6, pull=4)] * 3
    shorter = mean_parts(traces, 0.005)  # tracing has slowed it down
    assert (shorter["compute"], shorter["pull"], shorter["other"]) == (
        pytest.approx(0.003),
        pytest.approx(0.002),
        pytest.approx(0),
    )
    longer = mean_parts(traces, 0.012)  # with what is before the first event and after the last
    assert (longer["compute"], longer["other"]) == (pytest.approx(0.006), pytest.approx(0.002))
    assert sum(longer.values()) == pytest.approx(0.012)


def test_one_step_that_was_held_up_does_not_count():
    traces = [trace(10)] * 9 + [trace(1000, compute=10, wait=990)]
    assert mean_parts(traces, 0.01)["wait"] == 0.0


def test_a_trace_that_lacks_messages_is_left_out():
    traces = [trace(10, messages=4), trace(10, messages=3, wait=-1), trace(10, messages=4)]
    assert whole(traces) == [traces[0], traces[2]]
    assert usual_traffic(traces)["ps:0"].pulled_bytes == 4000
    assert least_wait(traces) == 0.0
    varied = [trace(10, messages=count) for count in range(1, 10)]  # it is not an exception then
    assert whole(varied) == varied


def test_a_report_can_hold_it():
    ps = {"ps:0": PsFigures(Traffic(4000, 500, 4, 1, 0.002, 0.0), 1e9, None, 0.5, 2, True)}
    settings = Settings("sync", 2, 3, 2, False, 0, "auto", "int8", False, 131072, 0, 67108864)
    profile = Profile(
        "worker:0", 3, 9.0, 0.01, 0.02, 90.0, {"compute": 0.01}, 0.0, 0.9, 2, settings, True, ps
    )
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))) == profile
    assert profile.ps["ps:0"].pull_rate == 2_000_000 and profile.ps["ps:0"].push_rate == 0.0


def test_how_much_steps_vary_is_not_told_by_the_one_that_was_held_up():
    steps = [statistics.NormalDist(0.5, 0.05).inv_cdf(n / 1000) for n in range(1, 1000)]
    assert spread(steps) == pytest.approx(0.1, rel=0.01)
    assert spread([*steps, 100.0]) == pytest.approx(0.1, rel=0.01)
    assert spread([0.5] * 20) == 0.0 and spread([0.5] * 7) is None
