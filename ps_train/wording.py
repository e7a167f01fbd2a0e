"""How messages quote a value, and how they guess what was meant.

>>> shown("a" * 100, limit=10)
"'aaaaaa..."
>>> did_you_mean("wroker", ["ps", "worker"])
'Did you mean worker? '
>>> did_you_mean("xyz", ["ps", "worker"])
''
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def shown(value: object, limit: int = 80) -> str:
    """`value` as a message quotes it: its repr on one line, cut if long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of `known` that `word` may be a slip for, case aside; None if none is near."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`Did you mean X? ` with a blank behind it, to go before the next sentence; empty if nothing is near."""
    match = nearest(word, known)
    return f"Did you mean {prefix}{match}? " if match else ""


def as_secs(secs: float) -> str:
    """A bound in seconds, with no more digits than one reads.

    >>> as_secs(0.5), as_secs(37.7957), as_secs(1500.0)
    ('0.5', '37.8', '1500')
    """
    return f"{secs:.0f}" if secs >= 1000 else f"{secs:.3g}"
