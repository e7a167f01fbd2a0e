"""Jobs that Open MPI's mpirun starts: on this host, and on two hosts in network namespaces."""

import json
import os
import pathlib
import re
import signal
import sys
import time

import pytest
from harness import MODELS, checkpoint_of
from launchers import ROOT, Hosts, Launched, descendants, mpi_env, need_mpirun, with_variable
from namespaces import why_not

pytestmark = pytest.mark.cluster
START_SECS = 120  # three imports of TensorFlow on a busy machine
GRACE_SECS = 25
KILL_SECS = 6  # mpirun waits as long before the SIGTERM, and again after it
WHERE = """
import json, os, socket
from ps_train.resolvers import ClusterFlags, resolve
place = resolve("auto", ClusterFlags(num_ps=2, port_base=2222), os.environ)
print(json.dumps([socket.gethostname(), str(place.task), place.cluster.address(place.task), place.cluster.as_record()]))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a command that is mpirun or ends in it."""
    need_mpirun()
    started = []

    def start(*argv):
        started.append(Launched(argv, tmp_path / f"{len(started)}.log", mpi_env(), tmp_path))
        return started[-1]

    yield start
    for job in started:
        job.close()


@pytest.fixture
def flags(tmp_path):
    return [f"--model={MODELS / 'line.py'}", f"--train_dir={tmp_path / 'train'}", "--update=sync"]


def test_the_example_trains_in_sync_to_the_end(start, flags, tmp_path):
    job = start("sh", ROOT / "examples" / "mpi_job.sh", *flags, "--train_steps=30")
    assert job.wait(START_SECS) == 0, job.tail()
    assert checkpoint_of(tmp_path / "train")["global_step"] == 30
    assert job.log.count("(status 0)") == 3 and "Traceback" not in job.log, job.tail()


def test_a_killed_worker_ends_the_job_in_time_and_the_chief_saves(start, flags, tmp_path):
    """mpirun sends SIGTERM to the others."""
    flags += ["--train_steps=1000000", "--log_every_secs=0.5", "--model_params=slow=all:10"]
    options = ["-np", "3", "--mca", "odls_base_sigkill_timeout", str(KILL_SECS)]
    job = start("mpirun", *options, sys.executable, "-m", "ps_train", *flags)
    for name in ("worker:0", "worker:1"):
        job.wait_for_line(rf"{name} step [1-9]", START_SECS)
    (victim,) = with_variable(descendants(job.pid), "OMPI_COMM_WORLD_RANK=2")
    since = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    status = job.wait(2 * KILL_SECS + GRACE_SECS)
    print(f"ended {time.monotonic() - since:.1f} s after the kill")
    assert status == 128 + signal.SIGKILL, job.tail()
    assert "worker:0 stopped by SIGTERM (status 143)" in job.log and "Traceback" not in job.log, job.tail()
    assert checkpoint_of(tmp_path / "train")["global_step"] > 0


def test_a_mistake_is_told_in_lines_by_each_rank(start):
    job = start("mpirun", "-np", "3", sys.executable, "-m", "ps_train", "--num_ps=3", "--batch_size=0")
    assert job.wait(GRACE_SECS) == 1, job.tail()
    lines = {line for line in job.log.splitlines() if line.startswith("ps_train: ")}
    lines -= {"ps_train: Stopped by SIGTERM."}  # a rank that mpirun has ended when another was the first
    assert sorted(line[:40] for line in lines) == [
        "ps_train: --batch_size=0 is out of range", "ps_train: mpirun has started 3 tasks, of"
    ]  # fmt: skip
    assert "Traceback" not in job.log


@pytest.fixture
def hosts(tmp_path):
    """Two, which mpirun reaches by a program that enters their namespaces, in place of ssh."""
    need_mpirun("mpi4py")
    if why_not():
        pytest.skip(why_not())
    with Hosts(2, tmp_path) as made:
        agent = tmp_path / "agent.sh"
        prefixes = [f'{host.name}) set -- {shell(host.prefix)} sh -c "$*";;' for host in made.network.hosts]
        agent.write_text(
            "#!/bin/sh\nhost=$1\nshift\ncase $host in\n" + "\n".join(prefixes) + '\nesac\nexec "$@"\n'
        )
        agent.chmod(0o755)
        made.env = mpi_env() | {"OMPI_MCA_plm_rsh_agent": str(agent), "OMPI_MCA_plm": "rsh"}
        yield made


def shell(words):
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def test_ranks_on_two_hosts_tell_each_other_where_they_are(hosts):
    argv = [
        "mpirun",
        "-np",
        "4",
        "--host",
        "host0:2,host1:2",
        "--map-by",
        "node",
        sys.executable,
        "-c",
        WHERE,
    ]
    found = [json.loads(line) for line in hosts.run(*argv).splitlines() if line.startswith("[")]
    assert sorted(map(str, ((host, task, address) for host, task, address, _ in found))) == [
        "('host0', 'ps:0', 'host0:2222')", "('host0', 'worker:0', 'host0:2223')",
        "('host1', 'ps:1', 'host1:2222')", "('host1', 'worker:1', 'host1:2223')",
    ]  # fmt: skip
    assert all(record == found[0][3] for *_, record in found)


def test_without_mpi4py_ranks_on_two_hosts_are_told_what_to_do(hosts, tmp_path):
    pathlib.Path(tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')\n")
    hosts.env["PYTHONPATH"] = f"{tmp_path}:{hosts.env['PYTHONPATH']}"
    argv = ["mpirun", "-np", "3", "--host", "host0:2,host1:2", sys.executable, "-m", "ps_train"]
    job = hosts.start(*argv)
    assert job.wait(GRACE_SECS) == 1, job.tail()
    assert re.search(
        "ps_train: The ranks of mpirun are on several hosts, .*: No module named mpi4py. pip", job.log
    )
    assert "Traceback" not in job.log
