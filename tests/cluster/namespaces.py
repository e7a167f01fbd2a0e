"""Hosts on one machine: network namespaces, joined by a bridge, whose network can be cut, black-holed and mended.

    with Network(3) as network:
        spread(job, network)                 # ps:0 on host0, worker:0 on host1, worker:1 on host2
        job.start_all()
        network.cut(network.hosts[0])        # its link is down: both sides may notice
        network.mend(network.hosts[0])
        network.blackhole(network.hosts[0])  # its packets vanish, while every link and every neighbour looks well

It needs root, on Linux, and the command `ip`; `make_network` skips a test elsewhere. The bridge is in a namespace of
its own, so that nothing of this machine's own network is touched.
"""

import functools
import itertools
import os
import pathlib
import re
import shutil
import subprocess
from typing import NamedTuple

import pytest

PORT = 2222
ETC = pathlib.Path("/etc/netns")  # `ip netns exec` mounts what is there over /etc
_numbers = itertools.count()


class Host(NamedTuple):
    """`namespace` as `ip netns` knows it; `name` is what the host calls itself."""

    namespace: str
    name: str
    address: str

    @property
    def prefix(self):
        """What leads a command line that is to run there, with the same process id."""
        rename = 'hostname "$0"; exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", rename, self.name]

    def names(self, **addresses):
        """From now on /etc/hosts of the processes there has these names, besides localhost."""
        text = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
        (ETC / self.namespace / "hosts").write_text(text)  # in place: it is mounted

    def run(self, *argv):
        """Runs a short command there; its output."""
        done = self._run(argv)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def succeeds(self, *argv):
        """Whether a short command ends with 0 there."""
        return self._run(argv).returncode == 0

    def addresses(self):
        """Its IPv4 address and, once the kernel has found that nobody else has it, the IPv6 one of its link."""
        found = re.findall(
            r"inet6 (fe80:\S+)/64 scope link(?! tentative)", self.run("ip", "address", "show", "eth0")
        )
        return [self.address, *(f"{each}%eth0" for each in found)]

    def _run(self, argv):
        return subprocess.run([*self.prefix, *argv], capture_output=True, text=True, timeout=30)


class Network:
    """`num_hosts` hosts in one subnet, 10.77.0.1 and so on."""

    def __init__(self, num_hosts):
        stem = f"pst{os.getpid()}n{next(_numbers)}"
        self._switch = f"{stem}switch"
        self.hosts = [Host(f"{stem}h{n}", f"host{n}", f"10.77.0.{n + 1}") for n in range(num_hosts)]
        self._made = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self):
        self._add(self._switch)
        self._in_switch("link", "add", "br0", "type", "bridge")
        self._in_switch("link", "set", "br0", "up")
        for host in self.hosts:
            self._add(host.namespace)
            port = self._port(host)
            _ip("link", "add", "eth0", "netns", host.namespace, "type", "veth",
                "peer", "name", port, "netns", self._switch)  # fmt: skip
            self._in_switch("link", "set", port, "master", "br0", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")

    def cut(self, host):
        """Takes the host's link down: it has no route, and the others soon no neighbour."""
        _ip("-n", host.namespace, "link", "set", "eth0", "down")

    def blackhole(self, host):
        """Takes its port, still up, off the bridge; nobody is told, nor can find out by ARP."""
        for one, other in itertools.permutations(self.hosts, 2):
            if host in (one, other):
                mac = other.run("cat", "/sys/class/net/eth0/address").strip()
                _ip("-n", one.namespace, "neighbour", "replace", other.address, "lladdr", mac,
                    "dev", "eth0", "nud", "permanent")  # fmt: skip
        self._in_switch("link", "set", self._port(host), "nomaster")

    def mend(self, host):
        """Takes back `cut` and `blackhole`."""
        _ip("-n", host.namespace, "link", "set", "eth0", "up")
        self._in_switch("link", "set", self._port(host), "master", "br0")
        for one in self.hosts:
            _ip("-n", one.namespace, "neighbour", "flush", "dev", "eth0", "nud", "permanent")

    def shape(self, mbit):
        """Gives each host a link of so many Mbit/s each way."""
        for host in self.hosts:
            limit = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
            host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)

    def close(self):
        """Deletes the namespaces, and their links with them."""
        while self._made:
            name = self._made.pop()
            _ip("netns", "delete", name)
            shutil.rmtree(ETC / name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _port(self, host):
        return f"port{self.hosts.index(host)}"

    def _add(self, namespace):
        _ip("netns", "add", namespace)
        self._made.append(namespace)
        (ETC / namespace).mkdir(parents=True)
        shutil.copy("/etc/hosts", ETC / namespace)

    def _in_switch(self, *args):
        _ip("-n", self._switch, *args)


def spread(job, network):
    """Gives each task of a harness.Job a host of its own, in the order of the job's names."""
    hosts = dict(zip(job.names, network.hosts, strict=False))
    addresses = {name: f"{host.address}:{PORT}" for name, host in hosts.items()}
    job.ps_hosts = [addresses[name] for name in job.names if name.startswith("ps")]
    job.worker_hosts = [addresses[name] for name in job.names if name.startswith("worker")]
    job.prefixes = {name: host.prefix for name, host in hosts.items()}
    return hosts


def _ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"


@functools.cache
def why_not():
    """Why there can be no namespaces here, or ""."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "makes network namespaces, which needs root"
    if not all(shutil.which(command) for command in ("ip", "unshare")):
        return "makes network namespaces, which needs the commands ip and unshare (iproute2, util-linux)"
    try:
        with Network(2) as network:
            network.hosts[0].run("true")
    except AssertionError as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


def make_network(num_hosts):
    """A Network, or the calling test is skipped with the reason."""
    if why_not():
        pytest.skip(why_not())
    return Network(num_hosts)
