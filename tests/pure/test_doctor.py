"""`ps_train doctor`: each check is made to find what it is for, on fake files of /proc and real sockets."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from ps_train import __main__ as program
from ps_train import doctor, flags
from ps_train.board import NOT_TENSORFLOW, BoardError
from ps_train.cluster import Cluster, TaskId
from ps_train.commands.doctor import make_plan
from ps_train.doctor import directory, machine, network, software
from ps_train.doctor.findings import OK, PROBLEM, WARNING, as_text, ok, problem, warning
from ps_train.doctor.network import Sight
from ps_train.errors import UsageError
from ps_train.resolvers import Resolved

PS, WORKER = TaskId("ps", 0), TaskId("worker", 0)
CLUSTER = Cluster.from_hosts("p:1", "w:1")


def write(root, **files):
    """Files below `root`, with `__` for `/` in their names."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("proc_self", "proc/self")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# This machine.


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9), PROBLEM), ((3, 10), OK), ((3, 13), OK), ((3, 14), PROBLEM)]
)
def test_python(version, level):
    assert machine.check_python(version).level == level


@pytest.mark.parametrize(
    ("name", "cpuinfo", "level"),
    [
        ("x86_64", "flags\t: fpu sse2 avx avx2\n", OK),
        ("x86_64", "flags\t: fpu sse2 avx512f\n", PROBLEM),  # avx by itself
        ("x86_64", "", OK),
        ("aarch64", "Features: fp\n", OK),
    ],
)
def test_cpu(name, cpuinfo, level):
    assert machine.check_cpu(name, cpuinfo).level == level


V2 = {"proc__self__cgroup": "0::/a/b\n"}
V1 = {"proc__self__cgroup": "4:memory:/a\n2:cpu,cpuacct:/a\n3:pids:/a\n"}


@pytest.mark.parametrize(
    ("files", "level", "what"),
    [
        (V2, OK, "4, for 3 tasks."),
        ({**V2, "sys__fs__cgroup__a__b__cpu.max": "max 100000\n"}, OK, "4, for 3 tasks."),
        ({**V2, "sys__fs__cgroup__a__cpu.max": "150000 100000\n"}, WARNING, "allows the time of 1.5: "),
        ({**V1, "sys__fs__cgroup__cpu__a__cpu.cfs_quota_us": "50000\n",
          "sys__fs__cgroup__cpu__a__cpu.cfs_period_us": "100000\n"}, WARNING, "allows the time of 0.5: "),
        ({**V1, "sys__fs__cgroup__cpu__a__cpu.cfs_quota_us": "-1\n",
          "sys__fs__cgroup__cpu__a__cpu.cfs_period_us": "100000\n"}, OK, "4, for"),
    ],
)  # fmt: skip
def test_processors(tmp_path, files, level, what):
    found = machine.check_processors(3, 4, write(tmp_path, **files))
    assert found.level == level and what in found.what


def test_more_tasks_than_processors(tmp_path):
    assert machine.check_processors(3, 2, tmp_path).level == WARNING
    assert machine.check_processors(2, 2, tmp_path).level == OK


@pytest.mark.parametrize(
    ("files", "level", "what"),
    [
        ({"proc__meminfo": "MemTotal: 9 kB\nMemAvailable:   8000000 kB\n"}, OK, "8.19 GB free by the machine"),
        ({"proc__meminfo": "MemAvailable:   1000000 kB\n"}, WARNING, "1.02 GB free by the machine"),
        ({"proc__meminfo": "MemAvailable:   100000 kB\n"}, PROBLEM, "102 MB free by the machine"),
        ({**V2, "proc__meminfo": "MemAvailable: 8000000 kB\n", "sys__fs__cgroup__a__memory.max": "1000000000\n",
          "sys__fs__cgroup__a__memory.current": "900000000\n"}, PROBLEM, "100 MB free by the cgroup's limit"),
        ({**V2, "sys__fs__cgroup__a__memory.max": "4000000000\n", "sys__fs__cgroup__a__memory.current": "3900000000\n",
          "sys__fs__cgroup__a__memory.stat": "anon 1\ninactive_file 3800000000\n"}, OK, "3.9 GB free"),
        ({**V1, "sys__fs__cgroup__memory__memory.limit_in_bytes": "500000000\n",
          "sys__fs__cgroup__memory__memory.usage_in_bytes": "1\n"}, PROBLEM, "500 MB free by the cgroup's limit"),
        ({**V1, "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712\n",
          "sys__fs__cgroup__memory__memory.usage_in_bytes": "1\n"}, OK, "not known"),
    ],
)  # fmt: skip
def test_memory(tmp_path, files, level, what):
    found = machine.check_memory(3, write(tmp_path, **files))
    assert found.level == level and what in found.what


@pytest.mark.parametrize(("limit", "level"), [(10, PROBLEM), (256, WARNING), (1024, OK), (-1, OK)])
def test_files(limit, level):
    found = machine.check_files(1, 5, limit)
    assert found.level == level and (level == OK or found.remedy == "Raise it: ulimit -n 1024.")
    assert machine.check_files(1, 1000, 4096).level == WARNING


def test_threads(tmp_path):
    assert machine.check_threads(3, 2, -1, tmp_path).level == OK
    assert machine.check_threads(3, 2, 4096, tmp_path).level == OK
    found = machine.check_threads(3, 2, 300, tmp_path)
    assert found.what == "300 left by ulimit -u, where 3 tasks want about 375."
    assert (found.level, found.remedy) == (PROBLEM, "End what else runs, or raise it: ulimit -u 1050.")
    assert (
        machine.check_threads(3, 64, 400, tmp_path).level == PROBLEM
    )  # each processor has threads of its own
    files = {"sys__fs__cgroup__a__b__pids.max": "400\n", "sys__fs__cgroup__a__b__pids.current": "100\n"}
    found = machine.check_threads(3, 2, -1, write(tmp_path, **V2, **files))
    assert found.level == PROBLEM and found.what.startswith(
        "300 left by the cgroup's pids.max, where 3 tasks"
    )
    assert found.remedy == "End what else runs, or raise it by 750, in Docker by --pids-limit."


def test_what_the_users_processes_have_counts_and_root_is_held_to_nothing(tmp_path):
    for pid, uid, threads in ((10, 1000, 150), (11, 1000, 50), (12, 0, 70), (13, 10, 5)):
        status = f"Name:\ta: b\nUid:\t{uid}\t0\t0\t0\nThreads:\t{threads}\n"
        write(tmp_path, **{f"proc__{pid}__status": status})
    write(tmp_path, proc__14__status="", proc__self__uid_map="         0          0 4294967295\n")
    assert machine.user_threads_left(500, 1000, tmp_path) == 300
    assert machine.user_threads_left(100, 1000, tmp_path) == 0
    assert machine.user_threads_left(100, 0, tmp_path) == float("inf")
    write(tmp_path, proc__self__uid_map="         0       1000          1\n")  # root by a user namespace
    assert machine.user_threads_left(100, 0, tmp_path) == 30


@pytest.mark.parametrize(("state", "level"), [(0, OK), (5, WARNING), (None, OK)])
def test_whether_the_clock_is_synchronized(state, level):
    assert machine.check_clock(lambda: state).level == level


def test_this_machine_is_read():
    """No fake: the real files and limits give a finding each."""
    found = machine.check(1, 0)
    assert [one.topic for one in found] == [
        "python",
        "cpu",
        "processors",
        "memory",
        "files",
        "threads",
        "clock",
    ]
    assert "not known" not in found[3].what


# TensorFlow and the environment.


def runs(*answers):
    """A `subprocess.run` of these outcomes by program: a text is stdout, a number the status, an exception is raised."""

    def run(command, **_):
        answer = answers[0] if command[0] == "nvidia-smi" else answers[1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, int):
            return subprocess.CompletedProcess(command, answer, "", "Traceback\nImportError: no libcuda.")
        return subprocess.CompletedProcess(command, 0, answer, "")

    return run


def tensorflow(smi=None, **fields):
    """The findings with TensorFlow as described and nvidia-smi's table."""
    answer = "\n" + json.dumps({"version": "2.21.0", "gpus": 0, "cuda": True, **fields})
    run = runs(FileNotFoundError() if smi is None else smi, answer)
    return software.check_tensorflow(lambda: software.list_gpus(run), run)


FREE, TAKEN = "0, A100, 550.1, 40000, 40960\n", "1, A100, 550.1, 100, 40960\n"


def test_tensorflow_and_gpus():
    version, gpu = tensorflow()
    assert version == ok("tensorflow", "2.21.0.")
    assert gpu.level == OK and gpu.what.startswith("no GPU: nvidia-smi finds no driver or is not there")
    assert tensorflow(version="2.15.1")[0] == problem(
        "tensorflow", "2.15.1 is too old.", "Install 2.21 or later: pip install -U tensorflow."
    )
    assert [one.level for one in tensorflow(FREE, gpus=1)] == [OK, OK]
    _, taken = tensorflow(TAKEN, gpus=1)
    assert (taken.level, taken.what) == (
        WARNING,
        "GPU 1 (A100), driver 550.1, has 105 MB of 42.9 GB free.",
    )
    _, hidden, *_ = tensorflow(FREE + TAKEN, gpus=1)
    assert (hidden.level, hidden.what) == (WARNING, "2 in this machine, of which TensorFlow sees 1.")
    assert "built without CUDA" in tensorflow(FREE, cuda=False)[1].what
    assert "nvidia-smi lists none" in tensorflow("")[1].what
    assert "no GPU" in tensorflow(9)[1].what


@pytest.mark.parametrize(
    ("answer", "level", "what"),
    [
        (1, PROBLEM, "its import fails: ImportError: no libcuda."),
        (-signal.SIGILL, PROBLEM, "its import fails: the process died of SIGILL."),
        (subprocess.TimeoutExpired("python", 12), WARNING, "its import has taken more than 12 s."),
    ],
)
def test_an_import_that_fails(answer, level, what):
    (found,) = software.check_tensorflow(lambda: None, runs(FileNotFoundError(), answer))
    assert (found.level, found.what) == (level, what) and found.remedy


def test_a_package_that_is_hidden(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    (found,) = software.check_packages()
    assert found.level == PROBLEM and "tensorflow.py hides the installed package" in found.what
    assert [one.topic for one in software.check({})] == ["packages", "environment", "proxies"]


def test_variables():
    assert [
        one.level
        for one in software.check_variables(
            {"PATH": "a", "TF_CONFIG": "{}", "TF_VAR_x": "1", "TF_CLI_CONFIG_FILE": "x"}
        )
    ] == [OK]
    assert [one.level for one in software.check_variables({"TF_CPP_MIN_LOG_LEVEL": "3"})] == [OK]
    env = {"CUDA_VISIBLE_DEVICES": "-1", "MALLOC_ARENA_MAX": "2", "GRPC_TRACE": "all", "TF_XLA_FLAGS": "x" * 99,
           "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}  # fmt: skip
    found = software.check_variables(env)
    assert [one.what.split("=")[0] for one in found] == sorted(env) and {one.level for one in found} == {
        WARNING
    }
    assert found[0].what == "CUDA_VISIBLE_DEVICES='-1' is set: no GPU is seen."
    assert "--tune_process" in found[2].what and len(found[-1].what) < 120


def test_proxies():
    assert software.check_proxies({"no_proxy": "a", "http_proxy": ""}) == ok("proxies", "none is set.")
    assert software.check_proxies({"HTTPS_PROXY": "http://p:1"}).what.startswith(
        "HTTPS_PROXY: set, and ignored"
    )


# Where checkpoints go.


def test_a_directory_that_can_be_written(tmp_path):
    there = directory.check(str(tmp_path))
    assert [one.topic for one in there] == ["train_dir", "disk", "file system"] and there[0].level == OK
    assert directory.check(str(tmp_path / "a/b"))[0].what.endswith(f"can be made in {tmp_path}.")
    assert not list(tmp_path.iterdir())  # it was tried, and nothing is left


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    """Root may write anywhere but in /proc."""
    (found,) = directory.check("/proc/ps_train/x")
    assert found.level == PROBLEM and " cannot be made in /proc: " in found.what
    (found,) = directory.check("/proc/self")
    assert found.level == PROBLEM and " cannot be written to: " in found.what
    file = tmp_path / "file"
    file.write_text("")
    assert directory.check(str(file))[0].what == f"{file} is not a directory."
    assert directory.check(str(file / "x"))[0].what.endswith(": Not a directory.")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write there")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    assert [one.level for one in directory.check(str(tmp_path / "x"))] == [PROBLEM]


def test_a_directory_that_does_not_answer(tmp_path, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(directory, "ANSWER_SECS", 0.1)
    monkeypatch.setattr(directory, "_try", lambda *_: released.wait(30))
    try:
        (found,) = directory.check(str(tmp_path))
    finally:
        released.set()
    assert found.level == PROBLEM and "does not answer in 0.1 s" in found.what


def test_an_error_is_no_silence(tmp_path, monkeypatch):
    def stale(_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(directory.os, "statvfs", stale)
    (found,) = directory.check(str(tmp_path))
    assert found.level == PROBLEM and found.what == f"{tmp_path} cannot be looked at: Stale file handle."


def space(free_bytes, files=10**6, free_files=10**6):
    return os.statvfs_result((4096, 1, 10**12, free_bytes, free_bytes, files, free_files, free_files, 0, 255))


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (space(10**10), OK),
        (space(10**9), WARNING),
        (space(10**7), PROBLEM),
        (space(10**10, free_files=5), PROBLEM),
        (space(10**10, files=0, free_files=0), OK),  # btrfs counts none
    ],
)
def test_space(state, level):
    assert directory.check_space(state, "runs").level == level


@pytest.mark.parametrize(
    ("path", "level", "what"),
    [
        ("/home/a", OK, "on this host (ext4)"),
        ("/nfs/a", OK, "network file system (nfs4)"),
        ("/nfs/local disk/a", OK, "on this host (xfs)"),
        ("/tmp", WARNING, "in memory (tmpfs)"),
        ("/nfsx", OK, "on this host (ext4)"),
        ("/nfs/Übung\u00a0ß/a", OK, "on this host (btrfs)"),
        ("/nfs/back\\slash/a", OK, "on this host (zfs)"),
    ],
)
def test_kind_of_file_system(tmp_path, path, level, what):
    mounts = "/dev/a / ext4 rw 0 0\nh:/x /nfs nfs4 rw 0 0\n/dev/b /nfs/local\\040disk xfs rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    mounts += "/dev/c /nfs/Übung\u00a0ß btrfs rw 0 0\n/dev/d /nfs/back\\134slash zfs rw 0 0\n"
    root = write(tmp_path, proc__self__mounts=mounts)
    found = directory.check_kind(path, path, root)
    assert found.level == level and what in found.what


# The network.


@contextlib.contextmanager
def listening(answer=b"", backlog=8):
    """A real socket on loopback that answers each connection with some bytes; gives its port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        stop = threading.Event()

        def serve():
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(answer)

        if answer:
            server.settimeout(0.05)
            thread = threading.Thread(target=serve)
            thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            if answer:
                thread.join(5)


@pytest.fixture
def quick(monkeypatch):
    """Short bounds, but none for a name: those that are to be resolved are, at once."""
    for name in ("CONNECT_SECS", "PROBE_SECS"):
        monkeypatch.setattr(network, name, 0.4)
    monkeypatch.setattr(network, "BETWEEN_LOOKS_SECS", 0.0)


def test_own_port():
    with listening() as port:
        cluster = Cluster.from_hosts(f"localhost:{port}", "w:1")
        found = network.check_own_port(PS, cluster)
        assert found.level == PROBLEM and "is in use by another process. End that process" in found.what
    assert network.check_own_port(PS, cluster).level == OK


def test_own_address():
    def found(*addresses):
        return [(one.level, one.what) for one in network.check_own_address(Sight(PS, addresses), CLUSTER)]

    assert found("127.0.0.1") == [(OK, "p:1 of ps:0 is on this host.")]
    ((level, what),) = found("192.0.2.7")
    assert level == PROBLEM and "is no address of this host" in what
    assert found() == []


def name(addresses, host="p", hostname="here", reason=""):
    cluster = Cluster.from_hosts(f"{host}:1", "w:1")
    found = network.check_name(Sight(PS, addresses, reason=reason), cluster, hostname)
    return [one.level for one in found], found[0].what if found else ""


def test_names():
    assert name(["10.0.0.1", "fd00::1"]) == ([OK], "p of ps:0 is 10.0.0.1, fd00::1.")
    assert name(["10.0.0.1", "10.0.0.2"]) == (
        [WARNING],
        "p of ps:0 stands for several addresses: 10.0.0.1, 10.0.0.2.",
    )
    assert name([], reason="Name or service not known") == (
        [PROBLEM],
        "p of ps:0 cannot be resolved: Name or service not known.",
    )
    level, what = name(["127.0.1.1"], hostname="p.lan")
    assert level == [WARNING] and "Debian's /etc/hosts" in what
    level, what = name(["10.0.0.1", "::1"])
    assert level == [PROBLEM] and "p of ps:0 is ::1 here" in what
    assert name(["127.0.0.1", "::1"], host="localhost")[0] == [OK]
    assert name(["10.0.0.1"], host="10.0.0.1") == ([], "")


def test_a_name_that_nobody_has(quick):
    def resolve(host):
        raise socket.gaierror(-2, "Name or service not known")

    assert [sight.reason for sight in network.look(CLUSTER, None, resolve)] == [
        "Name or service not known"
    ] * 2


def test_a_resolver_that_hangs(quick, monkeypatch):
    monkeypatch.setattr(network, "RESOLVE_SECS", 0.1)
    released = threading.Event()
    try:
        started = time.monotonic()
        sights = network.look(CLUSTER, None, lambda host: [] if released.wait(30) else [])
        assert time.monotonic() - started < 5
    finally:
        released.set()
    assert {sight.reason for sight in sights} == {"not resolved in 0.1 s"}


def answers(cluster, own=None, hosts=("127.0.0.1",)):
    """Level and text of what is found at each peer's port, where all names stand for `hosts`."""
    sights = network.look(cluster, own, lambda host: list(hosts))
    return {
        str(sight.task): [(one.level, one.what) for one in network.check_answer(sight, cluster)]
        for sight in sights
        if sight.task != own
    }


def test_a_board_that_hangs(quick, monkeypatch):
    """What was known before is told."""
    released = threading.Event()

    class HangingBoard:
        def __init__(self, address, task): ...

        def exchange(self, records, timeout_secs):
            released.wait(30)
            raise BoardError("late")

        def close(self): ...

    monkeypatch.setattr(network, "Board", HangingBoard)
    monkeypatch.setattr(network, "RESOLVE_SECS", 0.4)
    try:
        with listening() as port:
            found = answers(Cluster.from_hosts(f"p:{port}", "w:1"))
    finally:
        released.set()
    assert found["ps:0"][0][0] == PROBLEM and found["ps:0"][0][1].endswith("(no answer in 0.4 s).")


def test_a_peer_that_does_not_listen(quick):
    with listening() as port:
        pass
    found = answers(Cluster.from_hosts(f"p:{port}", "w:1"), own=WORKER)
    assert found == {"ps:0": [(WARNING, f"nothing listens at p:{port} (ps:0); its host is up.")]}


def test_a_peer_behind_a_firewall(quick):
    """A full queue of a listening socket drops what else comes, as a firewall does."""
    with listening(backlog=0) as port, contextlib.ExitStack() as held:
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        found = answers(Cluster.from_hosts("p:1", f"w:{port}"), own=PS)
    assert found["worker:0"] == [(PROBLEM, f"w:{port} (worker:0) is not reached: no answer in 0.4 s.")]


def test_a_peer_that_is_something_else(quick):
    with listening(b"SSH-2.0-x\r\n") as port:
        found = answers(Cluster.from_hosts(f"127.0.0.1:{port}", f"w:{port}"))
    ((level, what),) = found["ps:0"]
    assert level == PROBLEM and what.startswith(f"127.0.0.1:{port} (ps:0): something ")
    assert found["worker:0"] == [
        (OK, f"something listens at w:{port} (worker:0).")
    ]  # it has no board to tell


def test_a_peer_that_one_of_its_addresses_does_not_lead_to(quick):
    with listening() as port:
        found = answers(Cluster.from_hosts("p:1", f"w:{port}"), own=PS, hosts=("127.0.0.1", "127.0.0.9"))
    assert [level for level, _ in found["worker:0"]] == [WARNING, OK]
    assert "(127.0.0.9: connection refused)" in found["worker:0"][0][1]


def told_by(record, reason=""):
    sight = Sight(PS, ["10.0.0.1"], {}, None if record is None else ({}, {"ps:0": record}), reason)
    ((level, what),) = [(one.level, one.what) for one in network.check_answer(sight, CLUSTER)]
    return level, what


def test_what_a_ps_tells():
    assert told_by(CLUSTER.as_record()) == (OK, "p:1 (ps:0) is a ps of this cluster.")
    level, what = told_by(Cluster.from_hosts("p:1", "w:1,v:1").as_record())
    assert level == PROBLEM and what.startswith("p:1 (ps:0) is a ps of another cluster: ")
    assert told_by({})[0] == told_by(None, NOT_TENSORFLOW)[0] == told_by(None, "no answer")[0] == PROBLEM


def test_the_board_is_asked(quick, monkeypatch):
    class FakeBoard:
        def __init__(self, address, task):
            self.key, self.number = str(task), 0

        def exchange(self, records, timeout_secs):
            self.number += 1
            beat = (time.time() + 100 + self.number) * 1e6
            return {self.key: {"key": self.key, "beat": beat, **cluster.as_record()}}

        def close(self): ...

    monkeypatch.setattr(network, "Board", FakeBoard)
    with listening() as port:
        cluster = Cluster.from_hosts(f"127.0.0.1:{port}", "w:1")
        found = network.check(cluster, None)
    assert [str(one) for one in found if one.topic == "clock"] == [
        "WARNING  clock: that of ps:0's host is 102 s ahead of this one's: times in the logs do not compare. Set both by NTP "
        "(timedatectl set-ntp true)."
    ]
    assert f"127.0.0.1:{port} (ps:0) is a ps of this cluster." in [one.what for one in found]

    def fail(*_):
        raise BoardError("no answer in 2 s")

    monkeypatch.setattr(FakeBoard, "exchange", fail)
    with listening() as port:
        assert answers(Cluster.from_hosts(f"p:{port}", "w:1"))["ps:0"][0][0] == PROBLEM


def test_clocks():
    def found(beats, now=100.0):
        boards = tuple({"worker:1": {"beat": beat * 1e6}} for beat in beats)
        return [one.level for one in network.check_clocks([Sight(PS, board=boards, now=now)])]

    assert found([99.0, 99.9]) == [OK]
    assert found([90.0, 90.5]) == [WARNING]
    assert found([110.0, 110.5]) == [WARNING]
    assert found([50.0, 50.0]) == []  # it is silent, and an old beat tells nothing
    assert network.check_clocks([Sight(PS, reason="x")]) == []


def test_who_reaches_the_port():
    found = network.check_exposure(2222, True)
    assert found.level == WARNING and "listens at port 2222 on every interface" in found.what
    assert network.check_exposure(None, False).level == OK


# The command.


def plan(*args, env=None):
    return make_plan(flags.parse(["doctor", *args])[0], env or {})


def test_what_it_looks_at():
    hosts = ("--ps_hosts=p:1", "--worker_hosts=w:1")
    assert plan() == (Resolved(None, None), None, 3)
    assert plan("--colocate_ps", "--num_workers=4").num_tasks == 4
    assert plan(*hosts, "--train_dir=t") == (Resolved(CLUSTER, None), "t", 3)
    assert plan(*hosts, "--job_name=worker").place == (CLUSTER, WORKER)
    text = json.dumps({"cluster": CLUSTER.as_dict(), "task": {"type": "ps", "index": 0}})
    assert plan(env={"TF_CONFIG": text}).place == (CLUSTER, PS)
    with pytest.raises(UsageError, match="^--num_workers=0 is out of range"):
        plan("--num_workers=0")
    with pytest.raises(UsageError, match="has no port"):
        plan("--ps_hosts=p", "--worker_hosts=w:1")


def test_lines_and_json(capsys, monkeypatch):
    found = [ok("a", "fine."), warning("b", "odd.", "Mend it."), problem("c", "broken\n here.", "")]
    monkeypatch.setattr(doctor, "examine", lambda *_: found)
    assert program.main(["doctor"]) == 1
    assert capsys.readouterr().out == (
        "OK       a: fine.\nWARNING  b: odd. Mend it.\nPROBLEM  c: broken here.\nchecked: 1 OK, 1 WARNING, 1 PROBLEM\n"
    )
    assert program.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["num_problems"] == 1 and told["findings"][1] == found[1]._asdict()
    del found[2]
    assert program.main(["doctor"]) == 0
    assert as_text(found).endswith("checked: 1 OK, 1 WARNING, 0 PROBLEM")


def test_all_of_it_goes_together(monkeypatch, tmp_path, quick):
    """Everything but TensorFlow is real: the ports of a cluster of which this host has a task."""
    monkeypatch.setattr(software, "check", lambda env: [])
    with listening() as port, listening() as other:
        cluster = Cluster.from_hosts(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
        found = doctor.examine(Resolved(cluster, PS), str(tmp_path), 3, {})
    assert {one.topic for one in found} >= {
        "python",
        "train_dir",
        "own address",
        "own port",
        "peer",
        "security",
    }
    assert [one.topic for one in found if one.level == PROBLEM] == ["own port"]


@pytest.mark.parametrize(
    ("place", "tasks", "peers", "is_exposed"),
    [
        (Resolved(None, None), "3 tasks", 2, True),
        (Resolved(None, TaskId("evaluator", 0)), "1 task", 0, False),
        (Resolved(CLUSTER, None), "1 task", 1, False),
        (Resolved(CLUSTER, PS), "1 task", 1, True),
        (Resolved(Cluster.from_hosts("p:1", "p:2,w:3"), PS), "2 tasks", 2, True),
    ],
)
def test_how_many_tasks_are_to_run_here(monkeypatch, place, tasks, peers, is_exposed):
    monkeypatch.setattr(software, "check", lambda env: [])
    monkeypatch.setattr(network, "check", lambda cluster, own: [])
    found = {one.topic: one.what for one in doctor.examine(place, None, 3, {})}
    verb = "wants" if tasks == "1 task" else "want"
    assert f" {tasks} {verb} about " in found["threads"] and f"a task with {peers} peers" in found["files"]
    assert ("security" in found) == is_exposed


def test_it_needs_no_package_but_absl(tmp_path):
    """What is missing is what it is asked for: it runs where nothing else does."""
    code = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "hidden = ('tensorflow', 'grpc', 'numpy', 'rich')\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *more: None if name.split('.')[0] in hidden else find(name, *more)\n"
        "from ps_train.__main__ import main\n"
        "sys.exit(main(['doctor', '--ps_hosts=localhost:1', '--worker_hosts=localhost:2']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={key: value for key, value in os.environ.items() if key != "TF_CONFIG"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PROBLEM")]
    assert line.startswith("PROBLEM  packages: grpcio, numpy, rich, tensorflow are not installed for ")
