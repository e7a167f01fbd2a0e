"""Jobs that srun and sbatch start: a real Slurm of two hosts, each in a network namespace."""

import json
import os
import signal
import sys
import time

import pytest
from harness import MODELS, checkpoint_of
from launchers import ROOT, make_slurm, with_variable

pytestmark = pytest.mark.cluster
START_SECS = 120  # three imports of TensorFlow on a busy machine
BOUND_SECS = 5
GRACE_SECS = 25
WHERE = """
import json, os
from ps_train.resolvers import ClusterFlags, resolve
place = resolve("auto", ClusterFlags(num_ps=2), os.environ)
address = place.cluster.address(place.task)
print(json.dumps([os.environ["SLURMD_NODENAME"], str(place.task), address, place.cluster.as_record()]))
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with make_slurm(2, tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def train_flags(tmp_path):
    return [
        f"--model={MODELS / 'line.py'}", f"--train_dir={tmp_path / 'train'}", "--update=sync",
        f"--peer_timeout_secs={BOUND_SECS}", f"--shutdown_timeout_secs={BOUND_SECS}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "srun",
    [
        "-N2 -n5", "-N2 -n6 -m cyclic", "-N2 -n8 -m plane=2", "-n4 -m arbitrary", "-N1 -n3 -w host1",
        "-N1 -n3 : -N1 -n1",
    ],
)  # fmt: skip
def test_every_task_finds_its_own_host_and_the_same_cluster(slurm, srun):
    env = {}
    if "arbitrary" in srun:
        (slurm.folder / "hosts").write_text("host1\nhost0\nhost1\nhost1\n")
        env = {"SLURM_HOSTFILE": str(slurm.folder / "hosts")}
    command = [sys.executable, "-c", WHERE]
    options = [word for part in srun.split(" : ") for word in (*part.split(), *command, ":")][:-1]
    found = [
        json.loads(line) for line in slurm.run("srun", *options, **env).splitlines() if line.startswith("[")
    ]
    assert len(found) == sum(int(word[2:]) for word in srun.split() if word.startswith("-n"))
    jobs = found[0][3]["cluster"]
    members = {f"{job}:{index}": address for job, hosts in jobs.items() for index, address in hosts.items()}
    assert {task: address for _, task, address, _ in found} == members
    for host, _, address, record in found:
        assert record == found[0][3]
        assert address.partition(":")[0] == ("127.0.0.1" if "-w" in srun else host)
    assert len({address.partition(":")[0] for address in jobs["ps"].values()}) == (1 if "-w" in srun else 2)


def test_the_example_trains_in_sync_to_the_end(slurm, tmp_path, train_flags):
    """It is a batch script; its own process is no task, and a plain command in it would start a local cluster."""
    script, output = ROOT / "examples" / "slurm_job.sh", tmp_path / "job.log"
    job = slurm.start("sbatch", "--wait", f"--output={output}", script, *train_flags, "--train_steps=30")
    status = job.wait(START_SECS)
    log = output.read_text()
    assert status == 0, log
    assert checkpoint_of(tmp_path / "train")["global_step"] == 30
    for name in ("ps:0", "worker:0", "worker:1"):
        assert f" {name} listening at host{1 if name == 'worker:1' else 0}:" in log, log
    assert log.count("(status 0)") == 3 and "Traceback" not in log, log


def test_a_killed_worker_ends_the_job_in_time(slurm, tmp_path, train_flags):
    flags = [*train_flags, "--train_steps=1000000", "--log_every_secs=0.5", "--model_params=slow=all:10"]
    job = slurm.start("srun", "-N2", "-n3", sys.executable, "-m", "ps_train", *flags)
    for name in ("worker:0", "worker:1"):
        job.wait_for_line(rf"{name} step [1-9]", START_SECS)
    (victim,) = with_variable(slurm.pids(), "SLURM_PROCID=2")
    since = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    status = job.wait(2 * BOUND_SECS + GRACE_SECS)
    print(f"ended {time.monotonic() - since:.1f} s after the kill")
    assert status == 128 + signal.SIGKILL, job.tail()  # of all tasks, that of the killed one
    assert "worker:0 error: gone for 5 s: worker:1 at host1:" in job.log, job.tail()
    assert job.log.count("(status 138)") == 2 and "Traceback" not in job.log, job.tail()
    assert checkpoint_of(tmp_path / "train")["global_step"] > 0
