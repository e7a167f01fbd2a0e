"""What a process keeps of the memory that it has freed; each case is a process of its own, whose allocator it changes."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, threading
from ps_train.allocator import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

def use_and_free():
    libc.memset(block := libc.malloc(SIZE), 1, SIZE)
    libc.free(block)

SIZE = 100_000_000
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.memset.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
libc.free.argtypes, libc.malloc.argtypes = (ctypes.c_void_p,), (ctypes.c_size_t,)
keep_freed_memory()
before = resident()
thread = threading.Thread(target=use_and_free)
thread.start()
thread.join()
print(resident() - before > SIZE / 2)
"""


def found(**env):
    """What the program prints: whether freed memory of another thread is still there."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env={**clean, **env}, check=True
    )  # fmt: skip
    return run.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_stays_with_the_process():
    assert found() == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize(
    "env", [{"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}], ids=str
)
def test_the_user_s_own_settings_stay(env):
    assert found(**env) == "False"
