"""What TensorFlow says about the user's graph, told in a line: which op, made where, and what was wrong.

try:
    session.run(fetches)
except tf.errors.OpError as error:
    raise as_model_error(error, session.graph) from error

| what failed | is told as |
|---|---|
| an op of the model | `InvalidArgumentError in op week (made at mine.py:12): Input to reshape is ...` |
| an op in a function of the dataset, as of `map` | the same, with the line in that function |
| a Python function, as of `tf.numpy_function` or a generator | `parse in mine.py:9 raised KeyError: 0` |
| the same, with a ModelError, as of `ps_train.data` | its text |
| a hook | `after_run in mine.py:31 raised ValueError: ...` |
"""

import os
import re
import traceback

from ps_train.compat import tf
from ps_train.errors import ModelError
from ps_train.inputs import find_op
from ps_train.model.blame import display

MAX_CAUSE = 600
_OWN = os.path.dirname(__file__) + os.sep
_NOT_USERS = re.compile(
    rf"<|{re.escape(_OWN)}|.*/__autograph_generated_file|.*/((site|dist)-packages|lib/python3[.]\d+)/"
)
_FINALIZED = "Make every op in model_fn, once: while training, a hook or a loop can only run them."
_SESSION = "A hook uses run_context.session, or the session that after_create_session gets."
_HEADERS = ("Graph execution error", "=====", "Detected at node")
_RAISED = f"{ModelError.__name__}: "
_TRACEBACK = "Traceback (most recent call last):"
# What a line may begin with: the number of the error, its code and task, and where in the input it happened.
_PREFIX = re.compile(
    r"(\(\d+\) [A-Z_]+: )?([A-Z_]+: (?=From /job:))?(From /job:\S+/task:\d+:\s*)?"
    r"(Error in user-defined function passed to \S+ transformation with iterator: \S+: )?"
)
_NODE_OF_INPUT = re.compile(
    r"\[\[(?:\{\{function_node (?P<function>\S+)\}\})?\{\{node (?P<node>\S+)\}\}\]\]\s*\[\[(?P<op>[^\]{]+)\]\]"
)


def as_model_error(error, graph=None):
    """The user's error behind an exception of a session, as a ModelError in one line.

    Args:
      error: what the session raised.
      graph: the session's.
    """
    called = _called(error)
    if not isinstance(error, tf.errors.OpError):
        advice = f" {_FINALIZED}" if "Graph is finalized" in str(error) else ""
        return ModelError(f"{called and f'{called} raised '}{type(error).__name__}: {error}{advice}")
    if called and "Cannot assign a device" in error.message and "/job:localhost/" in error.message:
        return ModelError(
            f"{called} runs the graph in a session of its own, which is not the cluster's. {_SESSION}"
        )
    if f"{ModelError.__module__}.{_RAISED}" in error.message:
        return ModelError(cause(error).removeprefix(_RAISED))
    what, frame = cause(error)[:MAX_CAUSE], _python_frame(error)
    if frame is not None:
        return ModelError(f"{frame} raised {what}")
    return ModelError(f"{type(error).__name__}{_place(error, graph)}: {what}")


def _called(error):
    """`after_run in mine.py:31` for the user's innermost function that was called from here, as a hook's; "" if none was."""
    frames = traceback.extract_tb(error.__traceback__)
    last_own = max(
        (i for i, frame in enumerate(frames) if frame.filename.startswith(_OWN)), default=len(frames)
    )
    users = [frame for frame in frames[last_own + 1 :] if not _NOT_USERS.match(frame.filename)]
    return f"{users[-1].name} in {display(users[-1].filename)}:{users[-1].lineno}" if users else ""


def cause(error):
    """What an OpError's message says was wrong, in one line: it stands below the stack of the op's making."""
    before, traceback, _ = "\n".join(_below_the_stack(error)).partition(_TRACEBACK)
    lines = [_PREFIX.sub("", line, count=1).strip() for line in before.splitlines()]
    lines = [
        line for line in lines if line and not line.startswith(_HEADERS) and "root error(s) found" not in line
    ]
    return " ".join(lines if traceback else lines[:1])  # an exception of Python's may have several lines


def one_line(error):
    """Any error in a line, for a log."""
    return cause(error) if isinstance(error, tf.errors.OpError) else str(error) or repr(error)


def _below_the_stack(error):
    lines = [line.strip() for line in error.message.splitlines()]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    return lines[nodes[-1] + 1 :] if nodes else lines


def _python_frame(error):
    """`parse in mine.py:9` for the innermost frame of the user's in a traceback in the message; None if there is none."""
    _, _, traceback = "\n".join(_below_the_stack(error)).rpartition(_TRACEBACK)
    frames = re.findall(r'^File "(.+)", line (\d+), in (.+)$', traceback.partition("[[{{node")[0], re.M)
    users = [frame for frame in frames if not _NOT_USERS.match(frame[0])]
    if not users:
        return None
    file, line, function = users[-1]
    return f"{function} in {display(file)}:{line}"


def _place(error, graph):
    op, name = error.op, error.op and error.op.name
    match, graph = _NODE_OF_INPUT.search(error.message), op.graph if op else graph
    if match and graph is not None and _is_input(graph, match["op"]):
        # error.op is None, or an op of the model that happens to have the name of the one in the dataset's function
        name = match["node"]
        op = find_op(graph, name, match["function"]) or graph.get_operation_by_name(match["op"])
    if op is None:
        return ""
    stems_from = getattr(op, "_original_op", None)  # of a gradient: the op of the model that it belongs to
    place = stems_from and made_at(stems_from) or made_at(op)
    return f" in op {name}" + (f" (made at {place})" if place else "")


def _is_input(graph, name):
    try:
        return graph.get_operation_by_name(name).type == "IteratorGetNext"
    except (KeyError, ValueError):
        return False


def made_at(op):
    """FILE:LINE of the innermost frame that is neither Python's, nor installed, nor ps_train's; or None."""
    frames = [frame for frame in op.traceback if not _NOT_USERS.match(frame.filename)]
    return f"{display(frames[-1].filename)}:{frames[-1].lineno}" if frames else None
