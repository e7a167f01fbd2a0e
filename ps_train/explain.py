"""What TensorFlow says about the user's graph, told in a line: which op, made where, and what was wrong.

try:
    session.run(fetches)
except tf.errors.OpError as error:
    raise as_model_error(error) from error
"""

import os
import re

from ps_train.compat import tf
from ps_train.errors import ModelError

MAX_CAUSE = 600
_NOT_USERS = re.compile(
    rf"<|{re.escape(os.path.dirname(__file__))}/|.*/((site|dist)-packages|lib/python3[.]\d+)/"
)


def as_model_error(error):
    """The user's error behind an exception of a session, as a ModelError in one line."""
    if not isinstance(error, tf.errors.OpError):
        return ModelError(f"{type(error).__name__}: {error}")
    return ModelError(f"{type(error).__name__}{_place(error.op)}: {cause(error)[:MAX_CAUSE]}")


def cause(error):
    """The line of an OpError's message that says what was wrong: the first below the stack of the op's making."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[nodes[-1] + 1 :] if nodes else lines
    lines = [re.sub(r"^\(\d+\) [A-Z_]+: ", "", line) for line in lines]
    headers = ("Graph execution error", "From /job:", "=====", "Detected at node")
    found = (
        line for line in lines if line and not line.startswith(headers) and "root error(s) found" not in line
    )
    return next(found, "")


def _place(op):
    if op is None:
        return ""
    made_at = None
    origin = op
    while made_at is None and origin is not None:
        made_at = _user_frame(origin)
        origin = getattr(
            origin, "_original_op", None
        )  # of a gradient: the op of the model that it belongs to
    return f" in op {op.name}" + (f" (made at {made_at})" if made_at else "")


def _user_frame(op):
    """FILE:LINE of the innermost frame that is neither Python's, nor installed, nor ps_train's; or None."""
    frames = [frame for frame in op.traceback if not _NOT_USERS.match(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
