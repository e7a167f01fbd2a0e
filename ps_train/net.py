"""Free ports of this host, kept free until the tasks that are to listen there do; and which addresses are its own.

    with reserve_ports(3) as ports:
        start_tasks(ports)  # each listens at its port while the reservation lasts

A port that was merely found free can be lost before its task listens: to another launcher, or as the source port of an
outgoing connection (a client that tries a loopback port of the ephemeral range until its server is up can even connect to
itself). So on Linux the port stays bound, without listening: neither the kernel nor another reservation gives it away,
and a server binds there all the same, because both sockets have SO_REUSEADDR by then and only one listens. Elsewhere that
rule is another one, and the ports are let go before they are used.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator

from ps_train.addresses import split_address
from ps_train.errors import PeerLostError, UsageError


@contextlib.contextmanager
def reserve_ports(count: int) -> Iterator[list[int]]:
    """Reserves `count` different TCP ports that are free on every interface, IPv4 and IPv6, for the `with` block.

    Raises:
      UsageError: there are not so many, or this process may not have so many files open.
    """
    with contextlib.ExitStack() as held:
        try:
            sockets = [held.enter_context(_bound_socket()) for _ in range(count)]
        except OSError as error:
            raise UsageError(
                f"No {count} ports can be reserved on this host: {error.strerror}. Expected a free port for each task. "
                "Ask for fewer tasks, or raise the limit of open files (ulimit -n)."
            ) from None
        ports = [sock.getsockname()[1] for sock in sockets]
        if sys.platform != "linux":
            held.close()
        yield ports


def is_own_address(host: str) -> bool:
    """Whether a name or an IP address is one of this host's own; False if the name cannot be resolved.

    >>> is_own_address("127.0.0.1"), is_own_address("192.0.2.7")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def is_resolved(host: str) -> bool:
    """Whether a name, or an IP address, leads to an address on this host."""
    try:
        return bool(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    except OSError:
        return False


def _bound_socket() -> socket.socket:
    """A socket at a port that nobody else has; others may bind there from now on if they set SO_REUSEADDR."""
    sock = _dual_stack_socket() or _bind(socket.AF_INET, "0.0.0.0")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # before the bind it would share a taken port
    return sock


def _dual_stack_socket() -> socket.socket | None:
    try:
        return _bind(socket.AF_INET6, "::")
    except OSError:  # this host has no IPv6
        return None


def _bind(family: socket.AddressFamily, host: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
    except OSError:
        sock.close()
        raise
    return sock


def has_other_interfaces() -> bool:
    """Whether this host, or this network namespace, has another interface than loopback."""
    try:
        return any(name != "lo" for _, name in socket.if_nameindex())
    except OSError:
        return True


def check_port(task: object, address: str, flag: str = "") -> None:
    """Raises PeerLostError if something on this host has the port already; `flag` is the one that says where ports begin."""
    _, port = split_address(address)
    by_flag = f" ({flag})" if flag else ""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # this host has no such protocol
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
            except PermissionError:
                raise UsageError(
                    f"Task {task} may not listen at {address}: ports below 1024 need privileges. Pick another port."
                ) from None
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PeerLostError(
                        f"{address} ({task}) is in use by another process. End that process or pick another port{by_flag}."
                    ) from None
