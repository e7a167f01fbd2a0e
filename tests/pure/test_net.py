"""Reserved ports: taken for everyone but the server that they are for."""

import errno
import os
import socket

import pytest

from ps_train import net
from ps_train.errors import UsageError
from ps_train.net import reserve_ports


def listen(port, family=socket.AF_INET, host="127.0.0.1"):
    """A listening socket as a server has it."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen()
    return sock


def test_ports_are_different_and_can_be_listened_at_while_they_are_reserved():
    with reserve_ports(20) as ports:
        assert len(set(ports)) == 20
        with listen(ports[0]) as server, socket.create_connection(("127.0.0.1", ports[0]), timeout=1):
            assert server.accept()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[1]), timeout=1)


def test_nobody_else_gets_a_reserved_port():
    with reserve_ports(1) as (port,), socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_more_ports_than_there_are_files(monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(net, "_bound_socket", refuse)
    with pytest.raises(UsageError) as raised, reserve_ports(2000):
        pass
    assert str(raised.value) == (
        "No 2000 ports can be reserved on this host: Too many open files. Expected a free port for each task. Ask for "
        "fewer tasks, or raise the limit of open files (ulimit -n)."
    )


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", True),
        ("192.0.2.7", False),
        ("no.such.invalid", False),
    ],
)
def test_own_addresses(host, is_own):
    assert net.is_own_address(host) == is_own
