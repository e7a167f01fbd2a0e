"""What the contestants' programs have in common: their flags, and the file in which a worker tells how far it is.

    args = task.parse()
    progress = task.Progress()
    progress.begin()
    while True:
        progress.step(train_step())

The environment variable CONTEST_PROGRESS names the file; without it nothing is written. A line is the number of steps, the
monotonic clock, which all processes of a machine share, and the loss; there is one every 20 ms at most.
"""

import argparse
import os
import pathlib
import time

VARIABLE = "CONTEST_PROGRESS"
EVERY_SECS = 0.02
CHIEF = "worker0"
WAIT_SECS = 120


def parse():
    """The flags of this task."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", required=True)
    parser.add_argument("--job_name", default="worker")
    parser.add_argument("--task_index", type=int, default=0)
    for job in ("ps", "worker", "chief"):
        parser.add_argument(f"--{job}_hosts", type=lambda text: text.split(","), default=[])
    parser.add_argument("--update", default="async")
    parser.add_argument("--records", default="")
    return parser.parse_args()


class Progress:
    """Writes the lines."""

    def __init__(self):
        path = os.environ.get(VARIABLE)
        self._file = open(path, "w", buffering=1) if path else None
        self._count, self._due = 0, 0.0

    def begin(self):
        """The task has all it needs for its first step."""
        self.at(0, float("nan"))

    def step(self, loss):
        """One more."""
        self._count += 1
        if time.monotonic() >= self._due:
            self.at(self._count, loss)

    def at(self, count, loss):
        """So many by now."""
        now = time.monotonic()
        self._due = now + EVERY_SECS
        if self._file:
            print(count, now, float(loss), file=self._file)


def wait_for_chief():
    """Until worker 0 has a session: whoever comes earlier waits 30 s more, TensorFlow's pause between two looks."""
    path = pathlib.Path(os.environ[VARIABLE]).with_name(CHIEF)
    deadline = time.monotonic() + WAIT_SECS
    while not (path.exists() and path.stat().st_size):
        if time.monotonic() > deadline:
            raise SystemExit(f"worker 0 has no session after {WAIT_SECS} s")
        time.sleep(0.05)
