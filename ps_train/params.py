"""The parameters of a user's model, as `--model_params` has them and `params` gives them.

>>> parse_model_params("units=64,dropout=0.1")
{'units': 64, 'dropout': 0.1}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from ps_train.errors import UsageError
from ps_train.wording import did_you_mean

ParamValue = int | float | bool | str


class Params(dict[str, ParamValue]):
    """A dict that cannot be changed, in the order of the flag. Copy it with `dict(params)` to change the copy."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("model_params cannot be changed. Change a copy: dict(params).")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        """Equal params have equal hashes, whatever their order."""
        return hash(frozenset(dict.items(self)))

    def __reduce__(self) -> tuple[type[Params], tuple[dict[str, ParamValue]]]:
        """Pickles and copies by value; dict's own way would set the items one by one."""
        return (Params, (dict(self),))


def _noting_all(name: str) -> Any:
    def method(self: WatchedParams, *args: Any) -> Any:
        self._asked.update(dict.keys(self))
        return getattr(Params, name)(self, *args)

    return method


class WatchedParams(Params):
    """Params that note which keys they are asked for; all of them, once they are iterated, copied or passed on whole.

    >>> params = WatchedParams(units=3, lerning_rate=0.5)
    >>> params["units"], params.get("learning_rate", 0.1)
    (3, 0.1)
    >>> params.unread()
    ["--model_params has 'lerning_rate', which was not read while the graph was built. Did you mean learning_rate?"]
    >>> params.unread(may_be_read=lambda key: key == "lerning_rate")
    []
    >>> _ = dict(params)
    >>> params.unread()
    []
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: set[Any] = set()

    def unread(self, may_be_read: Callable[[str], bool] = lambda key: False) -> list[str]:
        """A line for each key that nobody has asked for, with the guess of one that somebody has.

        Args:
          may_be_read: of a key: whether it may be asked for later, as while the data is read, or elsewhere.
        """
        given = set(dict.keys(self))
        read = sorted(key for key in self._asked if isinstance(key, str))
        wanted = [key for key in read if key not in given]
        known = f"Read were: {', '.join(read)}." if read else "Leave it out."
        return [
            f"--model_params has {key!r}, which was not read while the graph was built. "
            + (did_you_mean(key, wanted).strip() or known)
            for key in dict.keys(self)
            if key not in self._asked and not may_be_read(key)
        ]

    def __getitem__(self, key: str) -> ParamValue:
        self._asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's."""
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(key)
        return super().__contains__(key)

    keys, values, items, copy = (
        _noting_all("keys"),
        _noting_all("values"),
        _noting_all("items"),
        _noting_all("copy"),
    )
    __iter__, __reversed__ = _noting_all("__iter__"), _noting_all("__reversed__")
    __or__, __ror__, __reduce__ = _noting_all("__or__"), _noting_all("__ror__"), _noting_all("__reduce__")


def parse_model_params(text: str | None) -> Params:
    """`"units=64,rate=1e-3,name=a:b"` as a dict; raises `UsageError` with all problems.

    `true` and `false` in any case become bool, decimal numbers int or float, everything else stays text. A value may
    contain `=` and `:` but no comma; blanks around keys and values are dropped.
    """
    params: dict[str, ParamValue] = {}
    problems = []
    for item in (text or "").split(",") if (text or "").strip() else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            problems.append(
                f"--model_params has {_quoted(item)}, which has no '='. Expected key=value,key=value; "
                "a value cannot contain a comma."
            )
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            problems.append(
                f"--model_params has the key {_quoted(key)}. "
                "Expected a letter or '_' and then letters, digits, '_', '.' or '-'."
            )
        elif key in params:
            problems.append(f"--model_params has the key {_quoted(key)} twice. Expected each key once.")
        else:
            params[key] = _parse_value(value)
    if problems:
        raise UsageError.from_problems(problems)
    return Params(params)


def format_model_params(params: dict[str, ParamValue]) -> str:
    """The inverse of `parse_model_params`."""
    return ",".join(f"{key}={as_text(value)}" for key, value in params.items())


def _parse_value(text: str) -> ParamValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return float(text)
    return text


def as_text(value: ParamValue) -> str:
    """A value as a flag has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
