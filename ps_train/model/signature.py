"""Whether the user's two functions can be called as ps_train does, and with which arguments."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps_train.errors import ModelError
from ps_train.model.blame import display

EXPECTED = {
    "input_fn": "Define it as input_fn(context), returning a tf.data.Dataset of (features, labels).",
    "model_fn": "Define it as model_fn(features, labels, mode, params), returning a ps_train.ModelSpec.",
}


def check_input_fn(function: Callable[..., Any], source: str) -> None:
    """Raises ModelError unless `function` can be called with one argument."""
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ModelError(
            f"input_fn{_parameters_text(signature)} in {display(source, function)} cannot be called with one "
            f"argument. {EXPECTED['input_fn']}"
        ) from None


@dataclass(frozen=True)
class ModelFnParameters:
    """Which arguments a `model_fn` accepts beside the features; `unknown`: required, yet not on offer."""

    features: bool = True
    labels: bool = True
    mode: bool = True
    params: bool = True
    unknown: tuple[str, ...] = ()


def model_fn_parameters(function: Callable[..., Any]) -> ModelFnParameters:
    """What `function` accepts by position (the data) and by name (mode, params)."""
    signature = _signature(function)
    if signature is None:
        return ModelFnParameters()
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
    return ModelFnParameters(
        features=any_position or len(data) >= 1,
        labels=any_position or len(data) >= 2,
        mode=any_name or "mode" in named,
        params=any_name or "params" in named,
        unknown=tuple(unknown),
    )


def check_model_fn(function: Callable[..., Any], source: str) -> None:
    """Raises ModelError unless `function` takes the features and requires nothing unknown."""
    accepted = model_fn_parameters(function)
    where = f"model_fn{_parameters_text(_signature(function))} in {display(source, function)}"
    if accepted.unknown:
        raise ModelError(
            f"{where} requires {', '.join(accepted.unknown)}, which ps_train does not pass. "
            f"{EXPECTED['model_fn']}"
        )
    if not accepted.features:
        raise ModelError(f"{where} takes no features. {EXPECTED['model_fn']}")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable written in C may have none
        return None


def _parameters_text(signature: inspect.Signature | None) -> str:
    return f"({', '.join(signature.parameters)})" if signature else ""
