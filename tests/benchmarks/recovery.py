"""How long a job takes to its next step after a fault, and what is lost: the cells of the failure matrix, measured.

    python tests/benchmarks/recovery.py [REPEATS] [PART_OF_A_CELL'S_NAME]

    python tests/benchmarks/recovery.py 3 ps-kill_restart

Runs each cell of `tests/cluster/faults.py` REPEATS times (default 1), one after another, and prints the seconds from the fault
to a survivor's next step, and the steps lost, as median (range). A cell whose job ends has no recovery. A cell that does not
end as the README's table says is printed as FAILED, with the reason, and makes the exit status 1.
"""

import itertools
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))

from faults import CELLS, run_cell
from harness import Job


def measure(cell):
    """A Result of the cell; the tasks are ended whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = []

        def make_job(*args, **kwargs):
            jobs.append(Job(pathlib.Path(folder), *args, **kwargs))
            jobs[-1].is_fresh = True  # what is started again has TensorFlow to import, as in real life
            return jobs[-1]

        try:
            return run_cell(make_job, cell)
        finally:
            for job in jobs:
                job.__exit__()


def show(cell, results):
    """A line of the table."""
    recoveries = [result.recovery_secs for result in results if result.recovery_secs is not None]
    lost = [result.steps_lost for result in results]
    recovery = (
        "the job ends"
        if not recoveries
        else f"{statistics.median(recoveries):.1f} s {spread(recoveries, '.1f')}"
    )
    print(
        f"{str(cell):32} {recovery:24} lost {statistics.median(lost):.0f} {spread(lost, '.0f')}", flush=True
    )


def spread(values, form):
    """The range in brackets."""
    return f"({min(values):{form}}-{max(values):{form}})"


def main():
    """Runs and prints; the exit status."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    status = 0
    for cell in CELLS:
        if part not in str(cell):
            continue
        results = []
        for _ in itertools.repeat(None, repeats):
            try:
                results.append(measure(cell))
            except AssertionError as error:
                print(f"{str(cell):32} FAILED: {error}", flush=True)
                status = 1
        if results:
            show(cell, results)
    return status


if __name__ == "__main__":
    sys.exit(main())
