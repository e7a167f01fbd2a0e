r"""Hosts and their slots, as mpirun has them on its command line and in a hostfile.

>>> parse_hosts("a:2,root@b")
[Host(name='a', slots=2), Host(name='root@b', slots=1)]
>>> [host.address for host in parse_hosts("root@b:2,[::1]:3")]
['b', '[::1]']
>>> parse_hostfile("# ours\na slots=2\n\nb  # the old one\n")
[Host(name='a', slots=2), Host(name='b', slots=1)]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.addresses import address_problem, comparable
from ps_train.errors import UsageError
from ps_train.resolvers.launched import Place

MAX_SLOTS = 1000


class Host(NamedTuple):
    """A host by the name that ssh is given, and how many tasks it takes."""

    name: str
    slots: int

    @property
    def address(self) -> str:
        """By which the tasks know it: without a user's name."""
        return self.name.rpartition("@")[2]

    @property
    def ssh_name(self) -> str:
        """As ssh wants it: without an IPv6 address's brackets."""
        return re.sub(r"[][]", "", self.name)


def parse_hosts(text: str) -> list[Host]:
    """`host:slots,host`; raises `UsageError` with all problems."""
    found: list[Host] = []
    problems: list[str] = []
    for item in text.split(","):
        match = re.fullmatch(r"((?:[^@\s]+@)?(?:\[[^]]*\]|[^:\s]+))(?::([0-9]{1,4}))?", item.strip())
        if match is None:
            problems.append(
                f"--hosts has {item.strip()!r}. Expected host or host:slots, with commas, such as a:2,b:2."
            )
        else:
            found.append(_host(match[1], match[2], "--hosts", problems))
    return _checked(found, "--hosts", problems)


def parse_hostfile(text: str, name: str = "--hostfile") -> list[Host]:
    """A host on each line, with ` slots=N` behind it or not; raises `UsageError` with all problems."""
    found: list[Host] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        match = re.fullmatch(r"(\S+)(?:\s+slots\s*=\s*([0-9]{1,4}))?", line)
        if match is not None:
            found.append(_host(match[1], match[2], f"{name} line {number}", problems))
        elif line:
            problems.append(
                f"{name} line {number} is {line!r:.60}. Expected a host, and slots=N behind it or nothing."
            )
    if not found and not problems:
        problems.append(f"{name} names no host. Expected one on each line, such as: host0 slots=2")
    return _checked(found, name, problems)


def _host(name: str, slots: str | None, where: str, problems: list[str]) -> Host:
    host = Host(name, int(slots or 1))
    problem = address_problem(f"{host.address}:1")
    if problem or name.startswith("-"):
        problems.append(
            f"{where}: {name!r} is no host. Expected a name or an IP address, as the tasks reach it."
        )
    if not 1 <= host.slots <= MAX_SLOTS:
        problems.append(
            f"{where}: {name} has {host.slots} slots. Expected a number of tasks from 1 to {MAX_SLOTS}."
        )
    return host


def _checked(hosts: list[Host], where: str, problems: list[str]) -> list[Host]:
    """`hosts`, of which none may be there twice, by whatever name."""
    names: dict[str, list[str]] = {}
    for host in hosts:
        address = f"{host.address}:1"
        if not address_problem(address):
            names.setdefault(comparable(address), []).append(host.address)
    for same in names.values():
        if len(same) > 1:
            found = f"{same[0]} twice" if len(set(same)) == 1 else f"{' and '.join(same)}, which are one host"
            problems.append(f"{where} has {found}. Expected it once, with the sum of its slots.")
    if problems:
        raise UsageError.from_problems(problems)
    return hosts


def first_slots(hosts: Sequence[Host], number: int) -> list[Host]:
    """So many slots, from the first host on; fewer if there are no more.

    >>> first_slots([Host("a", 2), Host("b", 2), Host("c", 1)], 3)
    [Host(name='a', slots=2), Host(name='b', slots=1)]
    """
    found = []
    for host in hosts:
        slots = min(host.slots, number)
        number -= slots
        if slots:
            found.append(host._replace(slots=slots))
    return found


def as_text(hosts: Sequence[Host]) -> str:
    """What `parse_hosts` reads.

    >>> as_text([Host("root@b", 1), Host("[::1]", 3)])
    'root@b:1,[::1]:3'
    """
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def places(hosts: Sequence[Host]) -> list[Place]:
    """A place for each slot, host after host.

    >>> [(place.host, place.local_index) for place in places([Host("a", 2), Host("u@b", 1)])]
    [('a', 0), ('a', 1), ('b', 0)]
    """
    return [Place(host.address, number) for host in hosts for number in range(host.slots)]
