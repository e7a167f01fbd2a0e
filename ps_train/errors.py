"""Every way a task can end badly, as one exception tree with the exit status in the class.

    PsTrainError                 exit_status
      UsageError                 1    flags, TF_CONFIG, the cluster's description
      ModelError                 1    the user's input_fn, model_fn or their graph
      PeerLostError              138  a peer or the network was lost past the stated bound
      RefusedError               1 / 138  this task does not belong to the job that it came to; the others go on
      StoppedError               130 / 143  SIGINT / SIGTERM

Each message says what was wrong with the value, what was expected, and what to do:

>>> raise UsageError("--task_index=3 is not in job 'ps', which has 2 tasks (0-1). Check --task_index or --ps_hosts.")
Traceback (most recent call last):
ps_train.errors.UsageError: --task_index=3 is not in job 'ps', which has 2 tasks (0-1). Check --task_index or --ps_hosts.

Schedulers restart a task that ends with 128-255 and give up on 1-127 (Kubeflow's `ExitCode` restart policy).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

EXIT_DONE = 0
EXIT_PERMANENT = 1
EXIT_RETRYABLE = 138
EXIT_SIGINT = 130
EXIT_SIGTERM = 143

# A signal this soon after the first is the same request: a terminal and a launcher both pass one on, and Linux sends the
# signal of a parent's death for each of the parent's threads.
REPEAT_SECS = 0.5

_BLAME = re.compile(r"((?:ps|worker|chief):\d+) failed: ")


class PsTrainError(Exception):
    """Base of all errors that ps_train raises on purpose; `exit_status` is what the process ends with.

    >>> PsTrainError("worker:1 failed").exit_status
    1
    """

    exit_status = EXIT_PERMANENT
    is_model_safe = False


class UsageError(PsTrainError):
    """A mistake in flags, environment, the cluster's description or a data directory.

    >>> print(UsageError.from_problems(["--batch_size=0 is out of range.", "--seed=-1 is out of range."]))
    --batch_size=0 is out of range.
    --seed=-1 is out of range.
    """

    @classmethod
    def from_problems(cls, problems: list[str]) -> "UsageError":
        """One error for all problems found, a line each."""
        return cls("\n".join(problems))


class ModelError(PsTrainError):
    """The user's model file, `input_fn` or `model_fn` is wrong, or the graph that they built cannot run.

    >>> ModelError("model_fn in mine.py:7 raised KeyError: 'age'").exit_status
    1
    """


class BadNumberError(ModelError):
    """NaN or Inf in a loss or gradient: what the job has learnt by then may be worth little, and is not saved.

    >>> issubclass(BadNumberError, ModelError)
    True
    """


class PeerLostError(PsTrainError):
    """A task that this one needs was not there, or was lost, for longer than the stated bound. Worth a restart.

    >>> PeerLostError("ps:1 at ps1.lan:2222 has been gone for 60 s: connection refused").exit_status
    138
    """

    exit_status = EXIT_RETRYABLE

    def __init__(
        self, message: str, is_model_safe: bool = False, lost: Mapping[str, str] = MappingProxyType({})
    ):
        """`is_model_safe`: only workers were lost, so that the chief can still save. `lost`: a lost worker -> how; see `ring`."""
        super().__init__(message)
        self.is_model_safe, self.lost = is_model_safe, dict(lost)


class JobOverError(PeerLostError):
    """The job has come to its end without this task, for which there is nothing to do.

    >>> issubclass(JobOverError, PeerLostError)
    True
    """


class RefusedError(PsTrainError):
    """This task is not what the others take it for; they go on. Status 1, or 138 where a restart may help.

    >>> RefusedError("worker:1 builds other variables than the chief.").exit_status
    1
    """

    def __init__(self, message: str, exit_status: int = EXIT_PERMANENT, is_stranger: bool = False):
        """`is_stranger`: its record on the boards would pass for that of the right task, and is not written."""
        super().__init__(message)
        self.exit_status, self.is_stranger = exit_status, is_stranger


class StoppedError(PsTrainError):
    """The task was asked to stop by a signal. `exit_status` is 128 + the signal's number.

    >>> StoppedError("stopped by SIGINT", 130).exit_status
    130
    """

    def __init__(self, message: str, exit_status: int = EXIT_SIGTERM):
        super().__init__(message)
        self.exit_status = exit_status


def is_worth_a_restart(status: int) -> bool:
    """Whether a task that ended with `status` may do better the next time.

    >>> [is_worth_a_restart(status) for status in (0, 1, 127, 128, 138)]
    [False, False, False, True, True]
    """
    return status >= 128


def blame(name: str, reason: str) -> str:
    """The reason of a task that ends only because another, `name`, has failed.

    >>> blame("worker:1", "no loss")
    'worker:1 failed: no loss'
    """
    return f"{name} failed: {reason}"


def blamed(reason: str) -> str | None:
    """The task that a reason made by `blame` points to; None for any other reason.

    >>> blamed("worker:1 failed: no loss")
    'worker:1'
    """
    match = _BLAME.match(reason)
    return match[1] if match else None
