"""The report file: what a task did and how it ended, as JSON, written atomically whatever the outcome.

report = Report(TaskId("worker", 0), is_chief=True)
report.global_step = 200
report.write("report.json", exit_status=0)
"""

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field

from ps_train.cluster import TaskId
from ps_train.errors import EXIT_DONE, EXIT_SIGINT, EXIT_SIGTERM


@dataclass
class Report:
    """What the report file holds; the loop keeps it up to date, so that it is true at any moment."""

    task: TaskId
    is_chief: bool = False
    reason: str = ""
    global_step: int | None = None
    local_steps: int = 0
    skipped_steps: int = 0
    examples: int = 0
    restored_from: str | None = None
    checkpoint: str | None = None
    loss: float | None = None
    metrics: dict | None = None
    num_params: int | None = None
    started: float = field(default_factory=time.time)
    train_started: float | None = None
    train_secs: float = 0.0

    def as_dict(self, exit_status, reason=None):
        """The file's content."""
        values = asdict(self)
        task = values.pop("task")
        values.pop("train_started")
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
        """Writes the file, or nothing if `path` is empty; never leaves half a file."""
        if not path:
            return
        directory = os.path.dirname(os.path.abspath(path))
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=directory, prefix=".report-", delete=False) as file:
            json.dump(self.as_dict(exit_status, reason), file)
        os.replace(file.name, path)
