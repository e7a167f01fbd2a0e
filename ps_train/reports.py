"""The report file: what a task did and how it ended, as JSON, written atomically whatever the outcome.

report = Report(TaskId("worker", 0), is_chief=True)
report.global_step = 200
report.write("report.json", exit_status=0)       # True, or False and a line in the log
"""

import time
from dataclasses import asdict, dataclass, field

from ps_train.cluster import TaskId
from ps_train.errors import EXIT_DONE, EXIT_SIGINT, EXIT_SIGTERM
from ps_train.logs import log
from ps_train.processors import cpu_secs
from ps_train.whole_files import write_json


@dataclass
class Report:
    """What the report file holds; the loop keeps it up to date, so that it is true at any moment."""

    task: TaskId
    is_chief: bool = False
    reason: str = ""
    global_step: int | None = None
    local_steps: int = 0
    skipped_steps: int = 0
    dropped_gradients: int = 0
    examples: int = 0
    staleness: float | None = None
    staleness_counts: dict[int, int] | None = None
    restored_from: str | None = None
    checkpoint: str | None = None
    loss: float | None = None
    curve: list[list[float]] | None = None
    metrics: dict | None = None
    evaluations: list[dict] | None = None
    started: float = field(default_factory=time.time)
    train_secs: float = 0.0
    cpu_secs: float | None = None
    profile: dict | None = None
    transport: str | None = None
    trace: str | None = None

    def begin_training(self):
        """Processor time counts from here on; a later call changes nothing."""
        if self.cpu_secs is None:
            self._cpu_start, self.cpu_secs = cpu_secs(), 0.0

    def counts(self):
        """For this task's record on the boards: what its steps have come to."""
        return {
            "step": self.global_step,
            "local_steps": self.local_steps,
            "examples": self.examples,
            "secs": round(self.train_secs, 3),
        }

    def note_finished(self, checkpoint, train_steps, global_step):
        """The job's target was reached before this task started."""
        self.reason = f"{checkpoint} has reached the target of {train_steps} steps: nothing to do"
        self.global_step = global_step

    def as_dict(self, exit_status, reason=None):
        """The file's content."""
        if self.cpu_secs is not None:
            self.cpu_secs = round(cpu_secs() - self._cpu_start, 3)
        values = asdict(self)
        task = values.pop("task")
        outcome = "done" if exit_status == EXIT_DONE else "failed"
        if exit_status in (EXIT_SIGINT, EXIT_SIGTERM):
            outcome = "stopped"
        rate = self.local_steps / self.train_secs if self.train_secs > 0 else None
        return {
            "job": task["job"],
            "task": task["index"],
            "outcome": outcome,
            "exit_status": exit_status,
            **values,
            "reason": self.reason if reason is None else reason,
            "steps_per_sec": rate,
        }

    def write(self, path, exit_status, reason=None):
        """Writes the file, or nothing if `path` is empty; never leaves half a file.

        Returns:
          bool: False if it cannot be written. That is logged and not raised: the task's outcome stays what it is.
        """
        if not path:
            return True
        try:
            write_json(path, self.as_dict(exit_status, reason))
        except OSError as error:
            log.error(
                "the report %s cannot be written: %s. Check --report_file.", path, error.strerror or error
            )
            return False
        return True
