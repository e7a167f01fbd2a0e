"""One run of one contestant: its processes are started, and measured while all its workers train.

    contest = Contest(args, network=None, records=path)
    measured = contest.run(Contestant("plain", "sync"), "mlp")
    measured.rate                               # steps a second, summed over the workers
    measured.cores                              # {"ps0": 0.7, "worker0": 0.6, ...} in the same time

A contestant whose task ends or makes no step in time, whose loss does not fall or whose worker idles, is a ContestError.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from contestants.nets import NETS
from contestants.task import VARIABLE
from figures import cpu_secs
from harness import free_ports
from namespaces import PORT
from standings import MIN_CORES, ContestError, judge, read_points

PROGRAMS = pathlib.Path(__file__).parent / "contestants"
START_SECS = 300
WARM_SECS = 2.0
MIN_STEPS = 8
MAX_FACTOR = 10
JOBS = {"single": [], "multiworker": ["worker"], "ddp": ["worker"], "tf2_ps": ["ps", "worker", "chief"]}


class Contestant(NamedTuple):
    """`family`: a program; `update`: "async", "sync" or "" where there is nobody to share with; ps_train's `flags`."""

    family: str
    update: str = ""
    flags: str = ""

    @property
    def name(self):
        return " ".join(filter(None, self))

    @property
    def is_colocated(self):
        return bool({"--colocate_ps", "--update=allreduce"} & set(self.flags.split()))


class Task(NamedTuple):
    """A process to start: its number among the hosts, its command line, what its environment has besides."""

    name: str
    host: int
    argv: list
    env: dict


class Contest:
    """What the runs have in common."""

    num_ps = 1
    min_cores = MIN_CORES

    def __init__(self, args, network, records):
        self._num_workers, self._secs, self._torch = args.num_workers, args.secs, args.torch_python
        self._network, self._records = network, records

    def run(self, contestant, net):
        """Starts it, measures, ends it."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            folder = pathlib.Path(folder)
            processes = {}
            for task in self._tasks(contestant, net):
                processes[task.name] = self._start(task, folder, stack)
            try:
                return self._measure(contestant, processes, folder)
            except ContestError as error:
                raise ContestError(f"{error}\n{_tails(folder)}") from None

    def _measure(self, contestant, processes, folder):
        """The rate, as soon as all train and have trained for long enough."""
        prefix = "chief" if contestant.family == "tf2_ps" else "worker"
        counters = [name for name in processes if name.startswith(prefix)]

        def is_done(steps):
            return all(_steps(folder, name) >= wanted for name, wanted in zip(counters, steps, strict=True))

        self._wait(processes, time.monotonic() + START_SECS, lambda: is_done([1] * len(counters)))
        deadline = time.monotonic() + WARM_SECS + MAX_FACTOR * self._secs
        time.sleep(WARM_SECS)
        cpu, at = _cpu_secs(processes), time.monotonic()
        target = [_steps(folder, name) + MIN_STEPS for name in counters]
        time.sleep(self._secs)
        self._wait(processes, deadline, lambda: is_done(target))
        used, until = _cpu_secs(processes), time.monotonic()
        cores = {name: (used[name] - cpu[name]) / (until - at) for name in cpu}
        workers = [read_points((folder / name).read_text()) for name in counters]
        return judge(workers, cores, WARM_SECS, self.min_cores)

    def _wait(self, processes, deadline, is_done):
        while not is_done():
            for name, process in processes.items():
                if process.poll() is not None:
                    raise ContestError(f"{name} ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise ContestError("too few steps in time")
            time.sleep(0.05)

    def _start(self, task, folder, stack):
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        env |= {"CUDA_VISIBLE_DEVICES": "-1", VARIABLE: str(folder / task.name), **task.env}
        prefix = self._network.hosts[task.host].prefix if self._network else []
        with open(folder / f"{task.name}.log", "wb") as log:
            process = subprocess.Popen(
                [*prefix, *task.argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, process)
        return process

    def _tasks(self, contestant, net):
        """What is to be started."""
        counts = {"ps": self.num_ps, "worker": self._num_workers, "chief": 1}
        jobs = ["worker"] if contestant.is_colocated else JOBS.get(contestant.family, ["ps", "worker"])
        names = [(job, index) for job in jobs for index in range(counts[job])]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
        if self._network:
            addresses = [f"{host.address}:{PORT}" for host in self._network.hosts]
        hosts = {}
        for (job, _), address in zip(names, addresses, strict=False):
            hosts.setdefault(job, []).append(address)
        flags = [f"--{job}_hosts={','.join(found)}" for job, found in hosts.items()]
        make = getattr(self, f"_{contestant.family}", self._program)
        if not names:
            yield Task("worker0", 0, *make(contestant, net, []))
        for number, (job, index) in enumerate(names):
            argv = [f"--job_name={job}", f"--task_index={index}", *flags]
            yield Task(f"{job}{index}", number, *make(contestant, net, argv))

    def _program(self, contestant, net, flags, python=sys.executable, program=None):
        program = PROGRAMS / f"{program or contestant.family}.py"
        extra = [f"--net={net}", f"--update={contestant.update}", f"--records={self._records}"]
        return [python, str(program), *flags, *extra], {}

    def _single(self, contestant, net, flags):
        return self._program(contestant, net, flags, program="plain")

    def _ddp(self, contestant, net, flags):
        argv, _ = self._program(contestant, net, flags, python=self._torch)
        threads = max(1, os.cpu_count() // self._num_workers)
        device = "eth0" if self._network else "lo"
        return argv, {"GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""}

    def _ps_train(self, contestant, net, flags):
        return [
            sys.executable, "-m", "ps_train", *flags, f"--model={PROGRAMS / 'command_line_model.py'}",
            f"--model_params=net={net},records={self._records}", f"--batch_size={NETS[net].batch}",
            f"--update={contestant.update}", "--train_steps=1000000000", *contestant.flags.split(),
        ], {}  # fmt: skip


def _steps(folder, name):
    path = folder / name
    points = read_points(path.read_text()) if path.exists() else []
    return points[-1][0] if points else 0


def _cpu_secs(processes):
    """Processor time of each so far."""
    found = {}
    for name, process in processes.items():
        with contextlib.suppress(OSError):
            found[name] = cpu_secs(process.pid)
    return found


def _end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _tails(folder):
    return "\n".join(
        f"--- end of the log of {path.stem}\n"
        + "\n".join(path.read_text(errors="replace").splitlines()[-20:])
        for path in sorted(folder.glob("*.log"))
    )
