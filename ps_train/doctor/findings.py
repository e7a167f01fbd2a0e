"""What a check has found: a line that says what is, and what to do about it.

>>> print(problem("disk", "--train_dir=a has 3 MB free.", "Make room."))
PROBLEM  disk: --train_dir=a has 3 MB free. Make room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"
LEVELS = (OK, WARNING, PROBLEM)


class Finding(NamedTuple):
    """One of `level`; `topic` is the check in a word, `remedy` is empty where there is nothing to do."""

    level: str
    topic: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<8} {self.topic}: {' '.join(f'{self.what} {self.remedy}'.split())}"


def ok(topic: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(OK, topic, what)


def warning(topic: str, what: str, remedy: str) -> Finding:
    """A job may run, and not as one would wish."""
    return Finding(WARNING, topic, what, remedy)


def problem(topic: str, what: str, remedy: str) -> Finding:
    """A job does not run."""
    return Finding(PROBLEM, topic, what, remedy)


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each, and one that counts."""
    counts = {level: sum(one.level == level for one in findings) for level in LEVELS}
    total = ", ".join(f"{counts[level]} {level}" for level in LEVELS)
    return "\n".join([*map(str, findings), f"checked: {total}"])


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """For JSON."""
    return {
        "findings": [one._asdict() for one in findings],
        "num_problems": sum(one.level == PROBLEM for one in findings),
    }
