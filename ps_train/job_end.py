"""The order of a job's end, for whatever has started its tasks: who gets which signal when, and the status. No process in it.

    end = JobEnd(policy, deciding=cluster.training_tasks, rest_secs=30, shutdown_secs=30, log_of=...)
    end.hear(signal.SIGINT, tasks, now)     # [(TaskId("worker", 0), SIGINT), (TaskId("worker", 1), SIGINT)]: for the caller to send
    end.steer(tasks, now)                   # after each look; here and there [(TaskId("ps", 0), SIGTERM)]
    end.status                              # 130

1. The end begins with the first of
   - a signal to this process: status 128 + its number;
   - a task's failure, as the policy sees it: the job's status is its own;
   - every deciding task (a worker, mostly) has ended well, or is lost: the others have `rest_secs` to end by themselves. One that
     does not is a failure, and killed; where the rest is free, as a script's servers are, it gets a SIGTERM instead.
2. At a signal or a failure the deciding tasks get it first, so that a chief can save: SIGTERM for a failure, and for a SIGHUP,
   which tasks do not handle. When they have ended, each of the others gets a SIGTERM, and only one: a second would end it at
   once. Deciding tasks that do not hear another signal may get a SIGTERM after `escalate_secs`.
3. What still runs `shutdown_secs` later is killed, and before that by the second signal to this process. One that comes less
   than REPEAT_SECS after the first is the same request. Neither that nor a signal after a failure changes the status.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from ps_train.cluster import TaskId
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, REPEAT_SECS
from ps_train.failures import End, Failure

Orders = list[tuple[TaskId, int]]


class JobPolicy(Protocol):
    """Decides what a task's end means: `failures.Policy`, or ScriptPolicy."""

    ends: dict[TaskId, End]
    lost: dict[TaskId, End]

    def note(self, end: End, is_ending: bool = False) -> bool:
        """Takes in a task's end; whether the job goes on without it."""

    def find_failure(self, now: float) -> Failure | None:
        """The task to blame, once that is known."""


class JobEnd:
    """Decides on signals to tasks. `tasks` below are all that are started or wait to be, `now` is in seconds.

    Args:
      policy: is told of each task's end by the caller.
      deciding: the job is over when these have ended.
      rest_secs: for the others to end by themselves then.
      shutdown_secs: from the first signal to a kill.
      log_of: where a task's output is.
      escalate_secs: from another signal to a SIGTERM; None: never.
      is_rest_free: how the others end is nobody's failure.

    Attributes:
      signal: to this process, by which the end has begun.
      failure: by which it has.
    """

    def __init__(
        self, policy: JobPolicy, deciding: Collection[TaskId], rest_secs: float, shutdown_secs: float,
        log_of: Callable[[TaskId], str], escalate_secs: float | None = None, is_rest_free: bool = False,
    ):  # fmt: skip
        self._policy, self._deciding, self._log_of = policy, deciding, log_of
        self._rest_secs, self._shutdown_secs = rest_secs, shutdown_secs
        self._escalate_secs, self._is_rest_free = escalate_secs, is_rest_free
        self.signal: int | None = None
        self.failure: Failure | None = None
        self._heard_at: float | None = None
        self._asked_at: float | None = None
        self._resting_at: float | None = None
        self._terminated: set[TaskId] = set()

    @property
    def is_asked(self) -> bool:
        """Whether the tasks have been asked to end."""
        return self._asked_at is not None

    @property
    def is_resting(self) -> bool:
        """Whether all deciding tasks have ended well."""
        return self._resting_at is not None

    @property
    def status(self) -> int:
        """The exit status, once all have ended."""
        if self.signal is not None:
            return 128 + self.signal
        return self.failure.status if self.failure is not None else EXIT_DONE

    def hear(self, number: int, tasks: Iterable[TaskId], now: float) -> Orders:
        """A signal to this process has come."""
        if self._heard_at is not None:
            return self._kill(tasks) if now - self._heard_at >= REPEAT_SECS else []
        self._heard_at = now
        if self.is_asked:
            return []
        self.signal = number
        return self.ask(signal.SIGTERM if number == signal.SIGHUP else number, tasks, now)

    def ask(self, number: int, tasks: Iterable[TaskId], now: float) -> Orders:
        """Begins the end with a signal for the deciding tasks."""
        self._asked_at = now
        deciding = [task for task in self._left(tasks) if task in self._deciding]
        return (
            self._terminate(deciding) if number == signal.SIGTERM else [(task, number) for task in deciding]
        )

    def steer(self, tasks: Collection[TaskId], now: float) -> Orders:
        """Decides, after each look, whether something is to be ended."""
        failure = None if self.is_asked else self._policy.find_failure(now)
        if failure is not None:
            self.failure = failure
            return self.ask(signal.SIGTERM, tasks, now)
        left = self._left(tasks)
        deciding = [task for task in left if task in self._deciding]
        if self._asked_at is not None:
            return self._go_on(left, deciding, now - self._asked_at)
        if not deciding and all(self._has_ended_well(task) for task in tasks if task in self._deciding):
            return self._rest(left, now)
        return []

    def _go_on(self, left: Sequence[TaskId], deciding: Sequence[TaskId], secs: float) -> Orders:
        """The tasks were asked to end `secs` ago."""
        if secs > self._shutdown_secs:
            return self._kill(left)
        if not deciding:
            return self._terminate(left)
        is_deaf = self._escalate_secs is not None and secs > self._escalate_secs
        return self._terminate(deciding) if is_deaf else []

    def _rest(self, left: Sequence[TaskId], now: float) -> Orders:
        """The deciding tasks have ended well, and the others do so by themselves."""
        if self._resting_at is None:
            self._resting_at = now
        secs = now - self._resting_at
        if not left or secs <= self._rest_secs:
            return []
        if self._is_rest_free:
            return self._kill(left) if secs > self._rest_secs + self._shutdown_secs else self._terminate(left)
        late = left[0]
        why = f"did not end within {self._rest_secs:g} s after the last worker"
        self.failure = Failure(str(late), EXIT_PERMANENT, why, self._log_of(late))
        self._asked_at = now
        return self._kill(left)

    def _left(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        return [task for task in tasks if task not in self._policy.ends]

    def _has_ended_well(self, task: TaskId) -> bool:
        return task in self._policy.lost or self._policy.ends[task].status == EXIT_DONE

    def _kill(self, tasks: Iterable[TaskId]) -> Orders:
        return [(task, signal.SIGKILL) for task in self._left(tasks)]

    def _terminate(self, tasks: Iterable[TaskId]) -> Orders:
        untold = [task for task in tasks if task not in self._terminated]
        self._terminated.update(untold)
        return [(task, signal.SIGTERM) for task in untold]
