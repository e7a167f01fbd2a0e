"""Where this process's Python threads are, reduced to what tells a user what a step waits for.

    stack = main_stack(thread_id)
    stack.place                    # "session": blocked in session.run; "saving", "bring-up", or "code": elsewhere
    stack.lines                    # ["train.py:40 in main: session.run(train_op)", "session.run"]
    [call.place for call in python_calls()]         # ["decode in mine.py:12"]: tf.numpy_function, generators

A thread that is blocked in `session.run` or in C cannot be asked; its frames can be read from another one.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

from ps_train.model.blame import display

MAX_FRAMES = 6
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = re.compile(r"<|.*[/\\]((site|dist)-packages|lib[/\\]python3[.]\d+)[/\\]")
_SESSION = re.compile(r".*[/\\]tensorflow[/\\]python[/\\]client[/\\]session\.py")
_PYTHON_CALLS = re.compile(r".*[/\\]tensorflow[/\\]python[/\\]ops[/\\]script_ops\.py")
_AROUND_EACH_CALL = os.sep + "bring_up.py"
_OURS = {("checkpoint_hook.py", "save"): "saving", ("bring_up.py", "create_session"): "bring-up"}


class Stack(NamedTuple):
    """A thread's stack.

    Attributes:
      place: "session" for one blocked in `session.run`; "saving" and "bring-up" while a checkpoint is saved or a session
        made; else "code".
      innermost: the innermost frame of the user's, such as `evaluate in train.py:40`; "" if there is none.
      lines: the user's frames, the outermost first, the innermost of ps_train's, and `session.run`.
    """

    place: str
    innermost: str
    lines: tuple[str, ...]


class PythonCall(NamedTuple):
    """A Python function that TensorFlow's runtime has called and that has not returned.

    Attributes:
      frame: the call; another call of the same function is another frame.
      place: the innermost frame of the user's, such as `decode in mine.py:12`.
      lines: all of them, the outermost first.
    """

    frame: FrameType
    place: str
    lines: tuple[str, ...]


def main_stack(thread_id: int, frames: Mapping[int, FrameType] | None = None) -> Stack:
    """The stack of the thread that trains.

    Args:
      thread_id: `threading.get_ident()` there.
      frames: thread -> innermost frame; those of now if not given.
    """
    frames = sys._current_frames() if frames is None else frames
    if thread_id not in frames:
        return Stack("code", "", ())
    summary = traceback.extract_stack(frames[thread_id])
    ours = [(os.path.basename(f.filename), f.name) for f in summary if f.filename.startswith(_PACKAGE)]
    is_in_session = any(_SESSION.fullmatch(f.filename) for f in summary)
    place = next((_OURS[call] for call in ours if call in _OURS), "session" if is_in_session else "code")
    kept = [f for f in summary if not _INSTALLED.match(f.filename)]
    users = [f for f in kept if not f.filename.startswith(_PACKAGE)]
    if place == "session":
        kept = [f for f in kept if not f.filename.endswith(_AROUND_EACH_CALL)]
    innermost = [f for f in kept[-1:] if f not in users]  # ps_train's
    lines = [_line(f) for f in [*users[-MAX_FRAMES:], *innermost]] + (
        ["session.run"] if is_in_session else []
    )
    return Stack(place, _place(users[-1]) if users else "", tuple(lines))


def python_calls(frames: Mapping[int, FrameType] | None = None) -> list[PythonCall]:
    """The Python functions that are at work for TensorFlow, as those of an input pipeline.

    Args:
      frames: thread -> innermost frame; those of now if not given.
    """
    frames = sys._current_frames() if frames is None else frames
    found = (_python_call(innermost) for innermost in frames.values())
    return [call for call in found if call is not None]


def _python_call(innermost: FrameType) -> PythonCall | None:
    outer, frame = None, innermost
    while frame is not None:
        if _PYTHON_CALLS.fullmatch(frame.f_code.co_filename):
            outer = frame
        frame = frame.f_back  # type: ignore[assignment]
    if outer is None:
        return None
    summary = traceback.extract_stack(innermost)
    first = next(i for i, f in enumerate(summary) if _PYTHON_CALLS.fullmatch(f.filename))
    below = [f for f in summary[first:] if not _PYTHON_CALLS.fullmatch(f.filename)]
    kept = [f for f in below if not _INSTALLED.match(f.filename)] or below[-1:]
    if not kept:
        return None
    return PythonCall(outer, _place(kept[-1]), tuple(_line(f) for f in kept[-MAX_FRAMES:]))


def _place(frame: Any) -> str:
    return f"{frame.name} in {_file(frame.filename)}:{frame.lineno}"


def _line(frame: Any) -> str:
    code = f": {frame.line}" if frame.line else ""
    return f"{_file(frame.filename)}:{frame.lineno} in {frame.name}{code}"


def _file(path: str) -> str:
    if path.startswith(_PACKAGE):
        return os.path.join("ps_train", path.removeprefix(_PACKAGE))
    return display(path)
