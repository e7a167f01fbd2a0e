"""The sweep over a step's intervals, against a slow oracle; what is shared by two clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_train.timeline import COMPUTE, OTHER, Span, attribute, clock_shift, covered_secs

KINDS = (COMPUTE, "input", "pull", "push")
SPANS = st.lists(
    st.builds(lambda kind, start, length: Span(kind, start, start + length), st.sampled_from(KINDS),
              st.integers(-3, 20), st.integers(0, 9)),
    max_size=12,
)  # fmt: skip


def oracle(spans, start, end):
    """Looks at the middle of each unit of time."""
    parts = {}
    for left in range(start, end):
        under_way = [span for span in spans if span.start <= left < span.end]
        last = max((span.end for span in under_way), default=0)
        kinds = {span.kind for span in under_way if span.end == last} or {OTHER}
        if any(span.kind == COMPUTE for span in under_way):
            kinds = {COMPUTE}
        parts[frozenset(kinds)] = parts.get(frozenset(kinds), 0) + 1
    return parts


@given(SPANS, st.integers(0, 10), st.integers(1, 15))
def test_the_sweep_is_the_oracles(spans, start, length):
    end = start + length
    parts = attribute(spans, start, end)
    assert sum(parts.values()) == length
    expected = oracle(spans, start, end)
    for kind in {*parts, *(each for kinds in expected for each in kinds)}:
        surely = expected.get(frozenset([kind]), 0)
        perhaps = sum(
            secs for kinds, secs in expected.items() if kind in kinds
        )  # others end at the same time
        assert surely <= parts.get(kind, 0) <= perhaps


@given(SPANS)
def test_what_is_covered_is_what_is_not_other(spans):
    assert covered_secs(spans) == 40 - attribute(spans, -5, 35).get(OTHER, 0)


def test_a_wait_that_another_hides_costs_nothing():
    assert attribute([Span("pull", 0, 3), Span("input", 0, 10)], 0, 10) == {"input": 10}
    assert attribute([Span("pull", 0, 10), Span("input", 2, 3)], 0, 10) == {"pull": 10}


def test_no_span():
    assert attribute([], 1.0, 3.0) == {OTHER: 2.0}
    assert covered_secs([]) == 0.0


@pytest.mark.parametrize(
    "lowest, highest, shift",
    [
        (float("-inf"), float("inf"), 0.0),
        (0.25, float("inf"), 0.25),
        (float("-inf"), -0.5, -0.5),
        (0.5, 0.25, 0.375),
        (1.0, 2.0, 1.5),
        (-3.0, -1.0, -2.0),
    ],
)
def test_clock_shift(lowest, highest, shift):
    assert clock_shift(lowest, highest) == shift
