"""A network of one's own: this process moves into a new network namespace, in which only loopback is up.

    enter_private_network()           # before this process has a second thread, and before its children are started

Whatever listens on every interface, as TensorFlow's servers do, listens there on loopback alone, and other processes of this
host are on another loopback. Nothing reaches out either. Files, and sockets that are files, are as before.

1. As root, or with CAP_SYS_ADMIN: unshare(CLONE_NEWNET).
2. Otherwise, where the system lets users make namespaces: unshare(CLONE_NEWUSER | CLONE_NEWNET). The user and the group stay
   what they are, all others map to nobody, as far as this process sees; access to files does not change.
3. `lo` is brought up.

The namespace ends with the last process in it. `os.unshare` is of Python 3.12.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys

from ps_train.errors import UsageError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = "16sh22x"  # name, flags, the rest of the union


def enter_private_network() -> None:
    """Moves this process, and with it all that it starts from now on.

    Raises:
      UsageError: this system does not have it, or does not allow it.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"--private_network needs Linux's network namespaces, and this is {sys.platform}. Leave it out."
        )
    user, group = os.geteuid(), os.getegid()  # nobody's, once the namespace is made
    try:
        try:
            _unshare(_CLONE_NEWNET)
        except PermissionError:
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
            _map_ids(user, group)
        _bring_up("lo")
    except OSError as error:
        why = "no more may be made" if error.errno == errno.ENOSPC else error.strerror
        raise UsageError(
            f"--private_network: this process may not have a network namespace of its own ({why}). Run it as root, "
            "or where users may make namespaces (unshare --user --net true succeeds there), or leave it out."
        ) from None


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _map_ids(user: int, group: int) -> None:
    """Who this process was is who it is in the new user namespace."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/setgroups", "w") as file:
        file.write("deny")  # or the group may not be mapped without privileges
    for name, number in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"{number} {number} 1")


def _bring_up(interface: str) -> None:
    import fcntl  # Linux has it, Windows not

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack(_IFREQ, interface.encode(), 0)
        _, flags = struct.unpack(_IFREQ, fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack(_IFREQ, interface.encode(), flags | _IFF_UP))
