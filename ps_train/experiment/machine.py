"""What an experiment runs on, and how busy that is with other things.

describe()["cores"]          # 2
load()                       # {'load': 0.4, 'free_bytes': 6200000000}
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import pathlib
import platform
import re
import resource
from typing import Any, NamedTuple

from ps_train import __version__
from ps_train.doctor.machine import available_bytes, cpu_quota
from ps_train.processors import num_cores

_ROOT = pathlib.Path("/")
_PACKAGES = ("tensorflow", "numpy", "grpcio")


def describe(root: pathlib.Path = _ROOT) -> dict[str, Any]:
    """What stays as it is: processors, memory in bytes, versions. What is not known is None."""
    quota = cpu_quota(root)
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(root) or platform.machine(),
        "cores": num_cores(),
        "cores_allowed": None if math.isinf(quota) else quota,
        "memory_bytes": _memory_bytes(),
        "python": platform.python_version(),
        "ps_train": __version__,
        **{name: _version(name) for name in _PACKAGES},
    }


def load(root: pathlib.Path = _ROOT) -> dict[str, Any]:
    """How it is now: processes that run or want to, over the last minute; memory that could be given out."""
    free = available_bytes(root)
    try:
        mean = round(os.getloadavg()[0], 2)
    except OSError:
        mean = None
    return {"load": mean, "free_bytes": None if math.isinf(free) else int(free)}


class Use(NamedTuple):
    """Seconds of processor time so far: of everything on this machine, if that is known, and of this process's ended children."""

    all_secs: float | None
    own_secs: float

    @classmethod
    def now(cls, root: pathlib.Path = _ROOT) -> Use:
        """At this moment."""
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(_busy_secs(root), own.ru_utime + own.ru_stime)

    def others_since(self, before: Use, secs: float) -> float | None:
        """Processors that were busy with something else than this process's children, on average.

        >>> Use(130.0, 16.0).others_since(Use(100.0, 1.0), secs=10.0)
        1.5
        """
        if self.all_secs is None or before.all_secs is None or secs <= 0:
            return None
        own = self.own_secs - before.own_secs
        return round(max(self.all_secs - before.all_secs - own, 0.0) / secs, 2)


def _busy_secs(root: pathlib.Path) -> float | None:
    """User's and system's time of all processors, from /proc/stat."""
    try:
        words = (root / "proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, irq, soft = map(int, words[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _processor(root: pathlib.Path) -> str | None:
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"(?m)^model name\s*: (.*)$", text)
    return match[1].strip() if match else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
