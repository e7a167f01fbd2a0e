"""Jobs over several hosts (`namespaces`) whose network is cut, drops packets or lets the wrong processes meet.

With PS_TRAIN_MATRIX=1 all faults of the network; else those that no other test comes near to.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from harness import checkpoint_of
from namespaces import PORT, make_network, spread

pytestmark = pytest.mark.cluster
BOUND_SECS = 6  # --peer_timeout_secs where a fault is to pass it
LONG_SECS = 40  # where it is not
OUTAGE_SECS = 5
GRACE_SECS = 20  # beyond a bound: the guard's eight seconds, and a busy machine
START_SECS = 120  # of three processes without a launcher's fork, on a busy machine
VICTIMS = {"ps": "ps:0", "chief": "worker:0", "worker": "worker:1"}
ENDLESS = ["--train_steps=1000000", "--log_every_secs=0.2", "--save_checkpoint_steps=100"]
SLOW = "slow=all:10"
STEP = r" step [1-9]\d*/"


class Cell(NamedTuple):
    """`fault`: cut, blackhole, or either of them and "_mended", within the peer timeout."""

    role: str
    fault: str
    update: str

    def __str__(self):
        return "-".join(self)


FAULTS = ("cut_mended", "cut", "blackhole_mended", "blackhole")
CELLS = [Cell(*cell) for cell in itertools.product(VICTIMS, FAULTS, ("async", "sync"))]
USUAL = {
    Cell("ps", "cut_mended", "sync"),
    Cell("ps", "blackhole", "async"),
    Cell("chief", "cut", "async"),
    Cell("chief", "blackhole_mended", "sync"),
    Cell("worker", "blackhole", "async"),
    Cell("worker", "cut", "sync"),
}
IS_MATRIX = bool(os.environ.get("PS_TRAIN_MATRIX"))
CHOSEN = [cell for cell in CELLS if cell in USUAL or IS_MATRIX]


@pytest.fixture
def network():
    with make_network(4) as made:
        yield made


@pytest.mark.parametrize("cell", CHOSEN, ids=str)
def test_cell(make_job, network, cell):
    is_mended = cell.fault.endswith("_mended")
    job, hosts, tasks = start(make_job, network, cell.update, LONG_SECS if is_mended else BOUND_SECS)
    workers = [tasks["worker:0"], tasks["worker:1"]]
    victim = VICTIMS[cell.role]
    step = max(last_step(worker) for worker in workers)
    struck_at = time.monotonic()
    getattr(network, cell.fault.removesuffix("_mended"))(hosts[victim])
    if is_mended:
        time.sleep(OUTAGE_SECS)
        network.mend(hosts[victim])
        secs = wait_for_steps(workers, bound_secs=LONG_SECS)
        print(cell, "steps again", *(f"{each:.1f} s" for each in secs), "after the network")
        stop(tasks)
        assert checkpoint_of(job.train_dir)["global_step"] >= step
    elif cell.role == "worker" and cell.update == "async":
        expect_ends(cell, tasks, {victim: "ps:0"}, struck_at)
        going_on = rf"warning: {victim} has been silent for .*: going on without it"
        tasks["worker:0"].wait_for_line(going_on, GRACE_SECS)
        wait_for_steps([tasks["worker:0"]])
        stop({name: task for name, task in tasks.items() if name != victim})
    else:
        named = {name: "ps:0" if victim in (name, "ps:0") else victim for name in ("worker:0", "worker:1")}
        expect_ends(cell, tasks, {**named, "ps:0": "every worker has been gone"}, struck_at)
        if cell.role == "worker":
            assert checkpoint_of(job.train_dir)["global_step"] == tasks["worker:0"].report["global_step"]


def start(make_job, network, update="async", timeout_secs=LONG_SECS):
    """A job that trains; (job, name -> host, name -> process)."""
    job = make_job(1, 2, flags=[*ENDLESS, f"--update={update}"], params=SLOW, timeout_secs=timeout_secs)
    hosts = spread(job, network)
    tasks = dict(zip(job.names, job.start_all(), strict=True))
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for_line(STEP, START_SECS)
    wait_for_steps([tasks["worker:0"], tasks["worker:1"]])
    return job, hosts, tasks


def last_step(worker):
    return int(re.findall(r" step (\d+)/", worker.log)[-1])


def wait_for_steps(workers, bound_secs=GRACE_SECS):
    """Waits until each worker tells a step anew; the seconds that each took."""
    since, marks = time.monotonic(), [len(worker.log) for worker in workers]
    secs = {}
    while len(secs) < len(workers):
        for worker, mark in zip(workers, marks, strict=True):
            assert worker.status is None, worker.tail()
            if worker.name not in secs and re.search(STEP, worker.log[mark:]):
                secs[worker.name] = time.monotonic() - since
        assert time.monotonic() - since < bound_secs, "\n".join(worker.tail() for worker in workers)
        time.sleep(0.05)
    return [secs[worker.name] for worker in workers]


def expect_ends(cell, tasks, named, struck_at):
    """The tasks of `named` end with 138, each for what `named` says, within their bounds; a ps has two."""
    waiting = dict(named)
    while waiting:
        secs = time.monotonic() - struck_at
        for name in [name for name in waiting if tasks[name].status is not None]:
            reason = tasks[name].report["reason"]
            print(cell, f"{name} ended {secs:.1f} s after the fault: {reason}")
            assert tasks[name].status == 138 and waiting.pop(name) in reason, tasks[name].tail()
            assert "Traceback" not in tasks[name].log, tasks[name].tail(60)
        for name in waiting:
            bounds = 2 if name.startswith("ps") else 1
            assert secs < bounds * BOUND_SECS + GRACE_SECS, tasks[name].tail()
        time.sleep(0.05)


def stop(tasks):
    """Stops the workers, then the ps tasks; each ends in order."""
    for job in ("worker", "ps"):
        ending = [task for name, task in tasks.items() if name.startswith(job)]
        for task in ending:
            task.send(signal.SIGTERM)
        for task in ending:
            assert task.wait(GRACE_SECS) == 143, task.tail()
            assert "Traceback" not in task.log, task.tail(60)


@pytest.mark.skipif(not IS_MATRIX, reason="a minute; PS_TRAIN_MATRIX=1 runs it")
@pytest.mark.parametrize("role, update", [("ps", "async"), ("worker", "sync")])
def test_an_outage_of_three_quarters_of_the_bound(make_job, network, role, update):
    """TCP sends again only after as long as the network was away; the boards do not wait for that."""
    _, hosts, tasks = start(make_job, network, update, timeout_secs=20)
    network.blackhole(hosts[VICTIMS[role]])
    time.sleep(15)
    network.mend(hosts[VICTIMS[role]])
    secs = wait_for_steps([tasks["worker:0"], tasks["worker:1"]], bound_secs=60)
    print(role, update, "steps again", *(f"{each:.1f} s" for each in secs), "after an outage of 15 s")
    stop(tasks)


def test_three_hosts_without_ipv6_and_with_a_proxy_in_the_environment(make_job, network):
    """They train, and nobody is frightened."""
    job = make_job(1, 2, flags=["--train_steps=100", "--update=sync"], params=SLOW, timeout_secs=START_SECS)
    for host in spread(job, network).values():
        host.run(
            "sysctl", "-q", "-w", *(f"net.ipv6.conf.{name}.disable_ipv6=1" for name in ("all", "default"))
        )
        assert "inet6" not in host.run("ip", "address")
    proxy = "http://10.77.0.99:3128"  # nobody
    job.env = {"http_proxy": proxy, "HTTPS_PROXY": proxy, "grpc_proxy": proxy}
    job.start_all()
    job.expect_exits(0, secs=START_SECS)
    assert checkpoint_of(job.train_dir)["global_step"] == 100
    for task in job.tasks:
        assert "HTTPS_PROXY, grpc_proxy, http_proxy ignored: tasks talk to one another directly" in task.log
        ordinary = rf"\d\d:\d\d:\d\d {task.name} (?!warning: |error: )"
        assert all(re.match(ordinary, line) for line in task.log.splitlines()), task.log


def start_on(host, job, name):
    """Starts a task on a host that may be another than the cluster has for it."""
    own, job.prefixes[name] = job.prefixes[name], host.prefix
    try:
        return job.start(name)
    finally:
        job.prefixes[name] = own


def expect_refusal(refused, own, host):
    """`refused` ends with 138 and names the process `own` on `host`."""
    assert refused.wait(START_SECS) == 138, refused.tail()
    assert refused.report["reason"] == (
        f"Another process is running as {own.name}: process {own.pid} on {host.name}. End one of the two, or "
        "give each its own --task_index."
    )


def test_a_ps_behind_a_name_moves_to_another_host(make_job, network):
    """Nobody can resolve the name at first; then it is that of one host, and after a restart of the ps that of another."""
    job = make_job(1, 2, flags=ENDLESS, params=SLOW, timeout_secs=LONG_SECS)
    first, *workers, second = network.hosts
    spread(job, network)
    job.ps_hosts = [f"the-ps:{PORT}"]
    tasks = job.start_all(["worker:0", "worker:1"])
    for task in tasks:
        task.wait_for_line(
            r"waiting for ps:0 at the-ps:2222 \(the host's name cannot be resolved\)", START_SECS
        )
    for host in (first, *workers):
        host.names(**{"the-ps": first.address})
    ps = job.start("ps:0")
    for task in tasks:
        task.wait_for_line(STEP, START_SECS)
    ps.kill()
    for host in (second, *workers):
        host.names(**{"the-ps": second.address})
    start_on(second, job, "ps:0")
    wait_for_steps(tasks, LONG_SECS)  # gRPC looks a name up every 30 s at most, within TensorFlow


@pytest.mark.parametrize("name", ["worker:0", "worker:1"])
def test_the_same_task_on_two_hosts_at_once(make_job, network, name):
    """The one goes on that is where the cluster has it, whichever was first."""
    job = make_job(1, 2, flags=ENDLESS, params=SLOW, timeout_secs=LONG_SECS)
    hosts = spread(job, network)
    (other,) = {"worker:0", "worker:1"} - {name}
    wrong, own = start_on(network.hosts[3], job, name), job.start(name)
    for task in (wrong, own):
        task.wait_for_line("waiting for ps:0", START_SECS)
    ps, other = job.start_all(["ps:0", other])
    expect_refusal(wrong, own, hosts[name])
    own.wait_for_line(STEP, START_SECS)
    other.wait_for_line(STEP, START_SECS)
    wait_for_steps([own, other])
    assert ps.status is None


def test_the_same_task_on_two_hosts_one_after_the_other(make_job, network):
    job, hosts, tasks = start(make_job, network)
    second = start_on(network.hosts[3], job, "worker:1")
    expect_refusal(second, tasks["worker:1"], hosts["worker:1"])
    wait_for_steps([tasks["worker:0"], tasks["worker:1"]])


@pytest.mark.parametrize("is_filtered", [False, True], ids=["another host", "filtered port"])
def test_a_worker_that_the_ps_cannot_reach(make_job, network, is_filtered):
    """Its own connections are fine, so that only its steps fail: it says why, with 138, and the others train."""
    job = make_job(1, 2, flags=ENDLESS, params=SLOW, timeout_secs=BOUND_SECS)
    hosts = spread(job, network)
    if is_filtered:
        block(hosts["worker:1"])
    job.start_all(["ps:0", "worker:0"])
    job.tasks[1].wait_for_line(STEP, START_SECS)
    worker = job.start("worker:1") if is_filtered else start_on(network.hosts[3], job, "worker:1")
    assert worker.wait(START_SECS) == 138, worker.tail()
    address = f"{hosts['worker:1'].address}:{PORT}"
    cause = (
        f"{address}: .*"
        if is_filtered
        else f"{address}: Failed to connect to remote host: Connection refused"
    )
    assert re.fullmatch(
        rf"the session was lost \d+ times in \d+ s before a step was done, though every ps answers: {cause}\. The ps tasks "
        rf"connect to worker:1 at {address}, too: check that this leads to this host, and that its port is open\.",
        worker.report["reason"],
    )  # fmt: skip
    wait_for_steps([job.tasks[1]])


def test_the_firewall_of_the_readme(make_job, network, tmp_path):
    """With it a stranger's host reaches no task, by IPv4 or IPv6, and the job trains."""
    needs_nft()
    job = make_job(1, 2, flags=["--train_steps=100", "--update=sync"], params=SLOW, timeout_secs=START_SECS)
    hosts, stranger = spread(job, network), network.hosts[3]
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    (rules,) = re.findall(r"(?s)```nft\n(.*?)```", readme)
    addresses = ", ".join(host.address for host in hosts.values())
    rules, count = re.subn(r"(?<=ip saddr \{ )[\d., ]+(?= \})", addresses, rules)
    assert count == 1 and f"tcp dport {PORT}" in rules

    def reached():
        return [to for host in hosts.values() for to in host.addresses() if can_connect(stranger, to)]

    ps = job.start("ps:0")
    assert ps.wait_for_line("listening at (.*)", START_SECS)[1] == (
        f"{hosts['ps:0'].address}:{PORT}: whoever reaches this port can run any program here"
    )
    assert len(reached()) == 2, "by IPv4 and IPv6"
    (tmp_path / "rules").write_text(rules)
    for host in hosts.values():
        host.run("nft", "-f", str(tmp_path / "rules"))
    workers = job.start_all(["worker:0", "worker:1"])
    for worker in workers:
        worker.wait_for_line("listening at", START_SECS)
    assert reached() == []
    job.expect_exits(0, secs=START_SECS)


def test_a_job_whose_hosts_are_given_by_ipv6_numbers(make_job, network):
    job = make_job(1, 2, flags=["--train_steps=50", "--update=sync"], params=SLOW, timeout_secs=START_SECS)
    for number, host in enumerate(spread(job, network).values()):
        host.run("ip", "address", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
    job.ps_hosts, job.worker_hosts = [f"[fd77::0]:{PORT}"], [f"[fd77::1]:{PORT}", f"[FD77:0::2]:{PORT}"]
    job.start_all()
    job.expect_exits(0, secs=START_SECS)


def test_what_doctor_sees_from_a_host(network):
    """Debian's alias for its own name, a host without a task, one behind a firewall, and a name that there is not."""
    own, idle, filtered, _ = network.hosts
    own.names(host0="127.0.1.1", host1=idle.address, host2=filtered.address)
    block(filtered)
    hosts = f"--worker_hosts=host1:{PORT},host2:{PORT},nosuch:{PORT}"
    flags = ["--json", "--job_name=ps", f"--ps_hosts=host0:{PORT}", hosts]
    done = subprocess.run(
        [*own.prefix, sys.executable, "-m", "ps_train", "doctor", *flags],
        capture_output=True, text=True, timeout=60, env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)["findings"]
    found = [(one["level"], one["what"]) for one in told if one["topic"] in ("name", "own address", "peer")]
    aliased, own_address, first, idle_peer, second, filtered_peer, missing = found
    assert aliased[0] == "WARNING" and aliased[1].startswith("host0 of ps:0 is 127.0.1.1 here, ")
    assert own_address == ("OK", f"host0:{PORT} of ps:0 is on this host.")
    assert first == ("OK", f"host1 of worker:0 is {idle.address}.")
    assert second == ("OK", f"host2 of worker:1 is {filtered.address}.")
    assert idle_peer == ("WARNING", f"nothing listens at host1:{PORT} (worker:0); its host is up.")
    assert filtered_peer == ("PROBLEM", f"host2:{PORT} (worker:1) is not reached: no answer in 3 s.")
    assert missing[0] == "PROBLEM" and missing[1].startswith("nosuch of worker:2 cannot be resolved: ")


def can_connect(host, address):
    code = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), 2)"
    return host.succeeds(sys.executable, "-c", code, address, str(PORT))


def needs_nft():
    if not shutil.which("nft"):
        pytest.skip("needs the command nft (nftables)")


def block(host):
    """Drops what comes to the host's port, as a firewall does."""
    needs_nft()
    rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; "
    host.run("nft", rules + f"add rule inet t in tcp dport {PORT} drop")
