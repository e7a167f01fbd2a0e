"""How this process's memory allocator is set for training: glibc keeps what is freed, for the next step.

    keep_freed_memory()         # before the server starts its threads

A step allocates a tensor for each variable that is pulled and each gradient, and frees it. By default glibc gives what is
large back to the system at once, so that each step gets its pages anew, zeroed by the kernel. For large variables that cost
more than the arithmetic. What is set, for the whole process (mallopt(3)):

- nothing is returned to the system, and blocks below 2 GB are not mapped by themselves (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
  the process stays as large as it ever was. Where glibc takes no threshold above 32 MB, larger blocks are mapped as ever;
- no more arenas (M_ARENA_MAX): those of threads cannot hold blocks above 64 MB, which would be mapped after all. One that a
  thread has made before, as the program's own may, stays; TensorFlow's import makes none.

An allocator that is not glibc's, and settings of the user's own in the environment, are left alone.
"""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_NEVER = -1
_THRESHOLDS = 2**31 - 1, 2**25  # an older glibc takes no more than the second
_PRELOAD = "LD_PRELOAD"
_OWN_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")


def keep_freed_memory():
    """Has glibc keep freed memory, where it is glibc and nobody has set it otherwise."""
    if any(name.startswith(_OWN_SETTINGS) for name in os.environ) or "malloc" in os.environ.get(_PRELOAD, ""):
        return
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        return
    # The threshold first: any of these settings ends glibc's own raising of it, from 128 kB on.
    if any(libc.mallopt(_M_MMAP_THRESHOLD, threshold) for threshold in _THRESHOLDS):
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
        libc.mallopt(_M_ARENA_MAX, 1)
