"""This process's use of processors.

before = cpu_secs()
...
used = (cpu_secs() - before) / secs         # of num_cores()
"""

from __future__ import annotations

import os
import time


def num_cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_secs() -> float:
    """Seconds of processor time, user's and system's, of all threads of this process so far."""
    return time.process_time()
