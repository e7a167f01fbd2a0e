"""What `plan` predicts against what was measured: `tests/benchmarks/plan_validation.py` prints all of it."""

import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))
import plan_validation as validation

MOST = 0.15  # error, where the machine is not the limit


def errors(cases):
    return {case.name: case.error for case in cases}


def test_our_own_scaling():
    cases = list(validation.ours())
    free = errors(case for case in cases if not case.limit)
    limited = errors(case for case in cases if case.limit)
    assert len(free) == 12 and all(abs(error) < 0.05 for error in free.values()), free
    assert len(limited) == 2 and all(0.05 < error < 0.2 for error in limited.values()), limited


def test_our_own_efficiencies():
    for case in validation.our_efficiencies():
        assert abs(case.error) < MOST and (case.limit or abs(case.error) < 0.05), case


def test_published_figures_are_between_what_no_overlap_and_all_there_can_be_would_give():
    cases = list(validation.on_amazon())
    outside = [
        case.name for case in cases if not 0.99 * case.predicted <= case.measured <= 1.01 * case.at_best
    ]
    assert len(cases) == 19 and outside == ["InceptionV3, batches of 64, 128 GPUs, 16 ps"], outside
    middles = [abs((case.error + case.error_at_best) / 2) for case in cases]
    assert statistics.fmean(middles) < 0.04 and max(middles) < 0.1, middles
    assert statistics.fmean(abs(case.error) for case in cases) < 0.08
    assert max(abs(case.error) for case in cases) < 0.25


def test_a_published_plateau():
    found = {case.name: case for case in validation.plateau()}
    assert (
        abs(found["one ps, 8 workers"].error) < MOST and abs(found["one ps, 2 workers"].error_at_best) < 0.05
    )
    assert found["one ps, 8 workers"].predicted / found["one ps, 4 workers"].predicted < 1.1
