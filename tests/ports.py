"""Ports for servers of a test, on which nothing listens and which nobody else is given at the same time.

    for port in free_ports(3): ...

They are below those that the kernel gives to outgoing connections, as it may give those at any time; and of tests that run in
several processes, each takes its own (gRPC lets two servers listen on one port).
"""

import contextlib
import os
import random
import socket

FIRST, LAST = 10_000, 32_000


def free_ports(count):
    """So many different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    candidates = random.SystemRandom().sample(range(FIRST + worker, LAST, num_workers), 500)
    found = []
    while len(found) < count:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = candidates.pop()
            probe.bind(("0.0.0.0", port))
            found.append(port)
    return found
