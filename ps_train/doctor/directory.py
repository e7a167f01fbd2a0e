"""Whether checkpoints can be written to --train_dir: it is tried, with a file or directory that is removed again."""

from __future__ import annotations

import os
import pathlib
import tempfile
import threading

from ps_train.doctor.findings import Finding, ok, problem, warning
from ps_train.doctor.machine import file_system
from ps_train.wording import as_bytes

NETWORK = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "smb",
    "virtiofs",
)
IN_MEMORY = ("tmpfs", "ramfs")
FEW_BYTES, TOO_FEW_BYTES = 2 * 10**9, 10**8
FEW_FILES = 1000
ANSWER_SECS = 5.0
_ROOT = pathlib.Path("/")


def check(path: str, root: pathlib.Path = _ROOT) -> list[Finding]:
    """A line on writing, one on space, one on the file system; one in all if that fails, or does not answer in ANSWER_SECS."""
    found: list[Finding] = []
    remedy = "Look at its mount, or choose another --train_dir."

    def look() -> None:
        try:
            found.extend(_check(path, root))
        except OSError as error:
            what = f"{path} cannot be looked at: {error.strerror or error}."
            found.append(problem("train_dir", what, remedy))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(ANSWER_SECS)
    if found or not thread.is_alive():
        return found
    what = (
        f"{path} does not answer in {ANSWER_SECS:g} s, as when the server of a network file system is gone."
    )
    return [problem("train_dir", what, remedy)]


def _check(path: str, root: pathlib.Path) -> list[Finding]:
    path = os.path.abspath(path)
    if os.path.lexists(path) and not os.path.isdir(path):
        return [
            problem(
                "train_dir", f"{path} is not a directory.", "Choose another --train_dir, or move it away."
            )
        ]
    nearest = path
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    is_there = nearest == path
    try:
        _try(nearest, is_there)
    except OSError as error:
        what = "cannot be written to" if is_there else f"cannot be made in {nearest}"
        remedy = "Choose another --train_dir, or change the permissions or mount of that place."
        return [problem("train_dir", f"{path} {what}: {error.strerror}.", remedy)]
    state = "is there and can be written to" if is_there else f"is not there and can be made in {nearest}"
    return [
        ok("train_dir", f"{path} {state}."),
        check_space(os.statvfs(nearest), path),
        check_kind(path, nearest, root),
    ]


def _try(nearest: str, is_there: bool) -> None:
    """Writes a file in the directory, or makes a directory where it is to be; raises OSError."""
    if is_there:
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".ps_train_doctor") as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    else:
        os.rmdir(tempfile.mkdtemp(dir=nearest, prefix=".ps_train_doctor"))


def check_space(state: os.statvfs_result, path: str) -> Finding:
    """Bytes and files that this user may still write there."""
    free = state.f_bavail * state.f_frsize
    if state.f_files and state.f_favail < FEW_FILES:
        return problem("disk", f"the file system of {path} has room for {state.f_favail} more files.",
                       "Remove files there: it has no inodes left (df -i).")  # fmt: skip
    what = f"{as_bytes(free)} free for {path}; --keep_checkpoint_max=5 keeps five times the variables and their slots, and one more while it saves."
    if free < TOO_FEW_BYTES:
        return problem("disk", what, "Make room, or choose another --train_dir.")
    if free < FEW_BYTES:
        return warning("disk", what, "Make room, or keep fewer checkpoints.")
    return ok("disk", what)


def check_kind(path: str, nearest: str, root: pathlib.Path = _ROOT) -> Finding:
    """Of what kind the file system is that a directory is on, whose existing part is `nearest`."""
    kind = file_system(os.path.realpath(nearest), root)
    if kind.startswith(NETWORK):
        return ok(
            "file system",
            f"{path} is on a network file system ({kind}): all hosts that mount it can share it.",
        )
    if kind in IN_MEMORY:
        return warning("file system", f"{path} is in memory ({kind}): checkpoints are gone after a reboot.",
                       "Choose a --train_dir on a disk.")  # fmt: skip
    return ok(
        "file system",
        f"{path} is on this host ({kind or 'of a kind that is not known here'}): other hosts do not see it.",
    )
