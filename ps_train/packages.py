"""The packages that ps_train needs: whether they are installed, and whether a file of the user's hides one.

    check(["absl"])                       # UsageError if it is not there; imports nothing
    check(directories=["models"])         # all of them; a file models/tensorflow.py is refused, too

`python -m` puts the current directory in front of the path, and `--model=dir/mine.py` puts `dir` there, so that a file
there that is named like a package is imported in its place. What follows is a traceback from the depths of somebody else.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Sequence

from ps_train.errors import UsageError

NEEDED = {
    "absl": "absl-py",
    "grpc": "grpcio",
    "numpy": "numpy",
    "rich": "rich",
    "tensorflow": "tensorflow",
}
"""What ps_train imports -> what pip calls it."""

_COME_WITH_THEM = ("google", "keras")


def check(names: Iterable[str] = (*NEEDED, *_COME_WITH_THEM), directories: Sequence[str] = ()) -> None:
    """Raises UsageError if a package is not installed, or is hidden by a file in a directory.

    Args:
      names: of top-level packages.
      directories: those that come first on the path later, beside the current one if it is on it.
    """
    names = list(names)
    here = [os.getcwd()] if {"", os.getcwd()} & set(sys.path) else []
    places = dict.fromkeys(os.path.abspath(directory) for directory in [*here, *directories])
    hiding = [file for place in places for file in (hiding_file(name, place) for name in names) if file]
    problems = [hidden_message(file) for file in hiding]
    missing = [NEEDED[name] for name in names if name in NEEDED and not _is_there(name)]
    if missing:
        problems.append(_missing_message(missing))
    if problems:
        raise UsageError.from_problems(problems)


def hiding_file(name: str, directory: str) -> str | None:
    """The file in `directory` that is imported in place of an installed package or standard module `name`; else None."""
    for file in (os.path.join(directory, name, "__init__.py"), os.path.join(directory, f"{name}.py")):
        if os.path.isfile(file):
            others = [path for path in sys.path if not _is_same(path or os.curdir, directory)]
            spec = importlib.machinery.PathFinder.find_spec(name, others)
            is_mere_folder = spec is not None and spec.origin is None and name not in _COME_WITH_THEM
            return None if spec is None or is_mere_folder else file
    return None


def hidden_message(file: str) -> str:
    """What to say of a file that `hiding_file` found."""
    folder, base = os.path.split(file)
    is_package = base == "__init__.py"
    name = os.path.basename(folder) if is_package else base.removesuffix(".py")
    hidden = "Python's own module" if name in sys.stdlib_module_names else "the installed package"
    return f"The {f'directory {folder}' if is_package else f'file {file}'} hides {hidden} {name}. Rename it."


def explain(error: BaseException, with_traceback: bool = False) -> str | None:
    """Why an import failed or a module lacks something: a file of the user's hides the real one. None if that is not it.

    Args:
      error: an ImportError or AttributeError.
      with_traceback: a hiding file that merely took part is to blame, too; right where only imports can have failed.
    """
    if error.__cause__ is not None:
        return explain(error.__cause__, with_traceback)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)] if with_traceback else []
    module = getattr(error, "obj", None)  # of an AttributeError
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = sys.modules.get(error.name.partition(".")[0])  # "random.x: 'random' is not a package"
    files += [getattr(module, "__file__", None) or "", getattr(error, "path", None) or ""]
    on_path = {os.path.realpath(path) for path in sys.path}
    for file in reversed(files):
        directory, base = os.path.split(file)
        name = base.removesuffix(".py")
        if name == "__init__":
            directory, name = os.path.split(directory)
        if base.endswith(".py") and os.path.realpath(directory) in on_path and hiding_file(name, directory):
            return hidden_message(file)
    return None


def explain_missing(error: BaseException) -> str | None:
    """What to say of a package that a package of NEEDED needs and that is not installed; None for another error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith("ps_train"):
        return None
    return _missing_message([error.name])


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # imported already, from nowhere that it tells
        return True


def _is_same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _missing_message(missing: list[str]) -> str:
    what = ", ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{what} {verb} not installed for {sys.executable}, and ps_train needs {'it' if len(missing) == 1 else 'them'}. "
        "Activate the virtual environment that ps_train was installed in, or run pip install . in its checkout."
    )
