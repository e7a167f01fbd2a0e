"""Steps that are run with TensorFlow's trace of them: what `--profile_steps` and `--trace_steps` have in common."""

import functools
import time
from typing import Any, NamedTuple

from ps_train.compat import tf1
from ps_train.hooks import StepRunner


class TracedCall(NamedTuple):
    """A call of a session: nanoseconds since 1970, and TensorFlow's `StepStats`."""

    begin: int
    end: int
    step_stats: Any


def run_traced(call, found):
    """Runs `call(options=..., run_metadata=...)`, appends its TracedCall to a list, and returns what it gives."""
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    begin = time.time_ns()
    values = call(options=options, run_metadata=metadata)
    found.append(TracedCall(begin, time.time_ns(), metadata.step_stats))
    return values


class TracedStepRunner(StepRunner):
    """A StepRunner that can trace a step; a session's calls for that are made when the first step of it is traced."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._of: Any = None  # the session
        self._with_options: Any = None  # its Calls

    def _traced(self, found):
        """Calls in the place of the session's own, whose TracedCalls go to a list."""
        if self._of is not self._session:
            self._of, self._with_options = self._session, self._prepare(accept_options=True)
        calls = self._with_options
        step, start, add = (functools.partial(run_traced, call, found) for call in calls[:3])
        return calls._replace(step=step, start=start, add=add)

    def _run_one_traced(self, step_context, found):
        """Runs the last batch of a step; its TracedCall goes to a list."""
        if self._always or self._wants_hooks():
            run_traced(functools.partial(step_context.run_with_hooks, self._step), found)
            return
        plain, self._calls = self._calls, self._traced(found)
        try:
            super()._run_one(step_context)
        finally:
            self._calls = plain

    def _run_batches_traced(self, found):
        """Runs the batches before the last one; their TracedCalls go to a list."""
        plain, self._calls = self._calls, self._traced(found)
        try:
            super()._run_batches()
        finally:
            self._calls = plain
