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
from collections.abc import Iterable, Sequence

LOPSIDED = 1.5  # `imbalance`, from which on it is worth a word


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


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(names: Sequence[str], noun: str, most: int) -> str:
    """A few names, or if there are more than `most` how many.

    >>> named(["ps:0", "ps:1"], "ps task", most=2), named(["ps:0", "ps:1"], "ps task", most=1)
    ('ps:0, ps:1', '2 ps tasks')
    """
    return ", ".join(names) if len(names) <= most else counted(len(names), noun)


def steps_lost(number: int) -> str:
    """What becomes of the steps after a checkpoint.

    >>> steps_lost(1), steps_lost(2)
    ('1 step after it is lost', '2 steps after it are lost')
    """
    return f"{counted(number, 'step')} after it {'is' if number == 1 else 'are'} lost"


def as_secs(secs: float) -> str:
    """A bound in seconds, with no more digits than one reads.

    >>> as_secs(0.5), as_secs(37.7957), as_secs(1500.0)
    ('0.5', '37.8', '1500')
    """
    return f"{secs:.0f}" if secs >= 1000 else f"{secs:.3g}"


def as_rate(per_sec: float) -> str:
    """A rate in steps or examples a second; a slow model's is not rounded to nothing.

    >>> as_rate(98.04), as_rate(0.054), as_rate(0.0)
    ('98.0', '0.054', '0.0')
    """
    return f"{per_sec:.2g}" if 0 < per_sec < 0.95 else f"{per_sec:.1f}"


def as_bytes(number: int) -> str:
    """A size with three digits.

    >>> as_bytes(12), as_bytes(84_000_000), as_bytes(1_250)
    ('12 B', '84 MB', '1.25 kB')
    """
    size, units = float(number), ["B", "kB", "MB", "GB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def describe_shares(shares: Iterable[tuple[str, int, int]]) -> str:
    """Which ps holds how much.

    >>> describe_shares([("ps:0", 8_000_000, 4), ("ps:1", 4_000_000, 1)])
    'ps:0 8 MB in 4 variables, ps:1 4 MB in 1 variable; the fullest has 1.33 times the mean'
    >>> describe_shares([("ps:0", 64, 3), ("ps:1", 0, 0)])
    'ps:0 64 B in 3 variables, ps:1 0 B in 0 variables; one has all'

    Args:
      shares: (name of the ps, bytes, variables).
    """
    found = list(shares)
    parts = [f"{ps} {as_bytes(num_bytes)} in {counted(count, 'variable')}" for ps, num_bytes, count in found]
    text = ", ".join(parts)
    if len(found) > 1 and sum(num_bytes > 0 for _, num_bytes, _ in found) == 1:
        text += "; one has all"
    elif len(found) > 1:
        text += f"; the fullest has {imbalance([num_bytes for _, num_bytes, _ in found]):.2f} times the mean"
    return text


def imbalance(sizes: Iterable[float]) -> float:
    """The largest over the mean; 1.0 if all are zero.

    >>> imbalance([8, 4]), imbalance([0, 0])
    (1.3333333333333333, 1.0)
    """
    known = list(sizes)
    return max(known) * len(known) / sum(known) if sum(known) else 1.0
