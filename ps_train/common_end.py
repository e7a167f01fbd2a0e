"""The end of tasks that can only stop at the same step, as those of an all-reduce: what one wants, all hear of in the next step."""

from typing import Any

from ps_train.compat import tf
from ps_train.errors import ModelError
from ps_train.updates.allreduce import Agreed


class CommonEnd:
    """What the tasks have agreed on, for a StepHook.

    Args:
      agreement: updates.allreduce.Agreement.

    Attributes:
      is_left_behind: whether another task has stopped, and this one did not want to.
    """

    def __init__(self, agreement):
        self._agreement = agreement
        self.fetches = {"agreed": agreement.agreed}
        self._agreed: Any = None
        self._has_wished = self.is_left_behind = False

    def note(self, values):
        """Takes in a step's figures; raises OutOfRangeError if all tasks' data was used up before it."""
        self._agreed = Agreed(*(int(number) for number in values["agreed"]))
        self.is_left_behind = self.is_wished_for and not (self.ends_job or self._has_wished)
        if self._agreed.num_with_data == 0:
            raise tf.errors.OutOfRangeError(None, None, "the data of all workers is used up")

    @property
    def is_wished_for(self):
        """Whether a task wanted to stop when the step began."""
        return self._agreed.num_stopping > 0

    @property
    def ends_job(self):
        """Whether that is to be the job's end."""
        return self._agreed.num_ending > 0

    def wish(self, session, ends_job):
        """Has the next step tell all tasks that this one wants to stop."""
        if not self._has_wished:
            self._has_wished = True
            self._agreement.wish(session, ends_job)

    def check_data(self):
        """Raises ModelError if this task has no data at all, so that it cannot take part."""
        if self._agreed is None:
            raise ModelError(
                "this worker's shard of the data is empty: input_fn gave no batch, and with --update=allreduce each worker needs "
                "one. Give it data, or start fewer workers."
            )
