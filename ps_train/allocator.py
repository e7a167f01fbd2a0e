"""How this process's memory allocator is set for training: glibc keeps what is freed, for the next step.

    if keep_freed_memory(): ...

A step allocates a tensor for each variable that is pulled and each gradient, and frees it. By default glibc gives what is
large back to the system at once, so that each step gets its pages anew, zeroed by the kernel. For large variables that cost
more than the arithmetic. What is set, for the whole process (mallopt(3)):

- nothing is returned to the system and nothing is mapped by itself (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD): the process stays as
  large as it ever was;
- one arena (M_ARENA_MAX): others cannot hold blocks above 64 MB, which would be mapped after all.

An allocator that is not glibc's, and settings of the user's own in the environment, are left alone.
"""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_NEVER, _LARGEST = -1, 2**31 - 1
_PRELOAD = "LD_PRELOAD"
_OWN_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")


def keep_freed_memory():
    """Has glibc keep freed memory; whether it does by this call."""
    if any(name.startswith(_OWN_SETTINGS) for name in os.environ) or "malloc" in os.environ.get(_PRELOAD, ""):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _NEVER))
    return all([libc.mallopt(*setting) for setting in settings])
