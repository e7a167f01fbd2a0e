"""The newest evaluation of a job: the evaluator leaves it in train_dir, and the chief, who writes there, too, tells the boards.

    write_result("runs/mine", "step 400: accuracy 0.9733, loss 0.1021 (300 examples)")        # the evaluator
    EvaluationWatch("runs/mine", monitor.post).start()                                        # the chief

The evaluator is no part of the cluster. Whoever watches the job over the boards has its result in this way.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ps_train.whole_files import write_text

EVALUATION = "evaluation"  # in the chief's record
LOOK_SECS = 2.0
_NAME = os.path.join("eval", "newest")


def write_result(train_dir: str, text: str) -> None:
    """Leaves a line for the chief; a reader never sees half of it. What cannot be written is left out: the log has it, too."""
    with contextlib.suppress(OSError):
        write_text(os.path.join(train_dir, _NAME), text + "\n")


def read_result(train_dir: str) -> str:
    """The newest line, or "" if there is none."""
    path = os.path.join(train_dir, _NAME)
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""


class EvaluationWatch:
    """Looks for a new result every two seconds, in a thread, as a file system may hang.

    Args:
      train_dir: where.
      post: changes this task's record.
    """

    def __init__(self, train_dir: str, post: Callable[..., None]):
        self._train_dir, self._post = train_dir, post
        self._told = ""

    def start(self) -> None:
        """Starts the daemon thread."""
        threading.Thread(target=self._run, daemon=True, name="ps_train-evaluation").start()

    def look(self) -> None:
        """Posts the result if it is another one."""
        found = read_result(self._train_dir)
        if found and found != self._told:
            self._told = found
            self._post(**{EVALUATION: found})

    def _run(self) -> None:
        never = threading.Event()
        while True:
            self.look()
            never.wait(LOOK_SECS)
