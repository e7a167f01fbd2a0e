"""What `plan` predicts against what was measured: `tests/benchmarks/plan_validation.py` prints all of it."""

import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))
import plan_validation as validation

MOST = 0.15  # error


def errors(cases):
    return {case.name: case.error for case in cases}


def test_our_own_scaling():
    found = errors(validation.ours())
    assert len(found) == 15 and max(map(abs, found.values())) < 0.1, found
    assert sum(abs(error) < 0.05 for error in found.values()) >= 14, found


def test_our_own_efficiencies():
    found = errors(validation.our_efficiencies())
    assert len(found) == 5 and max(map(abs, found.values())) < 0.1, found


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
