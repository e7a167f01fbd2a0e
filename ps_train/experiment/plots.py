"""Pictures of an experiment, by matplotlib, as PNG and SVG; without it there are none, and a line says how to get them.

for title, name in draw_all("runs/e/plots", records, points):
    ...                                     # runs/e/plots/NAME.png and NAME.svg are there
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ps_train.experiment.comparisons import labels
from ps_train.experiment.grid import Point
from ps_train.experiment.results import DONE, Record, metric_names
from ps_train.experiment.table import RATE, Measure, Spread, measures_of, of_point, speed_ups

MISSING = (
    "No plots: matplotlib is not installed. Install it: pip install matplotlib, or in ps_train's checkout "
    "pip install '.[plots]'. The same command draws them then, and runs nothing again."
)
_SIZE, _DPI = (8.0, 4.6), 110
_X_OF_CURVES = {  # name -> column of a curve, key of an evaluation, label
    "steps": (1, "global_step", "global step"),
    "seconds": (0, "train_secs", "seconds of training"),
    "examples": (2, "examples", "examples of all workers"),
}
_MAX_LEGEND = 16
_LINEAR_STALENESS = 16


def draw_all(folder: str, records: Sequence[Record], points: Sequence[Point]) -> list[tuple[str, str]]:
    """Draws what there is data for; (title, name of the files) of each.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    os.makedirs(folder, exist_ok=True)
    done = [record for record in records if record["outcome"] == DONE]
    drawn = []
    with matplotlib.rc_context({"svg.hashsalt": "ps_train", "axes.grid": True, "grid.alpha": 0.3}):
        for title, name, draw in _pictures(done, points):
            figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
            axes = figure.add_subplot()
            figure.suptitle(title)
            draw(axes)
            _save_png(figure, os.path.join(folder, f"{name}.png"))
            figure.savefig(os.path.join(folder, f"{name}.svg"), metadata={"Date": None})
            drawn.append((title, name))
    return drawn


def _save_png(figure: Any, path: str) -> None:
    """With a palette that has every line's colour, in a third of the bytes: the page has all pictures in it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image  # matplotlib needs it

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    colours = picture.convert("RGB").quantize(
        256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    colours.save(path, optimize=True)


def _pictures(
    done: Sequence[Record], points: Sequence[Point]
) -> Iterator[tuple[str, str, Callable[[Any], None]]]:
    """(title, name, what draws it into axes) of each picture that there is data for."""
    if any(len(record["curve"]) > 1 for record in done):
        for name, (column, _, label) in _X_OF_CURVES.items():
            what = "loss of the chief, mean between two points"
            yield f"Loss by {name}", f"loss_by_{name}", _curves(done, points, _losses(column), label, what)
    for metric in metric_names(record for record in done if len(record["evaluations"]) > 1):
        for name, (_, key, label) in _X_OF_CURVES.items():
            title, what = f"Held-out {metric} by {name}", f"held-out {metric}"
            yield (
                title,
                f"held_out_{_word(metric)}_by_{name}",
                _curves(done, points, _values(key, metric), label, what),
            )
    if speed_ups(done, points):
        yield "Throughput by workers", "throughput", _throughput(done, points)
        yield "Speed-up by workers", "speed_up", _speed_up(done, points)
    for measure in measures_of(done):
        if measure.is_metric:
            yield (
                f"{measure.title} at the end".capitalize(),
                f"held_out_{_word(measure.name)}",
                _dots(done, points, measure),
            )
    if done:
        yield "Examples a second", "examples_per_sec", _dots(done, points, Measure(RATE, "examples/s"))
    if any(len(record["staleness_counts"]) > 1 for record in done):
        yield "Staleness of gradients", "staleness", _staleness(done, points)
    if any(record.get("step_parts") for record in done):
        yield "Where the time of a step goes", "step_parts", _step_parts(done, points)


def _colour(number: int, count: int) -> Any:
    import matplotlib

    name = "tab10" if count <= 10 else "turbo"
    return matplotlib.colormaps[name](number if count <= 10 else number / (count - 1))


def _word(metric: str) -> str:
    return re.sub(r"\W", "_", metric)


def _losses(column: int) -> Callable[[Record], list[tuple[Any, Any]]]:
    return lambda record: [(row[column], row[3]) for row in record["curve"]]


def _values(key: str, metric: str) -> Callable[[Record], list[tuple[Any, Any]]]:
    return lambda record: [(one[key], one["metrics"].get(metric)) for one in record["evaluations"]]


def _curves(
    done: Sequence[Record],
    points: Sequence[Point],
    pairs_of: Callable[[Record], list[tuple[Any, Any]]],
    label: str,
    what: str,
) -> Callable[[Any], None]:
    """A line for each run; `pairs_of` gives its points, of which those with a None are left out."""

    def draw(axes: Any) -> None:
        names = labels(done, points)
        for number, point in enumerate(points):
            for seed, record in enumerate(of_point(done, point)):
                pairs = [pair for pair in pairs_of(record) if None not in pair]
                if pairs:
                    axes.plot(
                        *zip(*pairs, strict=True), color=_colour(number, len(points)), alpha=0.75, linewidth=1.2,
                        marker="." if len(pairs) < 30 else None, label=None if seed else names[number],
                    )  # fmt: skip
        axes.set_xlabel(label)
        axes.set_ylabel(what)
        _legend(axes)

    return draw


def _throughput(done: Sequence[Record], points: Sequence[Point]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        lines = speed_ups(done, points)
        for number, line in enumerate(lines):
            colour = _colour(number, len(lines))
            means = [rate.mean for rate in line.rates.values()]
            axes.plot(list(line.rates), means, color=colour, label=line.label or "all points")
            for count, rate in line.rates.items():
                axes.plot([count] * len(rate.values), rate.values, "o", color=colour, alpha=0.5)
        axes.set_ylabel("examples/s, each seed a dot")
        axes.set_ylim(bottom=0)
        _by_workers(axes, lines)

    return draw


def _speed_up(done: Sequence[Record], points: Sequence[Point]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        lines = speed_ups(done, points)
        for number, line in enumerate(lines):
            factors = line.factors()
            axes.plot(
                list(factors), list(factors.values()), "o-", color=_colour(number, len(lines)),
                label=line.label or "all points",
            )  # fmt: skip
        most = max(max(line.rates) for line in lines)
        axes.plot([0, most], [0, most], "k--", linewidth=1, label="ideal")
        axes.set_ylabel("examples/s, the fewest workers as the ideal")
        _by_workers(axes, lines)

    return draw


def _by_workers(axes: Any, lines: Sequence[Any]) -> None:
    axes.set_xticks(sorted({count for line in lines for count in line.rates}))
    axes.set_xlabel("workers")
    _legend(axes)


def _dots(done: Sequence[Record], points: Sequence[Point], measure: Measure) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        for number, point in enumerate(points):
            values = Spread.of(measure, of_point(done, point)).values
            colour = _colour(number, len(points))
            axes.plot(values, [number] * len(values), "o", color=colour, alpha=0.7)
            if len(values) > 1:
                axes.plot([min(values), max(values)], [number] * 2, color=colour, linewidth=1)
        axes.set_yticks(range(len(points)), labels(done, points))
        axes.invert_yaxis()
        axes.margins(y=0.15)
        axes.set_xlabel(f"{measure.title}, each seed a dot")

    return draw


def _staleness(done: Sequence[Record], points: Sequence[Point]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        names = labels(done, points)
        for number, point in enumerate(points):
            counts: dict[int, int] = {}
            for record in of_point(done, point):
                for value, count in record["staleness_counts"].items():
                    counts[int(value)] = counts.get(int(value), 0) + count
            if counts:
                total, values = sum(counts.values()), sorted(counts)
                shares = [counts[value] / total for value in values]
                axes.plot(values, shares, "o-", color=_colour(number, len(points)), label=names[number])
        if axes.get_xlim()[1] > _LINEAR_STALENESS:
            axes.set_xscale(
                "symlog", linthresh=_LINEAR_STALENESS
            )  # a worker that comes late has one of hundreds
            axes.set_xlim(left=-0.5)
        axes.set_xlabel("staleness, in updates of other workers")
        axes.set_ylabel("share of the gradients of all seeds")
        axes.set_ylim(bottom=0)
        _legend(axes)

    return draw


def _step_parts(done: Sequence[Record], points: Sequence[Point]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        names = labels(done, points)
        parts = list(dict.fromkeys(part for record in done for part in record.get("step_parts") or {}))
        ends = [0.0] * len(points)
        for place, part in enumerate(parts):
            found = [
                [record["step_parts"][part] for record in of_point(done, point) if record.get("step_parts")]
                for point in points
            ]
            widths = [1000 * sum(values) / len(values) if values else 0.0 for values in found]
            axes.barh(range(len(points)), widths, left=ends, color=_colour(place, len(parts)), label=part)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        axes.set_yticks(range(len(points)), names)
        axes.invert_yaxis()
        axes.set_xlabel("ms of a worker's step, mean over workers and seeds")
        _legend(axes)

    return draw


def _legend(axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    if names:
        axes.legend(handles[:_MAX_LEGEND], names[:_MAX_LEGEND], fontsize="small")
