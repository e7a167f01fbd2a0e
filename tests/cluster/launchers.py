"""The real Slurm and the real mpirun, for a test: on hosts in network namespaces (`namespaces`), or on this one.

    with make_slurm(2) as slurm:             # slurmctld on host0, a slurmd on each host; or the test is skipped
        job = slurm.start("srun", "-n", "3", "python", "-m", "ps_train", ...)
        assert job.wait(60) == 0, job.tail()

Everything ends with the `with` block: whatever still runs in the namespaces is killed.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from namespaces import Network, why_not

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "sinfo")
PATH = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
START_SECS = 30  # of the daemons, on a busy machine
CONFIG = """\
ClusterName=test
SlurmctldHost=host0({control})
AuthInfo=socket={state}/munge.socket
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdParameters=config_overrides
SlurmUser=root
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/%n.pid
SlurmdSpoolDir={state}/spool.%n
StateSaveLocation={state}/control
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/%n.log
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Launched:
    """One command with its output in a file, or on a `terminals.Terminal`."""

    def __init__(self, argv, log_path, env, cwd, terminal=None):
        self.log_path = log_path
        with open(log_path, "wb") as log:
            output = log if terminal is None else terminal.fd
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def tail(self, count=60):
        return "\n".join(self.log.splitlines()[-count:])

    def poll(self):
        """The exit status, or None."""
        return self._process.poll()

    def wait(self, secs):
        """The exit status; fails if there is none in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(secs)
        raise AssertionError(f"still running after {secs} s\n{self.tail()}")

    def wait_for_line(self, pattern, secs):
        deadline = time.monotonic() + secs
        while not re.search(pattern, self.log):
            assert self._process.poll() is None, f"ended without {pattern!r}\n{self.tail()}"
            assert time.monotonic() < deadline, f"no {pattern!r} within {secs} s\n{self.tail()}"
            time.sleep(0.05)

    def end(self, secs):
        """Asks it to end, if it has not, and gives it so long."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(secs)
        self.close()

    def close(self):
        """Kills what is left of it; the ranks of an mpirun have groups of their own."""
        if self._process.poll() is None:
            for pid in [*descendants(self.pid), self.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait(10)


class Hosts:
    """`num_hosts` hosts that know each other by name, and commands on the first of them."""

    def __init__(self, num_hosts, folder):
        self.folder = folder
        self.env = clean_env()
        self._started = []
        self.network = Network(num_hosts)
        for host in self.network.hosts:
            host.names(**{each.name: each.address for each in self.network.hosts})

    def start(self, *argv, terminal=None, **more_env):
        """Starts a command on host0."""
        log_path = self.folder / f"{len(self._started)}.log"
        return self._launch([*self.network.hosts[0].prefix, *argv], log_path, more_env, terminal)

    def run(self, *argv, secs=60, **more_env):
        """Output of a command on host0 that ends with 0."""
        command = self.start(*argv, **more_env)
        assert command.wait(secs) == 0, command.tail()
        return command.log

    def _launch(self, argv, log_path, more_env=None, terminal=None):
        env = self.env | (more_env or {}) | (terminal.env if terminal else {})
        self._started.append(Launched(argv, log_path, env, self.folder, terminal))
        return self._started[-1]

    def pids(self):
        """All processes on the hosts."""
        found = []
        for host in self.network.hosts:
            argv = ["ip", "netns", "pids", host.namespace]
            found += map(int, subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout.split())
        return found

    def close(self):
        deadline = time.monotonic() + 10
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for each in self._started:
            each.close()
        self.network.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Slurm(Hosts):
    """A controller on host0 and a node on each host, with four processors as far as Slurm knows."""

    def __init__(self, num_hosts, folder):
        super().__init__(num_hosts, folder)
        self._state = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))  # sockets need a short path
        self.env["SLURM_CONF"] = str(self._state / "slurm.conf")
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        state, hosts = self._state, self.network.hosts
        state.chmod(0o755)
        (state / "control").mkdir()
        text = CONFIG.format(state=state, control=hosts[0].address)
        text += "".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=4\n" for host in hosts)
        (state / "slurm.conf").write_text(text)
        (state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # none is mounted in a namespace
        (state / "key").write_bytes(os.urandom(128))
        (state / "key").chmod(0o400)
        argv = [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={state}/key",
            f"--socket={state}/munge.socket",
        ]
        argv += [f"--{name}-file={state}/munge.{name}" for name in ("pid", "log", "seed")]
        self._launch(argv, state / "munged.out")
        self._wait(lambda: (state / "munge.socket").exists())
        self._launch([*hosts[0].prefix, "slurmctld", "-D", "-i"], state / "slurmctld.out")
        for host in hosts:
            self._launch([*host.prefix, "slurmd", "-D", "-N", host.name], state / f"{host.name}.out")
        self._wait(lambda: self._idle_nodes() == str(len(hosts)))

    def _idle_nodes(self):
        argv = [*self.network.hosts[0].prefix, "sinfo", "--noheader", "--states=idle", "--format=%D"]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip()

    def _wait(self, is_done):
        deadline = time.monotonic() + START_SECS
        while not is_done():
            assert time.monotonic() < deadline, f"Slurm has not started in {START_SECS} s\n{self._tails()}"
            time.sleep(0.1)

    def _tails(self):
        logs = [*self._state.glob("*.out"), *self._state.glob("*.log")]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def close(self):
        super().close()
        shutil.rmtree(self._state)


def clean_env():
    """The environment, without what a launcher has put there, and with this checkout's ps_train."""
    foreign = re.compile(r"SLURM|OMPI|PMI|MPI|TF_CONFIG")
    env = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    return env | {"PATH": PATH, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}


def mpi_env():
    """That for mpirun: as root, with more ranks than processors, and only over what every machine has."""
    return clean_env() | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_pml": "ob1",
    }  # fmt: skip


def descendants(pid):
    """Process ids of the children of `pid`, and theirs."""
    with contextlib.suppress(OSError):
        text = " ".join(path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(word) for word in text.split()]
        return children + [each for child in children for each in descendants(child)]
    return []


def with_variable(pids, setting):
    """Those of `pids` that run Python with `setting`, such as "SLURM_PROCID=2", in their environment."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            process = pathlib.Path(f"/proc/{pid}")
            is_python = "python" in os.path.basename(os.readlink(process / "exe"))
            if is_python and setting.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


@functools.cache
def why_no_slurm():
    """Why there can be no Slurm here, or ""."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        return f"runs Slurm, and there is no {', '.join(missing)} (slurmctld, slurmd, slurm-client, munge)"
    return why_not()


def make_slurm(num_hosts, folder):
    """A Slurm, or the calling test is skipped with the reason."""
    if why_no_slurm():
        pytest.skip(why_no_slurm())
    return Slurm(num_hosts, folder)


def need_mpirun(*modules):
    """Skips the calling test where mpirun or one of `modules` is not there."""
    if not shutil.which("mpirun", path=PATH):
        pytest.skip("runs mpirun, which is not there (openmpi-bin)")
    version = subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, env=mpi_env(), timeout=30
    )
    if "Open MPI" not in version.stdout:
        pytest.skip("runs Open MPI's mpirun, and this is another one")
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}, which is not installed")
