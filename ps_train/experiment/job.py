"""A whole experiment: its directory, its runs, and the files that tell of them; gives the exit status.

    status = run_experiment("runs/e", points, runs)

DIR holds `runs/`, a folder for each run, and then runs.csv, evaluations.csv, curves.csv, plots/ and report.html, which are written
anew by each call, a stopped one included, from the records of the runs that have ended.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, UsageError
from ps_train.experiment import page, plots, results
from ps_train.experiment.grid import Point, axes_of
from ps_train.experiment.results import DONE, Record
from ps_train.experiment.run import Experiment, locked, start_run
from ps_train.experiment.runs import Run, conflicts
from ps_train.process import SignalInbox
from ps_train.progress import Screen
from ps_train.whole_files import write_text
from ps_train.wording import counted

LOCK_SECS = 30.0  # a job that has been told to end needs about ten


def run_experiment(out: str, points: Sequence[Point], runs: Sequence[Run]) -> int:
    """Runs what has no result yet, and writes all files.

    Args:
      out: the directory.
      points: of the grid.
      runs: all of them, in order, in folders below `out`/runs.

    Returns:
      int: 0 if all runs have succeeded, 1 if one has failed, 128 + the number of the signal that ended it.

    Raises:
      UsageError: the directory cannot be made or is in use, or has other results.
    """
    screen = Screen()
    try:
        os.makedirs(os.path.join(out, "runs"), exist_ok=True)
        with locked(out, LOCK_SECS, screen.say) as lock:
            problems = conflicts(runs)
            if problems:
                raise UsageError.from_problems(problems)
            with SignalInbox() as inbox:
                records, number = Experiment(runs, lambda run: start_run(run, lock), screen).run(inbox)
            write_files(out, points, runs, records, screen)
    except OSError as error:
        raise UsageError(f"--out={out} cannot be used: {error}. Choose another one, or make room.") from None
    num_failed = sum(record["outcome"] != DONE for record in records)
    screen.say(_last_words(out, len(runs), len(records), num_failed))
    if number is not None:
        return 128 + number
    return EXIT_PERMANENT if num_failed else EXIT_DONE


def write_files(
    out: str, points: Sequence[Point], runs: Sequence[Run], records: Sequence[Record], screen: Screen
) -> None:
    """The tables, the plots and the page; raises OSError."""
    axes = axes_of(points)
    for name, make in (
        ("runs", results.run_rows),
        ("evaluations", results.evaluation_rows),
        ("curves", results.curve_rows),
    ):
        write_text(os.path.join(out, f"{name}.csv"), results.as_csv(make(records, axes)))
    folder, note = pathlib.Path(out, "plots"), ""
    drawn: list[tuple[str, str]] = []
    try:
        if records:
            drawn = plots.draw_all(str(folder), records, points)
    except ImportError:
        note = plots.MISSING
        screen.say(note)
    pictures = [(title, (folder / f"{name}.png").read_bytes()) for title, name in drawn]
    first_runs = {run.point: run for run in reversed(runs)}
    commands = [(point.text, first_runs[point].command(first_runs[point].args_elsewhere)) for point in points]
    content = page.Content(
        f"Experiment {os.path.basename(os.path.abspath(out))}",
        records,
        points,
        len(runs),
        commands,
        pictures,
        note,
    )
    write_text(os.path.join(out, "report.html"), page.as_html(content))


def _last_words(out: str, num_runs: int, num_ended: int, num_failed: int) -> str:
    text = f"{num_ended - num_failed} of {counted(num_runs, 'run')} done"
    text += f", {num_failed} failed" if num_failed else ""
    if num_ended < num_runs or num_failed:
        text += "; the same command again runs what is missing"
    return f"{text}. Report: {os.path.join(out, 'report.html')}"
