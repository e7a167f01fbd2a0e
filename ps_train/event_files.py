"""A run of TensorBoard: a directory with one event file of this process, in which what is added later never overlaps what is there.

    run = open_run("runs/1/worker_1", first_step=1)
    run.add(100, {"loss": 0.3, "staleness/histogram": Histogram(...)})
    run.restart(61)                 # the model has gone back to step 60
    run.flush()

TensorFlow's own writer is used, so the package `tensorboard` is needed for looking only. A file begins with a START of the step
from which on what earlier files of the directory hold is void: so does TensorBoard take it, and so it shows one curve after a job
has been started again from a checkpoint. `restart` says the same in the middle of a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ps_train.compat import tf1
from ps_train.staleness import Histogram


def open_run(directory: str, first_step: int) -> EventRun:
    """The EventRun of a directory that nothing else of this process writes in."""
    # TensorFlow's names have the second and the host: a process that is started again soon would overwrite the file.
    writer = tf1.summary.FileWriter(directory, filename_suffix=f".{os.getpid()}")
    return EventRun(writer, first_step)


class EventRun:
    """What goes into one directory; for one thread.

    Args:
      writer: `tf1.summary.FileWriter` on it.
      first_step: nothing of this step or a later one is to stay of what the directory holds.
    """

    def __init__(self, writer: Any, first_step: int):
        self._writer = writer
        self._last_step = 0
        self._is_flushed = True
        self.restart(first_step)

    def restart(self, step: int) -> None:
        """Voids what was added at this step and later ones."""
        self._writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), step)
        self._last_step, self._is_flushed = step - 1, False

    def add(self, step: int, values: Mapping[str, float | Histogram], summaries: Any = None) -> None:
        """Adds what belongs to a global step; one before the last that was added voids that.

        Args:
          step: global step.
          values: tag -> number or Histogram.
          summaries: the user's, a serialized `Summary`, or None; a tag of theirs is left out of `values`.
        """
        if step < self._last_step:
            self.restart(step)
        summary = tf1.Summary.FromString(summaries or b"")
        taken = {value.tag for value in summary.value}
        summary.value.extend(_as_value(tag, value) for tag, value in values.items() if tag not in taken)
        self._writer.add_summary(summary, step)
        self._last_step, self._is_flushed = step, False

    def flush(self) -> None:
        """Lets readers see what was added; raises OSError or a `tf.errors.OpError` if it cannot be written."""
        if not self._is_flushed:
            self._writer.flush()
            self._is_flushed = True

    def reopen(self) -> None:
        """Goes on in a new file, after one that could not be written."""
        self._writer.close()
        self._writer.reopen()


def _as_value(tag: str, value: float | Histogram) -> Any:
    if not isinstance(value, Histogram):
        return tf1.Summary.Value(tag=tag, simple_value=value)
    limits, counts = value.edges()
    histo = tf1.HistogramProto(
        min=value.least, max=value.most, num=value.number, sum=value.total, sum_squares=value.squares,
        bucket_limit=limits, bucket=counts,
    )  # fmt: skip
    return tf1.Summary.Value(tag=tag, histo=histo)
