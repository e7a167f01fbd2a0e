"""What TensorFlow says about the user's graph, told in a line: which op, made where, and what was wrong.

try:
    session.run(fetches)
except tf.errors.OpError as error:
    raise as_model_error(error) from error
"""

from ps_train.compat import tf
from ps_train.errors import ModelError

MAX_CAUSE = 600


def as_model_error(error):
    """The user's error behind an exception of a session, as a ModelError in one line."""
    if not isinstance(error, tf.errors.OpError):
        return ModelError(f"{type(error).__name__}: {error}")
    return ModelError(f"{type(error).__name__}{_user_frame(error.op)}: {cause(error)[:MAX_CAUSE]}")


def cause(error):
    """The line of an OpError's message that says what was wrong: the first below the stack of the op's making."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[nodes[-1] + 1 :] if nodes else lines
    headers = ("Graph execution error", "From /job:", "2 root error(s) found", "=====")
    return next((line for line in lines if not line.startswith(headers)), "")


def _user_frame(op):
    if op is None:
        return ""
    frames = [
        f for f in op.traceback if "/site-packages/" not in f.filename and "/ps_train/" not in f.filename
    ]
    where = f" (made at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f" in op {op.name}{where}"
