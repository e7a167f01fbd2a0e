"""Turns an exception in the user's code into one line that names the user's file and line.

    with user_code("model_fn", model.source):
        spec = model.model_fn(features, labels)  # ModelError: model_fn in mine.py:12 raised ValueError: ...

An import, which knows more than a call, makes its errors with `model_error`.
"""

import contextlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from ps_train.errors import ModelError, PsTrainError
from ps_train.packages import explain

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MAX_MESSAGE_CHARS = 600


@contextlib.contextmanager
def user_code(what: str, source: str) -> Iterator[None]:
    """Within it, an exception becomes a ModelError: "`what` in FILE:LINE raised ValueError: ...".

    FILE:LINE is the innermost frame that is the user's own: in `source` or beside it, and not installed.
    ps_train's own errors pass unchanged.
    """
    try:
        yield
    except PsTrainError:
        raise
    except Exception as error:
        raise model_error(what, source, error) from error


def model_error(what: str, source: str, error: BaseException) -> ModelError:
    """The error that tells of `error`, which `what` in `source` raised."""
    where = location(error, source)
    if isinstance(error, SyntaxError) and error.filename:
        return ModelError(f"{display(error.filename)}:{error.lineno or '?'} has a syntax error: {error.msg}.")
    hidden = explain(error) if isinstance(error, (ImportError, AttributeError)) else None
    if hidden:
        return ModelError(f"{what} in {where} raised {type(error).__name__}: {hidden}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ModelError(
            f"{where} imports {error.name}, which is not installed here. Install it for {sys.executable}, "
            "or put it beside the model file."
        )
    if isinstance(error, AttributeError) and "is not available with Keras 3" in str(error):
        return ModelError(
            f"{where} uses {str(error).split(' is not')[0].strip('`')}, a TensorFlow 1 layer that Keras 3 "
            'lacks. Install tf_keras (pip install "ps_train[legacy-layers]") and set TF_USE_LEGACY_KERAS=1 in '
            "the environment of every task."
        )
    return ModelError(f"{what} in {where} raised {type(error).__name__}: {_one_line(error)}")


def location(error: BaseException, source: str) -> str:
    """FILE:LINE of the innermost frame of the user's code; `source` alone where there is none."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # AutoGraph runs a rewritten copy of the function, and lists the original lines in the message instead.
    frames += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    for filename, line in reversed(frames):
        if _is_users(filename, source):
            return f"{display(filename)}:{line}"
    return display(source)


def _is_users(filename: str, source: str) -> bool:
    filename = os.path.abspath(filename)
    if filename == source:
        return True
    parts = filename.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or filename.startswith(_PACKAGE_DIR + os.sep):
        return False
    directory = os.path.dirname(source) if os.path.isabs(source) else os.getcwd()
    return filename.startswith(directory + os.sep)


def _one_line(error: BaseException) -> str:
    text = str(error)
    if text.lstrip().startswith("in user code:"):
        text = text.rstrip().splitlines()[-1].strip().partition(": ")[2] or text
    text = " ".join(text.split()) or "(no message)"
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}..."


def display(path: str, function: Callable[..., Any] | None = None) -> str:
    """The path as a user would write it from here, with the line of `function`'s definition if given."""
    if os.path.isabs(path):
        relative = os.path.relpath(path)
        path = path if relative.startswith(os.pardir) else relative
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    return f"{path}:{code.co_firstlineno}" if code else path
