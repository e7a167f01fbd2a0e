"""Finds, imports and checks a model file or module."""

import contextlib
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ps_train.errors import ModelError, PsTrainError
from ps_train.model.blame import display, is_users, location, model_error
from ps_train.model.signature import EXPECTED, check_input_fn, check_model_fn
from ps_train.model.spec import describe


@dataclass(frozen=True)
class Model:
    """The user's two functions, checked, and where they come from (`source`: the file's absolute path)."""

    input_fn: Callable[..., Any]
    model_fn: Callable[..., Any]
    name: str
    source: str


def load_model(path_or_module: str) -> Model:
    """Imports a model from a file's path ("dir/mine.py") or a dotted module ("package.mine").

    A file's directory goes to the front of `sys.path`, as with `python dir/mine.py`, so that it can import
    its neighbours. The file itself gets a module name of its own, which cannot hide an installed module.

    Raises ModelError if it cannot be found or imported, or does not define both functions as expected.
    """
    if _looks_like_path(path_or_module):
        module, source = _import_file(path_or_module)
        name = os.path.splitext(os.path.basename(source))[0]
    else:
        module, source = _import_dotted(path_or_module)
        name = path_or_module
    input_fn = _get_function(module, "input_fn", source)
    model_fn = _get_function(module, "model_fn", source)
    check_input_fn(input_fn, source)
    check_model_fn(model_fn, source)
    return Model(input_fn=input_fn, model_fn=model_fn, name=name, source=source)


def mentions(model: Model, word: str) -> bool:
    """Whether `word` stands in quotes in the model's file or in one beside it that has been imported."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    pattern = re.compile(f"""(["']){re.escape(word)}\\1""")
    for file in [model.source, *sorted(file for file in files if is_users(file, model.source))]:
        with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as source:
            if pattern.search(source.read()):
                return True
    return False


def check_exists(path_or_module: str) -> None:
    """Raises ModelError if it is a path and there is no such file: what can be said before anything is imported."""
    source = os.path.abspath(path_or_module)
    if _looks_like_path(path_or_module) and not os.path.isfile(source):
        raise ModelError(_no_file_message(path_or_module, source))


def _looks_like_path(path_or_module: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return (
        path_or_module.endswith(".py")
        or any(separator in path_or_module for separator in separators)
        or not all(part.isidentifier() for part in path_or_module.split("."))
    )


def _import_file(path: str) -> tuple[types.ModuleType, str]:
    check_exists(path)
    source = os.path.abspath(path)
    directory = os.path.dirname(source)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(source))[0])
    name = f"ps_train_model_{stem}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    loader = importlib.machinery.SourceFileLoader(name, source)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None  # spec_from_loader gives None only for a loader without is_package
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        with _importing(source):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module, source


def _no_file_message(path: str, source: str) -> str:
    if os.path.isdir(source):
        return f"--model={path} is a directory; a .py file that defines input_fn and model_fn is expected."
    directory = os.path.dirname(source)
    if not os.path.isdir(directory):
        return (
            f"--model={path} does not exist: there is no directory {directory}. Check the path and the host."
        )
    neighbours = [entry for entry in os.listdir(directory) if entry.endswith(".py")]
    close = difflib.get_close_matches(os.path.basename(source), neighbours, n=1)
    hint = f"Did you mean {close[0]}?" if close else "Check the path and the host."
    return f"--model={path} does not exist: there is no such file in {directory}. {hint}"


def _import_dotted(dotted: str) -> tuple[types.ModuleType, str]:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # the installed command, unlike `python -m`, does not put it there
    try:
        spec = importlib.util.find_spec(dotted)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{dotted}.".startswith(f"{error.name}."):
            raise model_error(f"import of the package of --model={dotted}", dotted, error) from error
        spec = None
    except Exception as error:
        raise model_error(f"import of the package of --model={dotted}", dotted, error) from error
    if spec is None:
        as_path = dotted.replace(".", os.sep) + ".py"
        hint = (
            f"--model={as_path} is a file here." if os.path.isfile(as_path) else "A file's path ends in .py."
        )
        raise ModelError(f"--model={dotted} is no module that Python can find from here. {hint}")
    source = os.path.abspath(spec.origin) if spec.has_location and spec.origin else dotted
    with _importing(source):
        return importlib.import_module(dotted), source


@contextlib.contextmanager
def _importing(source: str) -> Iterator[None]:
    """Turns what an import of the user's module can raise into a ModelError."""
    try:
        yield
    except PsTrainError:
        raise
    except SystemExit as error:
        raise ModelError(
            f"{location(error, source)} ended the program while being imported. Put what starts a run under "
            'if __name__ == "__main__": and leave only definitions outside it.'
        ) from error
    except Exception as error:
        raise model_error("import", source, error) from error


def _get_function(module: types.ModuleType, name: str, source: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        defined = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
        ]
        others = [key for key in defined if key not in ("input_fn", "model_fn")]
        close = difflib.get_close_matches(name, others, n=1, cutoff=0.5)
        found = f"its functions are {', '.join(defined)}" if defined else "it defines no functions"
        hint = f"Did you mean {close[0]}?" if close else EXPECTED[name]
        raise ModelError(f"{display(source)} does not define {name}: {found}. {hint}")
    if not callable(function):
        raise ModelError(
            f"{name} in {display(source)} is {describe(function)}; a function is expected. {EXPECTED[name]}"
        )
    return function
