"""The failure policies: which task of a job is to blame, and which one the job goes on without. No process in it.

policy = Policy(cluster, config)
policy.note(End(TaskId("worker", 1), 137, "ended by SIGKILL", "logs/worker1.log", signal.SIGKILL))   # True: it is lost
policy.note(End(TaskId("worker", 0), 1, "no loss", "logs/worker0.log"))                              # False
policy.find_failure(time.monotonic())       # Failure: worker:0 failed (status 1): no loss
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_SIGINT, EXIT_SIGTERM, blamed, is_worth_a_restart
from ps_train.process import signal_name
from ps_train.quorum import num_needed

BLAME_SECS = 5.0
ROOT_CAUSE_SECS = 0.5


class End(NamedTuple):
    """How a task ended.

    Attributes:
      task: which.
      status: its exit status.
      reason: a line of text.
      log: path of its log, and what is worth to be known about it.
      ended_by: the signal that ended it, None if it ended by itself.
      is_cut_off: its host is out of reach; how it ended there, nobody knows.
    """

    task: TaskId
    status: int
    reason: str = ""
    log: str = ""
    ended_by: int | None = None
    is_cut_off: bool = False


class Failure(NamedTuple):
    """The task that failed first; `log` is its path and what is worth to be known about it."""

    name: str
    status: int
    reason: str
    log: str

    @property
    def is_permanent(self) -> bool:
        """Whether the same again would fail again."""
        return not is_worth_a_restart(self.status)

    def __str__(self) -> str:
        """The headline."""
        return f"{self.name} failed (status {self.status}): {self.reason}\nIts log: {self.log}"


class Policy:
    """Is told of each task's end, and decides what that means for the job.

    Attributes:
      ends: of all tasks that have ended, in order.
      lost: those of tasks that the job goes on without.
    """

    def __init__(self, cluster: Cluster, config: TrainConfig):
        self._cluster, self._config = cluster, config
        self.ends: dict[TaskId, End] = {}
        self.lost: dict[TaskId, End] = {}
        self._suspected_at: float | None = None

    def note(self, end: End, is_ending: bool = False) -> bool:
        """Takes in a task's end; whether the task is lost, and the job goes on without it.

        Args:
          end: of a task that has not ended before.
          is_ending: the tasks have been asked to end: nothing goes on.
        """
        self.ends[end.task] = end
        is_lost = not is_ending and self._is_dispensable(end)
        if is_lost:
            self.lost[end.task] = end
        return is_lost

    def _is_dispensable(self, end: End) -> bool:
        """Whether the job can do without it; as the tasks themselves decide it on real hosts."""
        task, config = end.task, self._config
        has_fallen = end.ended_by is not None or end.is_cut_off or end.status in (EXIT_SIGINT, EXIT_SIGTERM)
        if self._cluster.is_colocated:
            return False  # what it holds of the model is lost with it
        if task.job == "ps" or self._cluster.is_chief(task) or not has_fallen:
            return False
        if config.update == "async" or config.on_worker_loss == "continue":
            return True
        workers = self._cluster.training_tasks
        num_left = sum(self.ends[worker].status == EXIT_DONE for worker in workers if worker in self.ends)
        num_present, num_lost = len(workers) - num_left, len(self.lost) + 1
        quorum = config.replicas_to_aggregate or len(workers)
        return num_present - num_lost >= num_needed(quorum, len(workers), num_present, num_lost)

    def find_failure(self, now: float) -> Failure | None:
        """The task to blame, once that is known: one that ended because of another's failure only points to it.

        Args:
          now: seconds; another that does not end itself is waited for no longer than BLAME_SECS.
        """
        failed = [end for end in self.ends.values() if end.status != EXIT_DONE and end.task not in self.lost]
        if not failed:
            return None
        if self._suspected_at is None:
            self._suspected_at = now
        suspect = failed[0]
        name = blamed(suspect.reason)
        named = TaskId.from_string(name) if name else suspect.task
        if named in self._cluster.tasks and named not in self.ends:
            if now - self._suspected_at < BLAME_SECS:
                return None  # it is about to end
        elif named in self.ends and self.ends[named].status != EXIT_DONE:
            suspect = self.ends[named]
        return Failure(str(suspect.task), suspect.status, suspect.reason, suspect.log)


class ScriptPolicy:
    """Every task is needed. Of those that fail at about the same time one that was killed is the cause, else the first."""

    def __init__(self) -> None:
        self.ends: dict[TaskId, End] = {}
        self.lost: dict[TaskId, End] = {}
        self._failed_at: float | None = None

    def note(self, end: End, is_ending: bool = False) -> bool:
        """Takes in a task's end; False, as nothing goes on without it."""
        self.ends[end.task] = end
        return False

    def find_failure(self, now: float) -> Failure | None:
        """The cause, ROOT_CAUSE_SECS after the first failure: over ssh they may be heard of in another order."""
        failed = [end for end in self.ends.values() if end.status != EXIT_DONE]
        if not failed:
            return None
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at < ROOT_CAUSE_SECS:
            return None
        end = min(failed, key=lambda end: end.ended_by != signal.SIGKILL)
        return Failure(str(end.task), end.status, end.reason, end.log)


def describe_end(reported: str | None, ended_by: int | None, last_line: str) -> str:
    """Why a task ended: as it reported; else by which signal; else the last line of its log.

    >>> describe_end(None, signal.SIGSEGV, "step 3"), describe_end(None, None, "ImportError: no")
    ('ended by SIGSEGV', 'ImportError: no')
    """
    if reported:
        return reported
    if ended_by == signal.SIGKILL:
        return "ended by SIGKILL, which may be the system's, for want of memory"
    if ended_by is not None:
        return f"ended by {signal_name(ended_by)}"
    return last_line or "no output"


def last_words(lines: Sequence[str]) -> str:
    """The first line of the last traceback's exception; without a traceback the last line.

    >>> last_words(["Traceback (most recent call last):", "  File x", "ValueError: no", "[1.]"]), last_words(["a", "b", ""])
    ('ValueError: no', 'b')
    """
    said = [line for line in lines if line.strip()]
    traces = [
        index for index, line in enumerate(said) if line.startswith("Traceback (most recent call last)")
    ]
    if traces:
        ends = [line for line in said[traces[-1] + 1 :] if not line.startswith(" ")]
        return (ends or said)[0 if ends else -1]
    return said[-1] if said else ""


def plain(line: str, task: TaskId) -> str:
    """A line of a task's log as a reason.

    >>> plain("10:11:12 worker:1 error: no ps:0 (status 138)", TaskId("worker", 1))
    'no ps:0'
    """
    text = re.sub(rf"^(\d\d:\d\d:\d\d )?({task} )?((error|warning|critical): )?", "", line.strip())
    return re.sub(r" \(status \d+\)$", "", text.removeprefix("ps_train: "))
