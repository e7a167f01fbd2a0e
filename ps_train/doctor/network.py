"""The cluster as this host sees it: names, this task's own address and port, and what answers at the others'.

    check(cluster, TaskId("worker", 0))       # a few lines for each task, all asked at the same time

For each task, in a thread of its own:
1. its host's name is resolved, within RESOLVE_SECS;
2. a connection is made to each address that it stands for, all within CONNECT_SECS; not to this task's own;
3. where a ps should be, its board is read, within PROBE_SECS: it tells which cluster it was started with. A worker of a job
   with ps tasks has no board, so that whatever listens at its port passes for it.

Each task's beat on a board is the time by its own host's clock. So where a job runs, the clocks are compared, to about a
second; before it runs there is nothing to compare with, and only whether this host's clock is synchronized is told.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ps_train import net
from ps_train.addresses import is_ip, is_loopback, split_address
from ps_train.board import NOT_TENSORFLOW, Board, BoardError
from ps_train.cluster import Cluster, TaskId
from ps_train.doctor.findings import Finding, ok, problem, warning
from ps_train.errors import PsTrainError

RESOLVE_SECS = 4.0
CONNECT_SECS = 3.0
PROBE_SECS = 2.0
JOIN_SECS = 0.5
BETWEEN_LOOKS_SECS = 0.8  # a task writes its record twice a second
MAX_SKEW_SECS = 2.0

Resolve = Callable[[str], Sequence[str]]


class Sight(NamedTuple):
    """What was seen of one task.

    Attributes:
      addresses: those that the host's name stands for; empty if it was not resolved, `reason` says why.
      refusals: why there was no connection, for each address that gave none.
      board: that of the ps, in two looks; None where none is expected or none was read, `reason` says why.
    """

    task: TaskId
    addresses: Sequence[str] = ()
    refusals: Mapping[str, str] = {}
    board: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    reason: str = ""
    now: float = 0.0


def check(cluster: Cluster, own: TaskId | None) -> list[Finding]:
    """All lines; `own` is the task that is to run here, None if none is."""
    findings = []
    sights = look(cluster, own)
    for sight in sights:
        findings += check_name(sight, cluster)
        if sight.task == own:
            findings += [*check_own_address(sight, cluster), check_own_port(own, cluster)]
        else:
            findings += check_answer(sight, cluster)
    return findings + check_clocks(sights)


def check_exposure(port: int | None, has_others: bool) -> Finding:
    """Who reaches the servers: they listen on every interface."""
    where = "its port" if port is None else f"port {port}"
    if not has_others:
        return ok("security", f"this host has no interface but loopback: nobody else reaches {where}.")
    return warning(
        "security",
        f"TensorFlow's server listens at {where} on every interface of this host and authenticates nobody: whoever reaches it "
        "can run any program here.",
        "Let only the job's hosts reach it (README, Security); a local cluster takes --private_network.",
    )


# This task's own.


def check_own_address(sight: Sight, cluster: Cluster) -> list[Finding]:
    """Whether the task belongs on this host; nothing to say if its name cannot be resolved."""
    address = cluster.address(sight.task)
    if not sight.addresses:
        return []
    if any(map(net.is_own_address, sight.addresses)):
        return [ok("own address", f"{address} of {sight.task} is on this host.")]
    return [
        problem(
            "own address",
            f"{address} of {sight.task} is no address of this host, {socket.gethostname()}: the others would look for it elsewhere.",
            "Start it there, or check --task_index and the lists of hosts; behind a NAT that leads here it is right.",
        )
    ]


def check_own_port(own: TaskId, cluster: Cluster) -> Finding:
    """Whether the task can listen at its port."""
    address = cluster.address(own)
    try:
        net.check_port(own, address)
    except PsTrainError as error:
        return problem("own port", str(error), "")
    return ok("own port", f"{split_address(address)[1]} is free for {own}.")


# Looking.


def resolve(host: str) -> Sequence[str]:
    """The addresses of both families that a name stands for, in the resolver's order; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def look(cluster: Cluster, own: TaskId | None, resolve: Resolve = resolve) -> list[Sight]:
    """One sight of each task; takes the sum of the bounds at most, however many there are."""
    tasks = cluster.tasks
    sights = {task: Sight(task, reason=f"not resolved in {RESOLVE_SECS:g} s") for task in tasks}

    def see(task: TaskId) -> None:
        for sight in _look_at(task, cluster, task == own, resolve):
            sights[task] = sight

    threads = [threading.Thread(target=see, args=(task,), daemon=True) for task in tasks]
    deadline = (
        time.monotonic() + RESOLVE_SECS + CONNECT_SECS + JOIN_SECS + 2 * PROBE_SECS + BETWEEN_LOOKS_SECS
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return [sights[task] for task in tasks]


def _look_at(task: TaskId, cluster: Cluster, is_own: bool, resolve: Resolve) -> Iterator[Sight]:
    """What is known so far, after each part of the look: the next one may not end in time."""
    host, port = split_address(cluster.address(task))
    started = time.monotonic()
    try:
        addresses = resolve(host)
    except OSError as error:
        yield Sight(task, reason=error.strerror or str(error))
        return
    if time.monotonic() - started > RESOLVE_SECS:
        return
    sight = Sight(task, addresses)
    if is_own:
        yield sight
        return
    yield sight._replace(refusals=_unanswered(addresses))
    sight = sight._replace(refusals=_connect(addresses, port))
    ps = next((ps for ps in cluster.ps_tasks if cluster.host(ps) == task), None)
    yield sight._replace(reason=f"no answer in {PROBE_SECS:g} s")
    if ps is None or len(sight.refusals) == len(addresses):
        return
    board = Board(cluster.address(ps), ps)
    try:
        first = board.exchange([], PROBE_SECS)
        time.sleep(BETWEEN_LOOKS_SECS)
        second = board.exchange([], PROBE_SECS)
        yield sight._replace(board=(first, second), now=time.time())
    except BoardError as error:
        yield sight._replace(reason=str(error))
    finally:
        board.close()


def _unanswered(addresses: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(addresses, f"no answer in {CONNECT_SECS:g} s")


def _connect(addresses: Sequence[str], port: int) -> dict[str, str]:
    """Why each of them that does not take a connection does not."""
    refusals = _unanswered(addresses)

    def try_one(address: str) -> None:
        try:
            socket.create_connection((address, port), CONNECT_SECS).close()
            del refusals[address]
        except TimeoutError:
            pass
        except OSError as error:
            refusals[address] = (error.strerror or str(error)).lower()

    threads = [threading.Thread(target=try_one, args=(one,), daemon=True) for one in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CONNECT_SECS + JOIN_SECS)
    return dict(refusals)


# Judging.


def check_name(sight: Sight, cluster: Cluster, hostname: str | None = None) -> list[Finding]:
    """What a task's host is resolved to; nothing to say of one that is given as a number."""
    host = split_address(cluster.address(sight.task))[0]
    if is_ip(host):
        return []
    what = f"{host} of {sight.task}"
    if not sight.addresses:
        return [problem("name", f"{what} cannot be resolved: {sight.reason}.",
                        "Check the name, DNS and /etc/hosts; a pod's name is known once it has started.")]  # fmt: skip
    shown = ", ".join(sight.addresses)
    loopback = [one for one in sight.addresses if _is_loopback(one)]
    if loopback and not is_loopback(cluster.address(sight.task)):
        return [_loopback_finding(what, host, loopback, hostname or socket.gethostname())]
    by_family = [sum((":" in one) == is_v6 for one in sight.addresses) for is_v6 in (False, True)]
    if not loopback and max(by_family) > 1:
        remedy = "If these are not one host, give each task a name or number of its own."
        return [warning("name", f"{what} stands for several addresses: {shown}.", remedy)]
    return [ok("name", f"{what} is {shown}.")]


def _loopback_finding(what: str, host: str, loopback: Sequence[str], hostname: str) -> Finding:
    line = f"{what} is {', '.join(loopback)} here, which is each host's own loopback"
    is_own_name = host.lower().split(".")[0] == hostname.lower().split(".")[0]
    if is_own_name:
        return warning(
            "name",
            f"{line}, as Debian's /etc/hosts has it for a host's own name: other hosts that share that line look for it on "
            "themselves.",
            "Remove the line, or give its number in the network.",
        )
    return problem(
        "name",
        f"{line}: tasks here would look for it on this host.",
        "Correct /etc/hosts, or give the task's host by its number.",
    )


def _is_loopback(address: str) -> bool:
    return is_loopback(f"[{address}]:1" if ":" in address else f"{address}:1")


def check_answer(sight: Sight, cluster: Cluster) -> list[Finding]:
    """What is at a peer's port; nothing to say if its name cannot be resolved."""
    if not sight.addresses:
        return []
    address = f"{cluster.address(sight.task)} ({sight.task})"
    if len(sight.refusals) == len(sight.addresses):
        return [_unreached(address, sight.refusals)]
    findings = []
    if sight.refusals:
        lost = ", ".join(f"{one}: {reason}" for one, reason in sight.refusals.items())
        findings.append(
            warning("peer", f"{address} answers, and not at all addresses of its name ({lost}).",
                    "Take out of DNS or /etc/hosts what does not lead to it: a task may try that first.")
        )  # fmt: skip
    return [*findings, _identity(sight, cluster, address)]


def _unreached(address: str, refusals: Mapping[str, str]) -> Finding:
    reasons = ", ".join(dict.fromkeys(refusals.values()))
    if reasons == "connection refused":
        return warning(
            "peer", f"nothing listens at {address}; its host is up.", "Start it, if it should be running."
        )
    return problem(
        "peer",
        f"{address} is not reached: {reasons}.",
        "Is the host up, and do the firewalls between let this port through, in both directions?",
    )


def _identity(sight: Sight, cluster: Cluster, address: str) -> Finding:
    is_ps = any(cluster.host(ps) == sight.task for ps in cluster.ps_tasks)
    if not is_ps:
        return ok("peer", f"something listens at {address}.")
    if sight.board is None:
        what = "something listens that does not answer as a ps of ps_train does"
        if sight.reason == NOT_TENSORFLOW:
            what = NOT_TENSORFLOW
        remedy = "End what listens there, or pick another port; a ps that has been stopped or is too busy looks the same."
        return problem("peer", f"{address}: {what} ({sight.reason}).", remedy)
    ps = next(ps for ps in cluster.ps_tasks if cluster.host(ps) == sight.task)
    record = sight.board[1].get(str(ps)) or sight.board[1].get(str(sight.task), {})
    if "cluster" not in record:
        return problem("peer", f"{address}: a TensorFlow server answers that is no ps of ps_train.",
                       "End it, or pick another port.")  # fmt: skip
    differences = cluster.differences(Cluster.from_record(record), "here", "there")
    if differences:
        remedy = "Give all tasks the same lists of hosts, or pick another port than that job's."
        return problem("peer", f"{address} is a ps of another cluster: {' '.join(differences)}", remedy)
    return ok("peer", f"{address} is a ps of this cluster.")


def check_clocks(sights: Sequence[Sight]) -> list[Finding]:
    """Tasks whose host's clock is not this one's, of those whose records change while they are looked at."""
    skews: dict[str, float] = {}
    for sight in sights:
        first, second = sight.board or ({}, {})
        for key, record in second.items():
            beat = record.get("beat", 0)
            if first.get(key, {}).get("beat", beat) != beat and key not in skews:
                skews[key] = beat / 1e6 - sight.now
    findings = [
        warning("clock", f"that of {key}'s host is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this one's: times in "
                "the logs do not compare.", "Set both by NTP (timedatectl set-ntp true).")
        for key, skew in sorted(skews.items()) if abs(skew) > MAX_SKEW_SECS
    ]  # fmt: skip
    if skews and not findings:
        return [ok("clock", f"{', '.join(sorted(skews))} have this host's time, to {MAX_SKEW_SECS:g} s.")]
    return findings
