"""The contract with the user's model: two functions in a file or module, loaded, called and checked here.

A model file defines `input_fn` and `model_fn`; there is no base class to inherit:

    import tensorflow as tf
    import ps_train

    tf1 = tf.compat.v1

    def input_fn(context):  # context: an InputContext
        data = tf.data.Dataset.range(1000).shard(context.num_shards, context.shard_index)
        data = data.repeat().shuffle(100, context.seed).batch(context.batch_size)
        return data.map(lambda i: (tf.cast(i, tf.float32), 2.0 * tf.cast(i, tf.float32)))

    def model_fn(features, labels, mode, params):  # mode and params may be left out, as with Estimator
        w = tf1.get_variable("w", [])
        loss = tf.reduce_mean(tf.square(w * features - labels))
        return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.AdamOptimizer(params.get("lr", 0.1)))

In every worker, and in the evaluator:

1. `load_model(path)` imports the file and checks both signatures; no graph exists yet.
2. `call_input_fn(model, context)` gives the dataset, `split_element` what one of its elements is.
3. `call_model_fn(model, features, labels, mode, params)` gives a validated `ModelSpec`.

Whatever goes wrong in the user's code becomes a one-line `ModelError` that names the user's file and line,
with the original exception as its cause. This module needs no TensorFlow.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ps_train.errors import ModelError, PsTrainError

_PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__))
_MAX_MESSAGE_CHARS = 600


class ModeKeys:
    """The values of `mode`; stands in for `tf.estimator.ModeKeys` in a ported `model_fn`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What `input_fn` is told: which part of the data this task reads, and how.

    Attributes:
        mode: "train", "eval" or "predict".
        batch_size: examples per worker and step.
        num_shards: number of tasks that divide the data among them; 1 in "eval" and "predict".
        shard_index: this task's part, from 0.
        seed: this task's own stream (see `worker_seed`), or None where the job has no seed.
        params: `--model_params`, as parsed.
    """

    mode: str = ModeKeys.TRAIN
    batch_size: int = 32
    num_shards: int = 1
    shard_index: int = 0
    seed: int | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What `model_fn` returns.

    Attributes:
        loss: scalar floating-point tensor; needed in "train" and "eval".
        optimizer: a `tf.compat.v1.train.Optimizer`, which ps_train applies. In "train", give this or:
        train_op: the op of one step, made with `ps_train.DistributedOptimizer(optimizer).minimize(...)`.
        predictions: a tensor or a structure of tensors; needed in "predict".
        metrics: name -> (value tensor, update op), as the functions in `tf.compat.v1.metrics` return them.
        training_hooks: `SessionRunHook`s added to every worker's session.
    """

    loss: Any = None
    optimizer: Any = None
    train_op: Any = None
    predictions: Any = None
    metrics: Mapping[str, tuple[Any, Any]] | None = None
    training_hooks: Sequence[Any] = ()

    def validate(self, mode: str) -> "ModelSpec":
        """Returns self; raises ModelError, naming the field and the remedy, if `mode` cannot run with it."""
        if mode == ModeKeys.PREDICT:
            if self.predictions is None:
                raise ModelError(
                    "ModelSpec has no predictions, which mode 'predict' needs. Pass predictions=..."
                )
            return self
        _check_loss(self.loss, mode)
        _check_metrics(self.metrics)
        if mode == ModeKeys.TRAIN:
            self._check_train_fields()
        return self

    def _check_train_fields(self) -> None:
        if self.optimizer is None and self.train_op is None:
            raise ModelError(
                "ModelSpec has neither optimizer nor train_op, and mode 'train' needs one of them. "
                "Pass optimizer=tf.compat.v1.train.AdamOptimizer(1e-3), for one."
            )
        if self.optimizer is not None and self.train_op is not None:
            raise ModelError(
                "ModelSpec has both optimizer and train_op; exactly one is expected. Drop train_op, and "
                "ps_train applies the optimizer; or drop optimizer, and make train_op with "
                "ps_train.DistributedOptimizer(optimizer)."
            )
        if self.optimizer is not None:
            _check_optimizer(self.optimizer)
        if self.training_hooks is None or isinstance(self.training_hooks, (str, Mapping)):
            raise ModelError(
                f"ModelSpec.training_hooks is {_describe(self.training_hooks)}; "
                "a list of SessionRunHooks is expected."
            )


@dataclasses.dataclass(frozen=True)
class Model:
    """The user's two functions, checked, and where they come from (`source`: the file's absolute path)."""

    input_fn: Callable[..., Any]
    model_fn: Callable[..., Any]
    name: str
    source: str


def worker_seed(seed: int | None, shard_index: int) -> int | None:
    """One worker's stream of the job's seed, in [0, 2**31); the same in every process and Python version.

    >>> worker_seed(7, 0), worker_seed(7, 1), worker_seed(None, 1)
    (431379789, 1406334329, None)
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{shard_index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


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
    _check_input_fn(input_fn, source)
    _check_model_fn(model_fn, source)
    return Model(input_fn=input_fn, model_fn=model_fn, name=name, source=source)


def call_input_fn(model: Model, context: InputContext) -> Any:
    """The user's dataset; ModelError if `input_fn` raises or returns anything but a `tf.data.Dataset`."""
    with user_code("input_fn", model.source):
        dataset = model.input_fn(context)
    if not hasattr(dataset, "element_spec"):
        raise ModelError(
            f"input_fn in {_display(model.source)} returned {_describe(dataset)}; a tf.data.Dataset of "
            "(features, labels) is expected. Return the dataset itself, not an iterator or its tensors."
        )
    return dataset


def split_element(element: Any) -> tuple[Any, Any]:
    """(features, labels) of one dataset element; labels are None where the element is no pair."""
    if not isinstance(element, tuple) or hasattr(element, "_fields"):
        return element, None
    if len(element) == 1:
        return element[0], None
    if len(element) == 2:
        return element
    raise ModelError(
        f"input_fn's dataset has elements of {len(element)} parts; (features, labels) is expected. "
        "Put several features into a dict: dataset.map(lambda a, b, y: ({'a': a, 'b': b}, y))."
    )


def call_model_fn(
    model: Model, features: Any, labels: Any, mode: str, params: Mapping[str, Any]
) -> ModelSpec:
    """Calls `model_fn` with what its signature accepts; gives a `ModelSpec` validated for `mode`.

    An object with `loss` and `train_op` attributes (an `EstimatorSpec`) is converted.
    """
    accepted = _model_fn_parameters(model.model_fn)
    args = [features]
    if accepted.labels:
        args.append(labels)
    elif labels is not None:
        raise ModelError(
            f"model_fn in {_display(model.source)} has no parameter for the labels that input_fn's "
            f"dataset gives. {_EXPECTED['model_fn']}"
        )
    kwargs: dict[str, Any] = {}
    if accepted.mode:
        kwargs["mode"] = mode
    if accepted.params:
        kwargs["params"] = params
    with user_code("model_fn", model.source):
        result = model.model_fn(*args, **kwargs)
    try:
        return _as_model_spec(result).validate(mode)
    except ModelError as error:
        raise ModelError(f"model_fn in {_display(model.source)}: {error}") from None


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
        raise _model_error(what, source, error) from error


# Importing.


def _looks_like_path(path_or_module: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return (
        path_or_module.endswith(".py")
        or any(separator in path_or_module for separator in separators)
        or not all(part.isidentifier() for part in path_or_module.split("."))
    )


def _import_file(path: str) -> tuple[types.ModuleType, str]:
    source = os.path.abspath(path)
    if not os.path.isfile(source):
        raise ModelError(_no_file_message(path, source))
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
            raise _model_error(f"import of the package of --model={dotted}", dotted, error) from error
        spec = None
    except Exception as error:
        raise _model_error(f"import of the package of --model={dotted}", dotted, error) from error
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
            f"{_location(error, source)} ended the program while being imported. Put what starts a run under "
            'if __name__ == "__main__": and leave only definitions outside it.'
        ) from error
    except Exception as error:
        raise _model_error("import", source, error) from error


# What the user's module defines.


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
        hint = f"Did you mean {close[0]}?" if close else _EXPECTED[name]
        raise ModelError(f"{_display(source)} does not define {name}: {found}. {hint}")
    if not callable(function):
        raise ModelError(
            f"{name} in {_display(source)} is {_describe(function)}; a function is expected. "
            f"{_EXPECTED[name]}"
        )
    return function


_EXPECTED = {
    "input_fn": "Define it as input_fn(context), returning a tf.data.Dataset of (features, labels).",
    "model_fn": "Define it as model_fn(features, labels, mode, params), returning a ps_train.ModelSpec.",
}


def _check_input_fn(function: Callable[..., Any], source: str) -> None:
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ModelError(
            f"input_fn{_parameters_text(signature)} in {_display(source, function)} cannot be called with one "
            f"argument. {_EXPECTED['input_fn']}"
        ) from None


@dataclasses.dataclass(frozen=True)
class _ModelFnParameters:
    """Which arguments a `model_fn` accepts beside the features; `unknown`: required, yet not on offer."""

    features: bool = True
    labels: bool = True
    mode: bool = True
    params: bool = True
    unknown: tuple[str, ...] = ()


def _model_fn_parameters(function: Callable[..., Any]) -> _ModelFnParameters:
    signature = _signature(function)
    if signature is None:
        return _ModelFnParameters()
    parameters = list(signature.parameters.values())
    kinds = {parameter.kind for parameter in parameters}
    by_position = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    data = []
    for parameter in by_position[:2]:
        if parameter.name in ("mode", "params", "config"):
            break
        data.append(parameter.name)
    any_position = inspect.Parameter.VAR_POSITIONAL in kinds
    any_name = inspect.Parameter.VAR_KEYWORD in kinds
    named = {
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in (*data, "mode", "params")
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return _ModelFnParameters(
        features=any_position or len(data) >= 1,
        labels=any_position or len(data) >= 2,
        mode=any_name or "mode" in named,
        params=any_name or "params" in named,
        unknown=tuple(unknown),
    )


def _check_model_fn(function: Callable[..., Any], source: str) -> None:
    accepted = _model_fn_parameters(function)
    where = f"model_fn{_parameters_text(_signature(function))} in {_display(source, function)}"
    if accepted.unknown:
        raise ModelError(
            f"{where} requires {', '.join(accepted.unknown)}, which ps_train does not pass. "
            f"{_EXPECTED['model_fn']}"
        )
    if not accepted.features:
        raise ModelError(f"{where} takes no features. {_EXPECTED['model_fn']}")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable written in C may have none
        return None


def _parameters_text(signature: inspect.Signature | None) -> str:
    return f"({', '.join(signature.parameters)})" if signature else ""


# What model_fn returned.


def _as_model_spec(result: Any) -> ModelSpec:
    if isinstance(result, ModelSpec):
        return result
    if not inspect.isclass(result) and hasattr(result, "loss") and hasattr(result, "train_op"):
        return ModelSpec(
            loss=result.loss,
            train_op=result.train_op,
            predictions=getattr(result, "predictions", None),
            metrics=getattr(result, "eval_metric_ops", None) or getattr(result, "metrics", None),
            training_hooks=tuple(getattr(result, "training_hooks", None) or ()),
        )
    hint = "End it with: return ps_train.ModelSpec(loss=loss, optimizer=optimizer)."
    if inspect.isclass(result) and issubclass(result, ModelSpec):
        hint = "Call it: ps_train.ModelSpec(loss=loss, optimizer=optimizer)."
    raise ModelError(f"it returned {_describe(result)}; a ps_train.ModelSpec is expected. {hint}")


def _check_loss(loss: Any, mode: str) -> None:
    if loss is None:
        raise ModelError(
            f"ModelSpec has no loss, which mode '{mode}' needs. Pass loss=... (a scalar tensor)."
        )
    shape, dtype = getattr(loss, "shape", None), getattr(loss, "dtype", None)
    if not hasattr(loss, "graph") or shape is None or dtype is None:
        raise ModelError(f"ModelSpec.loss is {_describe(loss)}; a scalar tensor of the graph is expected.")
    if shape.rank not in (0, None):
        raise ModelError(
            f"ModelSpec.loss has shape {tuple(shape)}; a scalar is expected. "
            "Take its mean: loss=tf.reduce_mean(loss)."
        )
    if not dtype.is_floating:
        raise ModelError(
            f"ModelSpec.loss is of type {dtype.name}; a floating-point scalar is expected. Use tf.cast."
        )


def _check_metrics(metrics: Any) -> None:
    if metrics is None:
        return
    example = 'Pass metrics={"accuracy": tf.compat.v1.metrics.accuracy(labels, predictions)}.'
    if not isinstance(metrics, Mapping):
        raise ModelError(f"ModelSpec.metrics is {_describe(metrics)}; a dict is expected. {example}")
    for name, pair in metrics.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ModelError(
                f"ModelSpec.metrics[{name!r}] is {_describe(pair)}; a pair (value, update_op) is expected. "
                f"{example}"
            )


def _check_optimizer(optimizer: Any) -> None:
    hint = "Pass one from tf.compat.v1.train, such as tf.compat.v1.train.AdamOptimizer(1e-3)."
    if inspect.isclass(optimizer):
        raise ModelError(
            f"ModelSpec.optimizer is the class {optimizer.__name__}; an instance is expected. {hint}"
        )
    if not (hasattr(optimizer, "compute_gradients") and hasattr(optimizer, "apply_gradients")):
        kind = "a Keras optimizer" if hasattr(optimizer, "apply_gradients") else _describe(optimizer)
        raise ModelError(f"ModelSpec.optimizer is {kind}; a TensorFlow 1 optimizer is expected. {hint}")


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# Where in the user's code an exception comes from.


def _model_error(what: str, source: str, error: BaseException) -> ModelError:
    location = _location(error, source)
    if isinstance(error, SyntaxError) and error.filename:
        return ModelError(
            f"{_display(error.filename)}:{error.lineno or '?'} has a syntax error: {error.msg}."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ModelError(
            f"{location} imports {error.name}, which is not installed here. Install it for {sys.executable}, "
            "or put it beside the model file."
        )
    if isinstance(error, AttributeError) and "is not available with Keras 3" in str(error):
        return ModelError(
            f"{location} uses {str(error).split(' is not')[0].strip('`')}, a TensorFlow 1 layer that Keras 3 "
            'lacks. Install tf_keras (pip install "ps_train[legacy-layers]") and set TF_USE_LEGACY_KERAS=1 in the '
            "environment of every task."
        )
    return ModelError(f"{what} in {location} raised {type(error).__name__}: {_one_line(error)}")


def _location(error: BaseException, source: str) -> str:
    """FILE:LINE of the innermost frame of the user's code; `source` alone where there is none."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # AutoGraph runs a rewritten copy of the function, and lists the original lines in the message instead.
    frames += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    for filename, line in reversed(frames):
        if _is_users(filename, source):
            return f"{_display(filename)}:{line}"
    return _display(source)


def _is_users(filename: str, source: str) -> bool:
    filename = os.path.abspath(filename)
    if filename == source:
        return True
    parts = filename.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or filename.startswith(_PACKAGE_DIR + os.sep):
        return False
    return filename.startswith(os.path.dirname(source) + os.sep)


def _one_line(error: BaseException) -> str:
    text = str(error)
    if text.lstrip().startswith("in user code:"):
        text = text.rstrip().splitlines()[-1].strip().partition(": ")[2] or text
    text = " ".join(text.split()) or "(no message)"
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}..."


def _display(path: str, function: Callable[..., Any] | None = None) -> str:
    """The path as a user would write it from here, with the line of `function`'s definition if given."""
    if os.path.isabs(path):
        relative = os.path.relpath(path)
        path = path if relative.startswith(os.pardir) else relative
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    return f"{path}:{code.co_firstlineno}" if code else path
