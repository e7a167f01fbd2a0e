"""How Slurm writes lists: of nodes, and of the number of tasks on each.

>>> expand_nodes("gpu[01-03,7],rack[1-2]n[0-1],login")
['gpu01', 'gpu02', 'gpu03', 'gpu7', 'rack1n0', 'rack1n1', 'rack2n0', 'rack2n1', 'login']
>>> expand_counts("2(x3),1")
[2, 2, 2, 1]
"""

from __future__ import annotations

import itertools
import re

MAX_NODES = 100_000

_NODE = re.compile(r"(?:[^][,\s]|\[[^][\s]+\])+")
_PART = re.compile(r"\[([^]]+)\]|([^][]+)")


def expand_nodes(text: str) -> list[str]:
    """The nodes in their order; each bracket of a name varies more slowly than those behind it. Raises `ValueError`."""
    nodes: list[str] = []
    position = 0
    while True:
        match = _NODE.match(text, position)
        if match is None:
            raise ValueError(f"has no name of a node at character {position}")
        choices = [_expand_part(part) for part in _PART.finditer(match[0])]
        _check_number(len(nodes), *map(len, choices))
        nodes += map("".join, itertools.product(*choices))
        position = match.end()
        if position == len(text):
            return nodes
        if text[position] != ",":
            raise ValueError(f"has {text[position]!r} at character {position}")
        position += 1


def expand_counts(text: str) -> list[int]:
    """A number for each node. Raises `ValueError`."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", item)
        if match is None:
            raise ValueError(f"has {item!r} between its commas")
        repeats = int(match[2] or 1)
        _check_number(len(counts), repeats)
        counts += [int(match[1])] * repeats
    return counts


def _expand_part(part: re.Match[str]) -> list[str]:
    """The text outside of brackets, or what a bracket stands for."""
    if part[1] is None:
        return [part[2]]
    found: list[str] = []
    for item in part[1].split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", item)
        if match is None:
            raise ValueError(f"has {item!r} in a bracket")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"has {item!r} in a bracket, which counts down")
        _check_number(len(found), last - first + 1)
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _check_number(already: int, *factors: int) -> None:
    number = 1
    for factor in factors:
        number *= factor
    if already + number > MAX_NODES:
        raise ValueError(f"stands for more than {MAX_NODES} nodes")
