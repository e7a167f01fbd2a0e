"""An experiment as one HTML file that needs nothing beside it: words, table, pictures, machine, runs, commands.

text = as_html(Content("runs/e", records, points, num_runs=12, plots=[("Loss by steps", png_bytes)]))
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from ps_train.experiment import words
from ps_train.experiment.grid import Point
from ps_train.experiment.results import Record
from ps_train.experiment.table import rows
from ps_train.wording import as_bytes, counted

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 80em; margin: 2em auto; padding: 0 1em; color: #222; }
p, ul { max-width: 62em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid #ccc; padding: 3px 6px; text-align: right; vertical-align: top; }
small { white-space: nowrap; color: #666; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.6em; overflow-x: auto; font-size: 12px; }
img { max-width: 100%; }
"""
_MACHINE = {
    "processor": "processor", "cores": "processors that may be used", "cores_allowed": "time of processors that the cgroup allows",
    "memory_bytes": "memory", "system": "system", "host": "host", "python": "Python", "ps_train": "ps_train",
    "tensorflow": "TensorFlow", "numpy": "NumPy", "grpcio": "grpcio",
}  # fmt: skip


class Content(NamedTuple):
    """What a page shows.

    Attributes:
      title: its heading.
      records: of the runs that have ended, in order.
      points: of the grid.
      num_runs: how many there are to be.
      commands: (point, the command that repeats it), for a shell.
      plots: (title, PNG) of each; `note` is shown in their place if there are none.
    """

    title: str
    records: Sequence[Record]
    points: Sequence[Point]
    num_runs: int
    commands: Sequence[tuple[str, str]]
    plots: Sequence[tuple[str, bytes]]
    note: str = ""


def as_html(content: Content) -> str:
    """The whole file."""
    records, points = content.records, content.points
    parts = [
        f"<h1>{escape(content.title)}</h1>",
        f"<p>{counted(len(points), 'point')}, {len(records)} of {counted(content.num_runs, 'run')} ended.</p>",
        *_in_short(records, points),
        "<h2>What the figures support</h2>",
        _listed(words.conclusions(records, points, content.num_runs) or ["There is nothing to compare."]),
        "<h2>What to know before believing them</h2>",
        _listed(words.limits(records, points) or ["No run has come to its end."]),
        "<h2>Figures</h2>",
        "<p>Means over the seeds, and in brackets the least and the largest. Speeds are those of the steps after "
        "each worker had made its first, by the chief's clock, so that no wait for the start of others is in them; training s is what all "
        "steps of a run take at that speed. Examples are those whose gradients were used; CPU s is the processor time of all tasks.</p>",
        _table(rows(records, points)),
        "<h2>Plots</h2>",
        *(_picture(title, png) for title, png in content.plots),
        *([f"<p>{escape(content.note)}</p>"] if content.note else []),
        "<h2>Machine</h2>",
        *_machines(records),
        "<h2>Runs</h2>",
        "<p>Load is the mean number of processes that ran or wanted to in the minute before, those of the run before included; "
        "others: processors that were busy with something else during the run.</p>",
        _table(_run_table(records)),
        "<h2>To repeat a point</h2>",
        "<p>With another --seed for another run; without --train_dir each makes a directory of its own.</p>",
        *(f"<p>{escape(point)}</p><pre>{escape(command)}</pre>" for point, command in content.commands),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(content.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _in_short(records: Sequence[Record], points: Sequence[Point]) -> list[str]:
    found = words.answers(records, points)
    what = (
        "What becomes of the means when one setting takes the place of another. Where the ranges of the seeds overlap, that is "
        "called no difference."
    )
    return ["<h2>In short</h2>", f"<p>{what}</p>", _listed(found)] if found else []


def _listed(sentences: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "\n</ul>"


def _table(cells: Sequence[Sequence[Any]]) -> str:
    """In a box of its own, where it scrolls if even so it is too wide."""
    head, *body = cells
    lines = ["<tr>" + "".join(f"<th>{_cell(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(value: Any) -> str:
    """A name may go on in a new line behind its punctuation; a range in brackets has a line of its own, unbroken."""
    text = re.sub(r"([_.,=])(?=[^\W\d])", r"\1<wbr>", escape(str(value)))
    return re.sub(r" (\([-\d.e+]+\))$", r" <br><small>\1</small>", text)


def _picture(title: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(title)}" src="data:image/png;base64,{data}"></p>'


def _machines(records: Sequence[Record]) -> list[str]:
    """A table for each machine, or set of versions, that runs were made on; in general one."""
    different: list[dict[str, Any]] = []
    for record in records:
        if record["machine"] not in different:
            different.append(record["machine"])
    return [
        _table([["what", "value"], *([label, _value(key, machine[key])] for key, label in _MACHINE.items())])
        for machine in different
    ]


def _value(key: str, value: Any) -> str:
    if value is None:
        return "all" if key == "cores_allowed" else "not known"
    return as_bytes(value) if key.endswith("_bytes") else str(value)


def _run_table(records: Sequence[Record]) -> list[list[str]]:
    table = [
        [
            "run",
            "outcome",
            "started",
            "wall s",
            "load before",
            "load after",
            "free memory",
            "others",
            "reason",
        ]
    ]
    for record in records:
        free, others = record["before"]["free_bytes"], record.get("others_cores")
        table.append([
            record["name"], record["outcome"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["started"])),
            f"{record['figures']['wall_secs']:.1f}", _or_not_known(record["before"]["load"]),
            _or_not_known(record["after"]["load"]), "not known" if free is None else as_bytes(free),
            _or_not_known(others), record["reason"],
        ])  # fmt: skip
    return table


def _or_not_known(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"
