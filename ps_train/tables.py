"""Which ps holds what, and what a step sends, as values: what workers make of their graphs and `ps_train status` shows.

    text = as_text([Held("ps:0", "hidden/kernel", (64, 32), "float32", 8192, slot_bytes=16384)])
    read_placement(text)                                # the same; () if it is nothing of the kind
    read_traffic(as_text([Line("ps:0", pull_messages=1, pulled_bytes=8192)]))

The text is kept on the boards (`liveness.Monitor.publish_text`), once and not with every beat: a model may have thousands of variables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

PLACEMENT, TRAFFIC = "placement", "traffic"  # names of the texts
EVERY_WORKER, OTHER_WORKERS = "every worker", "other workers"  # all-reduce: in the place of a ps

Row = TypeVar("Row", bound=NamedTuple)


class Held(NamedTuple):
    """A variable, or a part of one, on one ps.

    Attributes:
      ps: name of its task.
      name: as in checkpoints.
      shape: here; of a part, the part's.
      dtype: name of its type.
      num_bytes: of the variable alone; 0 if its shape is not known.
      num_slots, slot_bytes: of what the optimizer keeps for it.
      part: of a partitioned variable: where it begins in the whole one, in each dimension; else None.
      whole: the shape of the whole one then.
    """

    ps: str
    name: str
    shape: tuple[int | None, ...]
    dtype: str
    num_bytes: int
    num_slots: int = 0
    slot_bytes: int = 0
    part: tuple[int, ...] | None = None
    whole: tuple[int, ...] | None = None

    @property
    def total_bytes(self) -> int:
        """With its slots."""
        return self.num_bytes + self.slot_bytes


class Line(NamedTuple):
    """What one step of a worker sends between it and a ps, or in an all-reduce the other workers.

    Attributes:
      peer: name of the ps, or "other workers".
      pull_messages, push_messages: to the worker, and from it.
      pulled_bytes, pushed_bytes: of those whose size is known.
      unsized_messages: whose size is another one in each step, as of rows of an embedding.
      dtypes: types of what travels, the one with most bytes first; scalars do not count.
      how: in a word or two each, what was done to have fewer messages or bytes.
    """

    peer: str
    pull_messages: int = 0
    pulled_bytes: int = 0
    push_messages: int = 0
    pushed_bytes: int = 0
    unsized_messages: int = 0
    dtypes: tuple[str, ...] = ()
    how: tuple[str, ...] = ()


def text_key(task: object, name: str) -> str:
    """Under which a board keeps a text of a task."""
    return f"{task}/{name}"


def digest(text: str) -> str:
    """A few letters that another text has not."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_text(rows: Sequence[Held] | Sequence[Line]) -> str:
    """Rows as JSON, each a list."""
    return json.dumps([list(row) for row in rows], separators=(",", ":"))


def read_placement(text: str) -> tuple[Held, ...]:
    """The rows of `as_text`; none if it is nothing of the kind."""
    return _read(text, _as_held)


def read_traffic(text: str) -> tuple[Line, ...]:
    """The rows of `as_text`; none if it is nothing of the kind."""
    return _read(text, _as_line)


def _read(text: str, make: Callable[[Any], Row]) -> tuple[Row, ...]:
    """Whoever reaches a board may write there."""
    try:
        return tuple(make(values) for values in json.loads(text)) if text else ()
    except (ValueError, TypeError):
        return ()


def _as_held(values: Sequence[Any]) -> Held:
    held = Held(*values)
    part, whole = (None if each is None else tuple(map(int, each)) for each in (held.part, held.whole))
    numbers = (int(held.num_bytes), int(held.num_slots), int(held.slot_bytes))
    shape = tuple(None if size is None else int(size) for size in held.shape)
    return Held(str(held.ps), str(held.name), shape, str(held.dtype), *numbers, part, whole)


def _as_line(values: Sequence[Any]) -> Line:
    peer, *numbers = values[:-2]
    pulls, pulled, pushes, pushed, unsized = map(int, numbers)
    dtypes, how = (tuple(map(str, words)) for words in values[-2:])
    return Line(str(peer), pulls, pulled, pushes, pushed, unsized, dtypes, how)


def largest(rows: Iterable[Held], limit: int) -> tuple[list[Held], int]:
    """Those that take the most room, and how many are left out."""
    ordered = sorted(rows, key=lambda row: -row.total_bytes)
    return ordered[:limit], max(len(ordered) - limit, 0)
