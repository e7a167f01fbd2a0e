"""Numbers gone wrong: NaN and Inf are caught on the worker that made them, before they are sent.

    grads_and_vars = check_gradients(grads_and_vars, loss, policy="stop")

Every gradient passes through a CheckNumerics op on the worker, so a bad one never reaches a ps:

- `stop`: each gradient is checked by itself, so that a large one can be sent while others are computed. The step fails, naming
  the variable; the task ends with status 1 and so does the job. (Async: gradients of the same step that were good may be
  applied. Sync: nothing of the step is.)
- `skip`: no gradient leaves before all are checked; the loop drops the step, counts it and goes on.
- `ignore`: no check.

The op looks at one element after the other. What is LARGE is added up instead, on all processors: the sum is NaN or Inf if an
element is (and if the elements' mean is above 1e32, with which no training would go on, either).
"""

import functools
import re

from ps_train.compat import tf
from ps_train.errors import BadNumberError
from ps_train.transport import map_gradient

MARK = "ps_train found"
LARGE = 16384  # elements; below, a second op costs more than it saves
POLICIES = ("stop", "skip", "ignore")


def check_gradients(grads_and_vars, loss, policy):
    """Wraps gradients in checks.

    Args:
      grads_and_vars: list of (gradient, variable); a gradient may be None, a tensor or IndexedSlices.
      loss: scalar tensor, checked before all, or None.
      policy: one of POLICIES.

    Returns:
      list of (gradient, variable).
    """
    if policy == "ignore":
        return list(grads_and_vars)
    before = [] if loss is None else [_check(loss, "the loss").op]
    named = [(gradient, f"the gradient of {variable.op.name}") for gradient, variable in grads_and_vars]
    with tf.control_dependencies(before):
        checked = check_all(named, policy)
    return [(gradient, variable) for gradient, (_, variable) in zip(checked, grads_and_vars, strict=True)]


def check_all(named, policy):
    """As `check_gradients`, of a list of (gradient, what it is in words); returns the gradients."""
    checked = [
        None if gradient is None else map_gradient(functools.partial(_check, what=what), gradient)
        for gradient, what in named
    ]
    if policy == "stop":
        return checked
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in checked if g is not None]
    with tf.control_dependencies([value.op for value in values]):
        return [None if g is None else map_gradient(tf.identity, g) for g in checked]


def is_bad_number(error):
    """Whether a session's error is one of these checks."""
    return MARK in (getattr(error, "message", "") or "")


def name_bad_number(error):
    """What was bad, as `Inf in the loss`."""
    match = re.search(MARK + r" (.*?)( by its sum)? : Tensor had ([A-Za-z ,]+) values", error.message)
    what, is_sum, kind = match.groups() if match else ("a gradient", True, "")
    return f"{'NaN or Inf' if is_sum else kind} in {what}"


def explain_bad_number(error, task, local_step, global_step):
    """BadNumberError that names what was bad, where and when."""
    return BadNumberError(
        f"{name_bad_number(error)} on {task}, at its local step {local_step} (global step {global_step}). It was not applied. Look "
        "at this worker's data and the learning rate; --on_nan=skip drops such steps."
    )


def _check(tensor, what):
    if not tensor.dtype.is_floating:
        return tensor
    # A sum of float16 is soon above all that it holds.
    if (tensor.shape.num_elements() or 0) < LARGE or tensor.dtype == tf.float16:
        return tf.debugging.check_numerics(tensor, f"{MARK} {what}")
    checked = tf.debugging.check_numerics(tf.reduce_sum(tensor), f"{MARK} {what} by its sum")
    with tf.control_dependencies([checked]):
        return tf.identity(tensor)
