"""What the benchmarks share: a table of times with their ratios, the step that a log shows, a process's processor time."""

import os
import pathlib
import re
import statistics


def print_rows(names, rounds, unit, digits):
    """Prints a line for each column of `rounds`: median (range) in seconds, and of the ratios to the first column.

    Args:
      names: of the columns.
      rounds: lists of seconds, one for each repeat.
      unit: what the first column is called in the ratios.
      digits: of the seconds.
    """
    width = max(map(len, names)) + 1
    for name, values in zip(names, zip(*rounds, strict=True), strict=True):
        ratios = [value / first for value, (first, *_) in zip(values, rounds, strict=True)]
        secs = (
            f"{statistics.median(values):6.{digits}f} s ({min(values):.{digits}f}-{max(values):.{digits}f})"
        )
        print(
            f"{name:<{width}} {secs}   {statistics.median(ratios):5.2f} {unit} ({min(ratios):.2f}-{max(ratios):.2f})"
        )


def last_step(log):
    """The newest step in a task's log; 0 if there is none yet."""
    found = re.findall(r" step (\d+)", log)
    return int(found[-1]) if found else 0


def cpu_secs(pid):
    """Processor time of a process so far, user's and system's; OSError if it is gone."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
