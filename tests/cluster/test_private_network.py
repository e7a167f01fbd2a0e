"""`--private_network`: a local cluster that listens where nobody else is."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's"),
]
DEADLINE_SECS = 120
LISTEN = "0A"  # in /proc/net/tcp
NOBODY = 65534
MODEL = pathlib.Path(__file__).parent / "models" / "line.py"


def listening(process="self"):
    """Ports at which something listens in a process's network namespace."""
    lines = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # no IPv6
            lines += pathlib.Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTEN}


@contextlib.contextmanager
def local_cluster(folder, *flags, prefix=()):
    """A launcher and the ports of its three tasks, which train; ended with the block."""
    argv = [
        *prefix,
        sys.executable,
        "-m",
        "ps_train",
        f"--model={MODEL}",
        "--model_params=slow=all:10",
        *flags,
    ]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    with open(folder / "launcher.txt", "wb") as out:
        launcher = subprocess.Popen([*argv, "--train_dir=t"], cwd=folder, env=env, stdout=out, stderr=out)
    try:
        yield launcher, wait_for_ports(launcher, folder)
    finally:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
            try:
                launcher.wait(30)
            finally:
                launcher.kill()  # its workers end with it, and the ps soon after


def wait_for_ports(launcher, folder):
    deadline = time.monotonic() + DEADLINE_SECS
    while True:
        logs = [path.read_text() for path in folder.glob("t/logs/*.log")]
        said = (folder / "launcher.txt").read_text()
        ports = [
            int(port) for log in logs for port in re.findall(r"listening at 127\.0\.0\.1:(\d+)[,\n]", log)
        ]
        if len(ports) == 3 and re.search(r"^step [1-9]", said, re.MULTILINE):
            return ports
        assert launcher.poll() is None and time.monotonic() < deadline, "\n".join([said, *logs])
        time.sleep(0.1)


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True


def skip_unless_allowed(*command):
    """Skips the test where this process may not make the namespaces that `command` makes."""
    if not shutil.which(command[0]):
        pytest.skip(f"needs the command {command[0]}")
    done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command)} is not allowed here: {done.stderr.strip()}")


def expect_private(launcher, ports):
    assert len(ports) == 3
    assert not set(ports) & listening(), "they are not in this host's table"
    assert set(ports) <= listening(launcher.pid)
    assert not any(can_connect(port) for port in ports)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_others_can_neither_see_nor_reach_it(tmp_path, monkeypatch, start):
    monkeypatch.setenv("PS_TRAIN_START", start)
    skip_unless_allowed("unshare", *(["--net"] if os.geteuid() == 0 else ["--user", "--net"]))
    with local_cluster(tmp_path, "--private_network") as (launcher, ports):
        expect_private(launcher, ports)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 130
    logs = [path.read_text() for path in tmp_path.glob("t/logs/*.log")]
    assert not any("other addresses" in log for log in logs), "there are none"
    said = (tmp_path / "launcher.txt").read_text()
    assert re.search(
        r"^ps_train: To go on from there: .* --private_network(=true)?( |$)", said, re.MULTILINE
    ), said


def test_without_the_flag_they_can(tmp_path):
    with local_cluster(tmp_path) as (_, ports):
        assert len(ports) == 3 and set(ports) <= listening()
        assert all(can_connect(port) for port in ports)
        logs = [path.read_text() for path in tmp_path.glob("t/logs/*.log")]
        assert sum(", and on this host's other addresses: " in log for log in logs) == 3


def test_a_user_without_privileges(tmp_path):
    """In a user namespace, in which the files are still the user's own."""
    if os.geteuid() != 0:
        pytest.skip("runs as nobody, which needs root")
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    skip_unless_allowed(*nobody, "unshare", "--user", "--net")
    if (
        subprocess.run(
            [*nobody, sys.executable, "-c", "import absl, grpc, ps_train"], timeout=60, cwd="/"
        ).returncode
        != 0
    ):
        pytest.skip("nobody may not read this interpreter or this checkout")
    folder = tmp_path / "nobodys"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    top = pathlib.Path(tempfile.gettempdir())
    for parent in (tmp_path, *(parent for parent in tmp_path.parents if top in parent.parents)):
        parent.chmod(parent.stat().st_mode | 0o011)
    with local_cluster(folder, "--private_network", prefix=nobody) as (launcher, ports):
        expect_private(launcher, ports)
        assert (folder / "t" / "logs").stat().st_uid == NOBODY


def test_where_it_is_not_allowed(tmp_path):
    """One line, status 1, before anything is made."""
    in_own_limits = ["unshare", "--user", "--map-root-user"]
    skip_unless_allowed(*in_own_limits)
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    argv = [*in_own_limits, "sh", "-c", limit, "sh", sys.executable, "-m", "ps_train", "--private_network"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "ps_train: --private_network: this process may not have a network namespace of its own (no more may be made). Run it "
        "as root, or where users may make namespaces (unshare --user --net true succeeds there), or leave it out.\n"
    )
    assert not list(tmp_path.iterdir())
