"""The points that `--grid` names: every combination of its axes' values.

>>> points = make_points(["update=async,sync num_workers=1,2"])
>>> [point.text for point in points][:3]
['update=async num_workers=1', 'update=async num_workers=2', 'update=sync num_workers=1']
>>> parse_grid("gpus={0,1},none model_params.hidden=64,128")
{'gpus': ('0,1', 'none'), 'model_params.hidden': ('64', '128')}

A grid is axes with blanks between them, an axis is `flag=value,value`. A value with a comma, a blank or a brace goes in braces.
`model_params.KEY` is one key of `--model_params`. Several grids are put together; a flag that one does not name has no value
there, so that it is what the rest of the command line says.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ps_train.errors import UsageError
from ps_train.wording import shown

PARAM = "model_params."
HOW = (
    "Expected flag=value,value with a blank between two flags; a value with a comma or a blank goes in braces, as "
    "gpus={0,1},none."
)
MAX_NAME = 100


class Point(NamedTuple):
    """One combination: (flag, value) of each, in the order of the grid."""

    settings: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """As it is shown, and as a grid has it."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in self.settings) or "(no axis)"

    @property
    def name(self) -> str:
        """The same as part of a file's name; two points have two names.

        >>> Point((("update", "sync"), ("model", "a/b@2.py"))).name
        'update=sync,model=a_b_2.py-6e7633'
        """
        text = ",".join(f"{name}={value}" for name, value in self.settings) or "run"
        plain = re.sub(r"[^A-Za-z0-9_.,=+-]", "_", text)[:MAX_NAME]
        is_plain = plain == text and "," not in "".join(value for _, value in self.settings)
        return (
            plain if is_plain else f"{plain}-{hashlib.sha256(repr(self.settings).encode()).hexdigest()[:6]}"
        )

    def value(self, axis: str) -> str | None:
        """Of one flag; None if this point does not set it."""
        return dict(self.settings).get(axis)

    def as_flags(self, model_params: str = "") -> list[str]:
        """The command line's flags for it.

        >>> Point((("num_ps", "2"), ("model_params.rate", "0.1"))).as_flags("units=3,rate=1")
        ['--num_ps=2', '--model_params=units=3,rate=0.1']

        Args:
          model_params: those of the rest of the command line, whose other keys stay.
        """
        flags = [f"--{name}={value}" for name, value in self.settings if not name.startswith(PARAM)]
        keys = {name.removeprefix(PARAM): value for name, value in self.settings if name.startswith(PARAM)}
        if not keys:
            return flags
        whole = self.value("model_params")
        params = dict(
            item.split("=", 1)
            for item in (model_params if whole is None else whole).split(",")
            if "=" in item
        )
        joined = ",".join(f"{key}={value}" for key, value in {**params, **keys}.items())
        return [flag for flag in flags if not flag.startswith("--model_params=")] + [
            f"--model_params={joined}"
        ]


def make_points(texts: Sequence[str]) -> list[Point]:
    """The points of all grids, the last axis fastest; without a grid the one that sets nothing.

    Raises:
      UsageError: with everything that is wrong with them.
    """
    grids, problems = [], []
    for text in texts:
        try:
            grids.append(parse_grid(text))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError.from_problems(problems)
    points = [Point(settings) for axes in grids or [{}] for settings in _combinations(axes)]
    twice = sorted({point.text for point in points if points.count(point) > 1})
    if twice:
        raise UsageError(f"--grid names {shown(twice[0])[1:-1]} twice. Expected each point once.")
    return points


def axes_of(points: Iterable[Point]) -> list[str]:
    """The flags that any of the points sets, in the order in which they come."""
    return list(dict.fromkeys(name for point in points for name, _ in point.settings))


def factors(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The flags whose values come with every combination of the others', one by one; then the rest, which vary together.

    >>> factors(make_points(["a=1,2 b=1,2"]))
    [('a',), ('b',)]
    >>> factors(make_points(["a=1 b=1,2", "a=2 b=1,2 c=3"]))
    [('b',), ('a', 'c')]
    """
    axes = axes_of(points)
    free = []
    for axis in axes:
        values = {point.value(axis) for point in points}
        rest = {tuple(point.value(other) for other in axes if other != axis) for point in points}
        if len(values) * len(rest) == len(points):
            free.append(axis)
    bound = tuple(axis for axis in axes if axis not in free)
    return [*((axis,) for axis in free), *([bound] if bound else [])]


def parse_grid(text: str) -> dict[str, tuple[str, ...]]:
    """Flag -> values; raises `UsageError` with all problems."""
    axes: dict[str, tuple[str, ...]] = {}
    problems = []
    for word in _split(text, " \t\n"):
        name, equals, rest = word.partition("=")
        values = _split(rest, ",") if equals else []
        if not equals or not name or name.startswith("-"):
            problems.append(f"--grid has {shown(word)}, which is no axis. {HOW}")
        elif not values or not all(values) or rest.endswith(","):
            problems.append(f"--grid has {shown(word)}, where a value is empty. {HOW}")
        elif not all(_is_closed(value) for value in values):
            problems.append(f"--grid has {shown(word)}, whose braces do not enclose a value. {HOW}")
        elif name in axes or len(set(values)) < len(values):
            what = f"the axis {name}" if name in axes else f"a value of {name}"
            problems.append(f"--grid has {what} twice in {shown(text)}. Expected each once.")
        else:
            axes[name] = tuple(value[1:-1] if value.startswith("{") else value for value in values)
    if not axes and not problems:
        problems.append(f"--grid={text} has no axis. {HOW}")
    if problems:
        raise UsageError.from_problems(problems)
    return axes


def _combinations(axes: dict[str, tuple[str, ...]]) -> Iterator[tuple[tuple[str, str], ...]]:
    for values in itertools.product(*axes.values()):
        yield tuple(zip(axes, values, strict=True))


def _split(text: str, separators: str) -> list[str]:
    """The parts of a text between separators that are not in braces; of blanks, several are one."""
    parts, depth = [""], 0
    for letter in text:
        depth = max(depth + (letter == "{") - (letter == "}"), 0)
        if letter in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if separators == "," else [part for part in parts if part]


def _is_closed(value: str) -> bool:
    """Whether a value has no brace, or one around all of it and what is within in pairs."""
    depth = 0
    for number, letter in enumerate(value):
        depth += (letter == "{") - (letter == "}")
        if depth < 0 or (depth == 0 and value.startswith("{") and number < len(value) - 1):
            return False
    return depth == 0 and ("{" not in value or value.startswith("{"))


def _quoted(value: str) -> str:
    return f"{{{value}}}" if re.search(r"[\s,{}]", value) or not value else value
