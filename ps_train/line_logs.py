"""The lines of launched tasks: a file for each task, in --log_dir on the launcher's host, and the warnings among them.

    with LineLogs("logs", [TaskId("worker", 0)], screen.complain) as logs:
        logs.write(TaskId("worker", 0), "step 7")
        logs.name(TaskId("worker", 0))      # 'logs/worker0.log'

All files are opened before anything starts. One that cannot be written later, as on a full disk, costs the job its lines there: that is said once, and each line tried.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import IO

from ps_train.cluster import TaskId
from ps_train.config import TrainConfig
from ps_train.local_config import log_path, unwritable_log


class LineLogs:
    """The files, or none without a directory.

    Args:
      directory: where, or None.
      tasks: whose.
      complain: says what cannot be written.

    Raises:
      UsageError: a file cannot be opened.
    """

    def __init__(self, directory: str | None, tasks: Iterable[TaskId], complain: Callable[[str], None]):
        self._complain, self._reasons = complain, set[str | None]()
        self._files: dict[TaskId, IO[bytes]] = {}
        try:
            for task in tasks if directory is not None else ():
                self._open(task, log_path(TrainConfig(log_dir=directory), task))
        except BaseException:
            self.close()
            raise

    def _open(self, task: TaskId, path: str) -> None:
        try:
            self._files[task] = open(path, "ab", buffering=0)  # with a buffer what failed would fail again
        except OSError as error:
            raise unwritable_log(path, task, error) from None

    def name(self, task: TaskId) -> str | None:
        """The path of a task's file."""
        return str(self._files[task].name) if task in self._files else None

    def write(self, task: TaskId, line: str) -> None:
        """Adds a line."""
        if task not in self._files:
            return
        try:
            self._files[task].write(f"{line}\n".encode())
        except OSError as error:
            if error.strerror not in self._reasons:
                self._reasons.add(error.strerror)
                self._complain(
                    f"{self.name(task)} cannot be written: {error.strerror}. The job goes on, and lines are missing there."
                )

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> LineLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Warnings:
    """Finds what tasks warn of in their lines; the same in other numbers or of another task is left out for REPEAT_SECS.

    >>> warnings, task = Warnings(), TaskId("worker", 1)
    >>> warnings.find(task, "10:11:12 worker:1 warning: step dropped (1 so far)", 0.0)
    'worker:1 warning: step dropped (1 so far)'
    >>> warnings.find(task, "10:11:22 worker:1 warning: step dropped (9 so far)", 10.0)

    An error that ends a task is not found: whoever has started the task tells its end.
    """

    REPEAT_SECS = 60.0

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def find(self, task: TaskId, line: str, now: float) -> str | None:
        """What to show of a line, or None; `now` in seconds."""
        found = re.match(rf"\d\d:\d\d:\d\d {task} ((warning|error): .*)", line)
        if not found or (found[2] == "error" and re.search(r"\(status \d+\)$", line)):
            return None
        kind = re.sub(r"\d+", "#", found[1])
        if now - self._told_at.get(kind, float("-inf")) < self.REPEAT_SECS:
            return None
        self._told_at[kind] = now
        return f"{task} {found[1]}"
