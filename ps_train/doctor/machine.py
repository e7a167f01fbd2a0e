"""Processors, memory and limits of this host, as Linux and a container's cgroup give them; TensorFlow is not asked.

    check(num_tasks=3, num_peers=2)       # of the tasks that are to run here, each with so many others to talk to

`root` is where /proc and /sys are; tests have their own. What is not there to be read is not known, and then not judged.
"""

from __future__ import annotations

import ctypes
import math
import os
import pathlib
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator

from ps_train.doctor.findings import Finding, ok, problem, warning
from ps_train.processors import num_cores
from ps_train.wording import as_bytes, counted

PYTHONS = ((3, 10), (3, 13))
# Counted with TensorFlow 2.21 and the built-in model, on one processor and on two; an input pipeline adds some.
THREADS_OF_A_TASK, THREADS_OF_A_PROCESSOR = 115, 5
FILES_OF_A_TASK, FILES_OF_A_PEER = 20, 4
MIN_FILES = 1024  # which is plenty for TensorFlow itself, and leaves room for files of the input
TASK_BYTES = 500 * 10**6  # of a task whose model is small
_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)

Root = pathlib.Path
_ROOT = pathlib.Path("/")


def check(num_tasks: int, num_peers: int, root: Root = _ROOT) -> list[Finding]:
    """All of it, for `num_tasks` tasks on this host that have `num_peers` peers each."""
    return [
        check_python(sys.version_info[:2]),
        check_cpu(platform.machine(), _read(root / "proc/cpuinfo")),
        check_processors(num_tasks, num_cores(), root),
        check_memory(num_tasks, root),
        check_files(num_tasks, num_peers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        check_threads(num_tasks, num_cores(), resource.getrlimit(resource.RLIMIT_NPROC)[0], root),
        check_clock(),
    ]


def check_python(version: tuple[int, ...]) -> Finding:
    """Whether it is one that ps_train and TensorFlow run on."""
    shown, (first, last) = ".".join(map(str, version)), PYTHONS
    if first <= tuple(version) <= last:
        return ok("python", f"{shown} at {sys.executable}.")
    lowest, highest = (".".join(map(str, bound)) for bound in PYTHONS)
    return problem("python", f"{shown} is not supported.", f"Use Python {lowest} to {highest}.")


def check_cpu(machine: str, cpuinfo: str) -> Finding:
    """Whether the processor has what TensorFlow's wheel is compiled for."""
    if machine.lower() not in ("x86_64", "amd64"):
        return ok("cpu", f"{machine}, for which TensorFlow's wheel needs no extension.")
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    if not flags:
        return ok("cpu", f"{machine}, whose extensions are not known here.")
    if "avx" not in flags:
        return problem(
            "cpu",
            "it has no AVX, which TensorFlow's wheel is compiled for: the import dies of an illegal instruction.",
            "Use another machine; in a virtual one pass the host's processor through (such as -cpu host); or build TensorFlow here.",
        )
    more = " and ".join(name for name in ("avx2", "fma", "avx512f") if name in flags)
    return ok("cpu", f"AVX is there{f', and so are {more}' if more else ''}.")


def check_processors(num_tasks: int, cores: int, root: Root = _ROOT) -> Finding:
    """How many there are for the tasks on this host; a cgroup's quota is something TensorFlow does not know."""
    quota = cpu_quota(root)
    usable = min(float(cores), quota)
    if quota < cores:
        threads = max(math.floor(quota), 1)
        return warning(
            "processors",
            f"{cores} are seen, and the cgroup allows the time of {quota:g}: TensorFlow makes threads for {cores}, which are held up.",
            f"Give tasks --intra_op_threads={threads} and --inter_op_threads={threads}, or raise the limit.",
        )
    if num_tasks > usable:
        return warning(
            "processors",
            f"{num_tasks} tasks on this host share {cores}.",
            "They run, one at the expense of the other; for speed start fewer here.",
        )
    return ok("processors", f"{cores}, for {counted(num_tasks, 'task')}.")


def check_memory(num_tasks: int, root: Root = _ROOT) -> Finding:
    """What is free for the tasks on this host, by the kernel and by the cgroup's limit."""
    free, where = available_bytes(root), "the machine"
    left = cgroup_bytes_left(root)
    if left < free:
        free, where = left, "the cgroup's limit"
    if math.isinf(free):
        return ok("memory", "not known here.")
    want = f"{'wants' if num_tasks == 1 else 'want'} {as_bytes(num_tasks * TASK_BYTES)}"
    what = f"{as_bytes(int(free))} free by {where}, where {counted(num_tasks, 'task')} with a small model {want}."
    if free < num_tasks * TASK_BYTES / 2:
        return problem(
            "memory",
            what,
            "Start fewer tasks here, end what else runs, or raise the limit: the kernel kills (status 137).",
        )
    if free < num_tasks * TASK_BYTES:
        return warning("memory", what, "Start fewer tasks here, or end what else runs.")
    return ok("memory", what)


def check_files(num_tasks: int, num_peers: int, limit: int) -> Finding:
    """`ulimit -n`, which is of each process."""
    need = FILES_OF_A_TASK + FILES_OF_A_PEER * num_peers
    what = f"{_limit(limit)} (ulimit -n), of which a task with {num_peers} peers needs {need} and its input some more."
    if limit == resource.RLIM_INFINITY or limit >= max(MIN_FILES, 2 * need):
        return ok("files", what)
    level = problem if limit < need else warning
    return level("files", what, f"Raise it: ulimit -n {max(MIN_FILES, 2 * need)}.")


def check_threads(num_tasks: int, cores: int, limit: int, root: Root = _ROOT) -> Finding:
    """`ulimit -u`, which is of all of a user's processes, and a cgroup's pids.max."""
    need = num_tasks * (THREADS_OF_A_TASK + THREADS_OF_A_PROCESSOR * cores)
    wanted = f"{counted(num_tasks, 'task')} {'wants' if num_tasks == 1 else 'want'} about {need}"
    left, what = user_threads_left(limit, os.getuid(), root), "ulimit -u"
    remedy = f"End what else runs, or raise it: ulimit -u {limit + 2 * need}."
    pids = cgroup_pids_left(root)
    if pids < left:
        left, what = pids, "the cgroup's pids.max"
        remedy = f"End what else runs, or raise it by {2 * need}, in Docker by --pids-limit."
    if math.isinf(left):
        return ok("threads", f"no limit, where {wanted}.")
    line = f"{left:.0f} left by {what}, where {wanted}."
    return problem("threads", line, remedy) if left < need else ok("threads", line)


def check_clock(adjtimex: Callable[[], int | None] | None = None) -> Finding:
    """Whether the kernel takes this host's clock for synchronized; nothing but the times in logs hangs on it."""
    state = (adjtimex or _adjtimex)()
    if state is None:
        return ok("clock", "whether it is synchronized is not known here.")
    if state == _UNSYNCHRONIZED:
        return warning(
            "clock",
            "it is not synchronized, so that times in the logs of several hosts cannot be compared.",
            "Start chrony or systemd-timesyncd (timedatectl set-ntp true); in a container its host's counts.",
        )
    return ok("clock", "synchronized.")


def _adjtimex() -> int | None:
    """The clock's state as adjtimex(2) returns it; None where it is not there or not allowed."""
    try:
        state = ctypes.CDLL(None).adjtimex(
            ctypes.create_string_buffer(512)
        )  # struct timex with modes = 0: only read
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


# Reading.


def cpu_quota(root: Root) -> float:
    """Processors whose time the cgroups allow; infinite without a quota."""
    quotas = [float("inf")]
    for directory in _cgroups(root, "cpu"):
        quota, period = (_read(directory / "cpu.max").split() + ["", ""])[:2]
        if not quota:
            quota = _read(directory / "cpu.cfs_quota_us").strip()
            period = _read(directory / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):  # else "max" or "-1"
            quotas.append(int(quota) / int(period))
    return min(quotas)


def cgroup_bytes_left(root: Root) -> float:
    """Memory up to the nearest limit, what could be given back (inactive files) counted as free; infinite without one."""
    left = [float("inf")]
    for directory in _cgroups(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            bound, used = _read(directory / limit).strip(), _read(directory / usage).strip()
            if (
                bound.isdigit() and used.isdigit() and int(bound) < 2**60
            ):  # version 1 writes "none" as a huge number
                stat = dict(line.split()[:2] for line in _read(directory / "memory.stat").splitlines())
                cached = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
                left.append(max(int(bound) - max(int(used) - cached, 0), 0))
    return min(left)


def cgroup_pids_left(root: Root) -> float:
    """Threads up to the nearest limit."""
    left = [float("inf")]
    for directory in _cgroups(root, "pids"):
        bound, used = _read(directory / "pids.max").strip(), _read(directory / "pids.current").strip()
        if bound.isdigit() and used.isdigit():
            left.append(int(bound) - int(used))
    return min(left)


def user_threads_left(limit: int, user: int, root: Root) -> float:
    """Threads up to `ulimit -u`, less those of the user's processes that are seen; infinite without one, and for root.

    The kernel holds root to none, but where a user namespace's root is an ordinary user outside it.
    """
    is_root = user == 0 and _read(root / "proc/self/uid_map").split()[1:2] == ["0"]
    if limit == resource.RLIM_INFINITY or is_root:
        return float("inf")
    return max(limit - sum(_threads_of(user, path) for path in (root / "proc").glob("[0-9]*/status")), 0)


def _threads_of(user: int, path: Root) -> int:
    """How many a process has, by its status; 0 if it is another user's, or has ended."""
    status = {
        name: rest.split() for name, _, rest in (line.partition(":") for line in _read(path).splitlines())
    }
    return int(status["Threads"][0]) if status.get("Uid", [])[:1] == [str(user)] else 0


def _cgroups(root: Root, controller: str) -> Iterator[Root]:
    """The directories of this process's cgroup and of those around it, of either version."""
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" or controller in controllers.split(","):
            base = top if number == "0" else top / controller
            own = base / path.lstrip("/")
            yield from (one for one in (own, *own.parents) if one == base or base in one.parents)


def available_bytes(root: Root) -> float:
    """Memory that the kernel could give out now; infinite where it does not tell."""
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return float("inf")


def _read(path: Root) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: Root) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _limit(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def file_system(path: str, root: Root = _ROOT) -> str:
    """The type of the file system that a path with no links in it is on, as `ext4` or `nfs4`; "" if it is not known."""
    best, found = -1, ""
    for line in _read_bytes(root / "proc/self/mounts").split(b"\n"):
        words = line.split(b" ")
        if len(words) < 3:
            continue
        mount = os.fsdecode(re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), words[1]))
        if os.path.commonpath([mount, path]) == mount and len(mount) >= best:
            best, found = len(mount), os.fsdecode(words[2])
    return found
