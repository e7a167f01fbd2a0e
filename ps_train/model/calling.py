"""Calls the user's two functions and checks what they return."""

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from ps_train.errors import ModelError
from ps_train.model.blame import display, is_users, user_code
from ps_train.model.loading import Model
from ps_train.model.signature import EXPECTED, model_fn_parameters
from ps_train.model.spec import InputContext, ModelSpec, describe


def call_input_fn(model: Model, context: InputContext) -> Any:
    """The user's dataset; ModelError if `input_fn` raises or returns anything but a `tf.data.Dataset`."""
    with user_code("input_fn", model.source):
        dataset = model.input_fn(context)
    if not hasattr(dataset, "element_spec"):
        raise ModelError(
            f"input_fn in {display(model.source, model.input_fn)} returned {describe(dataset)}; a tf.data.Dataset of "
            "(features, labels) is expected. Return the dataset itself, not an iterator or its tensors."
        )
    split_element(dataset.element_spec, f"The dataset of input_fn in {display(model.source, model.input_fn)}")
    return dataset


def split_element(element: Any, what: str = "input_fn's dataset") -> tuple[Any, Any]:
    """(features, labels) of one element of the dataset that `what` names; labels are None where it is no pair."""
    if not isinstance(element, tuple) or hasattr(element, "_fields"):
        return element, None
    if len(element) == 1:
        return element[0], None
    if len(element) == 2:
        return element
    raise ModelError(
        f"{what} has elements of {len(element)} parts; (features, labels) is expected. "
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
            f"model_fn in {display(model.source, model.model_fn)} has no parameter for the labels that input_fn's "
            f"dataset gives. {EXPECTED['model_fn']}"
        )
    kwargs: dict[str, Any] = {}
    if accepted.mode:
        kwargs["mode"] = mode
    if accepted.params:
        kwargs["params"] = params
    with user_code("model_fn", model.source):
        result = model.model_fn(*args, **kwargs)
    with blaming_result(model, result):
        return _as_model_spec(result).validate(mode)


def result_place(model: Model, result: Any) -> str:
    """FILE:LINE of the ModelSpec that `model_fn` returned; that of `model_fn` for anything else."""
    if isinstance(result, ModelSpec) and is_users(result.made_at[0], model.source):
        return f"{display(result.made_at[0])}:{result.made_at[1]}"
    return display(model.source, model.model_fn)


def blaming_result(model: Model, result: Any) -> contextlib.AbstractContextManager[None]:
    """As `user_code`, for the use of what `model_fn` returned: an error is told with the place of that."""
    return user_code("model_fn", model.source, result_place(model, result))


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
