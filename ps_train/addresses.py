"""One task's address, `host:port`: taken apart, checked, compared.

>>> split_address("[::1]:2222")
('::1', 2222)
>>> comparable("LOCALHOST:2222") == comparable("127.0.0.1:2222")
True
>>> comparable("[FD00:0::1]:2222"), is_loopback("[fd00::1]:2222")
('[fd00::1]:2222', False)
>>> address_problem("host0")
'has no port. Expected host:port, such as host:2222.'
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from ps_train.errors import UsageError
from ps_train.wording import shown

_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_LOOPBACK_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "127.0.0.1", "::1"}
)


def split_address(address: str) -> tuple[str, int]:
    """`("host", port)` of `host:port`; the brackets of an IPv6 host are taken off. Raises `UsageError`."""
    problem = address_problem(address)
    if problem:
        raise UsageError(f"Address {shown(address)} {problem}")
    host, _, port = address.strip().rpartition(":")
    return host.strip("[]"), int(port)


def listen_address(text: str) -> tuple[str, int]:
    """Where a server is to listen: `("host", port)` of `port`, on loopback then, or `host:port`; 0 is a free one. Raises `UsageError`.

    >>> listen_address("8080"), listen_address("0.0.0.0:0"), listen_address("[::1]:8080")
    (('127.0.0.1', 8080), ('0.0.0.0', 0), ('::1', 8080))
    """
    address = text if ":" in text else f"127.0.0.1:{text}"
    host, _, port = address.rpartition(":")
    is_free = re.fullmatch("0+", port) is not None
    host, number = split_address(f"{host}:1" if is_free else address)
    return host, 0 if is_free else number


def is_ip(host: str) -> bool:
    """Whether a host is given by its number, and not by a name.

    >>> is_ip("10.0.0.1"), is_ip("::1"), is_ip("host0")
    (True, True, False)
    """
    return ":" in host or _is_ipv4(host)


def comparable(address: str) -> str:
    """One spelling for all spellings of a valid address: lower case, loopback names joined, IPv6 compressed."""
    host, port = split_address(address)
    host = host.lower().rstrip(".")
    if ":" in host:
        host = str(ipaddress.IPv6Address(host))
    if host in _LOOPBACK_NAMES:
        host = "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether a valid address names this host to itself.

    >>> is_loopback("localhost:1"), is_loopback("127.0.0.2:1"), is_loopback("[::1]:1"), is_loopback("host0:1")
    (True, True, True, False)
    """
    host, _ = split_address(comparable(address))
    return host == "localhost" or (_is_ipv4(host) and ipaddress.IPv4Address(host).is_loopback)


def address_problem(address: Any) -> str:
    """What is wrong with `host:port` and what was expected, to follow the address in a sentence; "" if it is valid."""
    if not isinstance(address, str):
        return "is not text. Expected host:port."
    if not address:
        return "is empty. Expected host:port between the commas."
    if re.search(r"\s", address.strip()):
        return "has a blank inside. Expected host:port, with commas between addresses."
    if "://" in address:
        return "has a scheme. Expected host:port alone."
    host, colon, port = address.strip().rpartition(":")
    if address.strip().endswith("]") or not colon:
        return "has no port. Expected host:port, such as host:2222."
    if ":" in host and not host.startswith("["):
        return "has too many colons. Expected host:port; put an IPv6 host in brackets, such as [::1]:2222."
    if not re.fullmatch(r"[0-9]{1,9}", port):
        return f"has the port {shown(port)}. Expected a number from 1 to 65535."
    if not 1 <= int(port) <= 65535:
        return f"has the port {int(port)}. Expected a number from 1 to 65535."
    return _host_problem(host)


def _host_problem(host: str) -> str:
    if not host:
        return "has no host. Expected host:port, such as localhost:2222."
    if host.startswith("["):
        return (
            ""
            if host.endswith("]") and _is_ipv6(host[1:-1])
            else "is not an IPv6 address in brackets, such as [::1]:2222."
        )
    if re.fullmatch(r"[0-9.]+", host):
        return "" if _is_ipv4(host) else f"has the host {shown(host)}, which is not an IPv4 address."
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        return f"has the host {shown(host)}. Expected a name of letters, digits, '-', '_' and '.', or an IP address."
    return ""


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    if not _IPV6.fullmatch(host):
        return False
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
