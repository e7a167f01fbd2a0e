"""Calls the user's two functions and checks what they return."""

import inspect
from collections.abc import Mapping
from typing import Any

from ps_train.errors import ModelError
from ps_train.model.blame import display, user_code
from ps_train.model.loading import Model
from ps_train.model.signature import EXPECTED, model_fn_parameters
from ps_train.model.spec import InputContext, ModelSpec, describe


def call_input_fn(model: Model, context: InputContext) -> Any:
    """The user's dataset; ModelError if `input_fn` raises or returns anything but a `tf.data.Dataset`."""
    with user_code("input_fn", model.source):
        dataset = model.input_fn(context)
    if not hasattr(dataset, "element_spec"):
        raise ModelError(
            f"input_fn in {display(model.source)} returned {describe(dataset)}; a tf.data.Dataset of "
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
    accepted = model_fn_parameters(model.model_fn)
    args = [features]
    if accepted.labels:
        args.append(labels)
    elif labels is not None:
        raise ModelError(
            f"model_fn in {display(model.source)} has no parameter for the labels that input_fn's "
            f"dataset gives. {EXPECTED['model_fn']}"
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
        raise ModelError(f"model_fn in {display(model.source)}: {error}") from None


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
    raise ModelError(f"it returned {describe(result)}; a ps_train.ModelSpec is expected. {hint}")
