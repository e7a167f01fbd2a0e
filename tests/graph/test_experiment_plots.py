"""The pictures of an experiment: which there are, and that they are files of their kind."""

import pathlib
import sys

import pytest

from ps_train.experiment import plots
from ps_train.experiment.grid import make_points

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "pure"))
from test_experiment_words import record

pytest.importorskip("matplotlib", reason="no matplotlib: pip install matplotlib")
pytestmark = pytest.mark.graph


@pytest.fixture
def points():
    return make_points(["update=async,sync num_workers=1,2"])


def names(drawn):
    return [name for _, name in drawn]


def test_what_there_is_data_for_is_drawn(points, tmp_path):
    records = [record(point, seed, 100.0 + seed) for point in points for seed in (1, 2)]
    records[0]["staleness_counts"] = {"0": 3, "1": 5}
    records[1]["curve"] = [[0.5, 5, None, None], [1.0, 6, 7, 1.0]]  # of a loss that was NaN
    drawn = plots.draw_all(str(tmp_path), records, points)
    assert names(drawn) == [
        "loss_by_steps", "loss_by_seconds", "loss_by_examples", "held_out_accuracy_by_steps", "held_out_accuracy_by_seconds",
        "held_out_accuracy_by_examples", "throughput", "speed_up", "held_out_accuracy",
        "examples_per_sec", "staleness",
    ]  # fmt: skip
    for _, name in drawn:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()


def test_nothing_is_drawn_of_what_there_is_not(points, tmp_path):
    (one,) = [record(points[0], 1)]
    one["metrics"], one["evaluations"], one["curve"] = {}, [], one["curve"][:1]
    assert names(plots.draw_all(str(tmp_path), [one], points)) == ["examples_per_sec"]
    failed = record(points[0], 1, outcome="failed")
    assert names(plots.draw_all(str(tmp_path), [failed], points)) == []


def test_lines_and_dots_are_the_figures(points):
    from matplotlib.figure import Figure

    rates = dict(zip(points, (100.0, 150.0, 80.0, 160.0), strict=True))
    records = [record(point, seed, rate) for point, rate in rates.items() for seed in (1, 2)]
    axes = Figure().add_subplot()
    plots._speed_up(records, points)(axes)
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
    assert lines == {
        "update=async": ([1, 2], [1.0, 1.5]), "update=sync": ([1, 2], [1.0, 2.0]), "ideal": ([0, 2], [0, 2]),
    }  # fmt: skip
    axes = Figure().add_subplot()
    plots._curves(records, points, plots._losses(1), "global step", "loss")(axes)
    assert len(axes.get_lines()) == 8 and list(axes.get_lines()[0].get_xdata()) == [5, 20]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [point.text for point in points]


def test_metrics_are_drawn_over_steps_seconds_and_examples(points):
    from matplotlib.figure import Figure

    records = [record(points[0], 1, rate=64.0, accuracy=0.8)]
    for key, places in (("global_step", [5, 20]), ("train_secs", [5.0, 20.0]), ("examples", [320, 1280])):
        axes = Figure().add_subplot()
        plots._curves(records, points, plots._values(key, "accuracy"), "x", "y")(axes)
        (line,) = axes.get_lines()
        assert (list(line.get_xdata()), list(line.get_ydata())) == (places, [0.4, 0.8])


def test_a_picture_of_few_bytes_has_the_colours_of_its_lines(points, tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image

    records = [record(point, seed, 100.0 + seed) for point in points for seed in (1, 2, 3)]
    for one in records:
        one["curve"] = [
            [0.1 * k, k, 64 * k, (3 + one["seed"] * np.sin(k)) / (k + len(one["name"]))] for k in range(1, 60)
        ]
    plots.draw_all(str(tmp_path), records, points)
    few = Image.open(tmp_path / "loss_by_steps.png")
    assert few.mode == "P"
    monkeypatch.setattr(plots, "_save_png", lambda figure, path: figure.savefig(path))
    plots.draw_all(str(tmp_path / "all"), records, points)
    path = tmp_path / "all" / "loss_by_steps.png"
    full = np.asarray(Image.open(path).convert("RGB"), int)
    assert np.abs(np.asarray(few.convert("RGB"), int) - full).max() < 32
    assert (tmp_path / "loss_by_steps.png").stat().st_size < 0.5 * path.stat().st_size


def test_the_parts_of_a_step_are_stacked(points):
    import numpy as np
    from matplotlib.figure import Figure

    records = [record(point, seed) for point in points[:2] for seed in (1, 2)]
    for one, wait in zip(records, (0.001, 0.003, 0.005, 0.007), strict=True):
        one["step_parts"] = {"input": 0.004, "wait": wait}
    axes = Figure().add_subplot()
    plots._step_parts(records, points)(axes)
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    inputs, waits = bars[:4], bars[4:]
    assert np.allclose(inputs, [(0, 4), (0, 4), (0, 0), (0, 0)])
    assert np.allclose(waits, [(4, 2), (4, 6), (0, 0), (0, 0)])
    assert axes.get_xlabel().startswith("ms of a worker's step")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["input", "wait"]


def test_many_points_have_colours_of_their_own():
    assert len({plots._colour(number, 12) for number in range(12)}) == 12
    assert len({plots._colour(number, 10) for number in range(10)}) == 10
