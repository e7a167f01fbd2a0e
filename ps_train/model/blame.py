"""Turns an exception in the user's code into one line that names the user's file and line.

    with user_code("model_fn", model.source):
        spec = model.model_fn(features, labels)  # ModelError: model_fn in mine.py:12 raised ValueError: ...

An import, which knows more than a call, makes its errors with `model_error`.
"""

import contextlib
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from ps_train.errors import ModelError, PsTrainError
from ps_train.packages import explain

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_USERS = (_PACKAGE_DIR + os.sep, os.path.dirname(os.__file__) + os.sep)
_MAX_MESSAGE_CHARS = 600


@contextlib.contextmanager
def user_code(what: str, source: str, place: str | None = None) -> Iterator[None]:
    """Within it, an exception becomes a ModelError: "`what` in FILE:LINE raised ValueError: ...".

    FILE:LINE is the innermost frame that is the user's own: in `source` or beside it, and not installed; `place` where
    there is none. A ModelError of ps_train's, as by `DistributedOptimizer`, is told with it: "`what` in FILE:LINE: ...".
    Other errors of ps_train's pass unchanged.
    """
    try:
        yield
    except ModelError as error:
        if error.__cause__ is not None:  # it tells its place
            raise
        raise ModelError(f"{what} in {location(error, source, place)}: {error}") from error
    except PsTrainError:
        raise
    except Exception as error:
        raise model_error(what, source, error, place) from error


def model_error(what: str, source: str, error: BaseException, place: str | None = None) -> ModelError:
    """The error that tells of `error`, which `what` in `source` raised."""
    where = location(error, source, place)
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
            "lacks. Run pip install tf_keras, and set TF_USE_LEGACY_KERAS=1 in the environment of every task."
        )
    if isinstance(error, AttributeError) and "has no attribute 'estimator'" in str(error):
        return ModelError(
            f"{where} uses tf.estimator, which TensorFlow has no more. Return ps_train.ModelSpec in place of EstimatorSpec, and "
            "take ps_train.ModeKeys."
        )
    wants_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true")
    if isinstance(error, ImportError) and wants_legacy and importlib.util.find_spec("tf_keras") is None:
        return ModelError(
            f"{where} uses Keras, and TF_USE_LEGACY_KERAS is set, but tf_keras is not installed. Run pip install "
            "tf_keras, or unset the variable."
        )
    return ModelError(f"{what} in {where} raised {type(error).__name__}: {_one_line(error)}")


def location(error: BaseException, source: str, place: str | None = None) -> str:
    """FILE:LINE of the innermost frame of the user's code; where there is none, `place`, else `source` alone."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # AutoGraph runs a rewritten copy of the function, and lists the original lines in the message instead.
    frames += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    for filename, line in reversed(frames):
        if is_users(filename, source):
            return f"{_short(filename)}:{line}"
    return place or _short(source)


def is_users(filename: str, source: str) -> bool:
    """Whether a file is `source` or beside it, and neither installed nor ps_train's."""
    filename = os.path.abspath(filename)
    if filename == source:
        return True
    parts = filename.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or filename.startswith(_NOT_USERS):
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
    """The path as a user would write it from here, with the place of `function`'s definition if that is the user's."""
    code = _code(function) if function is not None else None
    if code is not None and is_users(code.co_filename, path):
        return f"{_short(code.co_filename)}:{code.co_firstlineno}"
    return _short(path)


def _code(function: Any) -> types.CodeType | None:
    """The code of a function, also of one that is wrapped, bound to arguments, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__") and not inspect.isclass(function):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _short(path: str) -> str:
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
