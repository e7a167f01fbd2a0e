"""A job of real processes, started through the command line as users do; every wait has a bound.

    with Job(tmp_path, num_ps=2, num_workers=2, flags=["--train_steps=30"]) as job:
        job.start_all()
        job.expect_exits(0)

Everything that was started is ended with the `with` block. A failed test shows the end of each task's log (`conftest`).

A task is forked from a process that has imported TensorFlow, which halves the time of these tests; where `Job.is_fresh` says
so, where it needs an environment of its own or something in front of its command line, or with PS_TRAIN_START=spawn, it is
a new `python -m ps_train`.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # where a benchmark does not find `ports`
from forked_task import ForkedTask
from ports import free_ports

from ps_train.cluster import TaskId
from ps_train.process import can_fork

MODELS = pathlib.Path(__file__).parent / "models"
START_SECS = 120  # a cluster's start, six imports of TensorFlow on two cores, and a tiny training, with other work there


class TaskProcess:
    """One `python -m ps_train` process with its log file and its report file."""

    def __init__(self, name, argv, folder, env, cwd, prefix=(), is_fresh=True):
        self.name = name
        stem = f"{name.replace(':', '')}.{len(list(folder.glob('*.log')))}"
        self.log_path, self._report_path = folder / f"{stem}.log", folder / f"{stem}.json"
        argv = [*argv, f"--report_file={self._report_path}"]
        with open(self.log_path, "wb") as log:
            if is_fresh:
                self._process = subprocess.Popen(
                    [*prefix, sys.executable, "-m", "ps_train", *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=env, cwd=cwd, start_new_session=True,
                )  # fmt: skip
            else:
                self._process = ForkedTask(argv, self.log_path, env, cwd)

    @property
    def pid(self):
        return self._process.pid

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def report(self):
        """The report file's content; fails if there is none."""
        assert self._report_path.exists(), f"{self.name} wrote no report\n{self.tail()}"
        return json.loads(self._report_path.read_text())

    @property
    def status(self):
        """Exit status (negative: a signal's number), or None while it runs."""
        return self._process.poll()

    def send(self, number):
        self._process.send_signal(number)

    def kill(self):
        if self.status is None:
            for end in (os.killpg, os.kill):  # a process that is very new has no group yet
                with contextlib.suppress(ProcessLookupError):
                    end(self.pid, signal.SIGKILL)
        self.wait(10)

    def wait(self, secs):
        """The exit status; fails if there is none in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(secs)
        assert self.status is not None, f"{self.name} still runs after {secs:.0f} s\n{self.tail()}"
        return self.status

    def wait_for_line(self, pattern, secs=START_SECS):
        """Waits until the log has a match of `pattern`, which is given back; fails if the task ends before."""
        deadline = time.monotonic() + secs
        while True:
            ended = self.status is not None
            match = re.search(pattern, self.log)
            if match:
                return match
            assert not ended, f"{self.name} ended with {self.status}, without {pattern!r}\n{self.tail()}"
            assert time.monotonic() < deadline, f"no {pattern!r} within {secs} s\n{self.tail()}"
            time.sleep(0.05)

    def tail(self, count=30):
        lines = self.log.splitlines()[-count:]
        return f"--- end of the log of {self.name} (status {self.status})\n" + "\n".join(lines)


class Job:
    """Hosts of a cluster on this machine, settings, and the tasks started so far."""

    def __init__(
        self, folder, num_ps=1, num_workers=2, model="line.py", flags=(), params="", timeout_secs=30
    ):
        self.folder = folder / f"job{len(list(folder.glob('job*')))}"
        self.folder.mkdir()
        self.train_dir = str(folder / "train")
        self.model, self.params, self.flags = (
            (MODELS / model if model.endswith(".py") else model),
            params,
            list(flags),
        )
        self.timeout_secs = timeout_secs
        ports = free_ports(num_ps + num_workers)
        self.ps_hosts = [f"127.0.0.1:{port}" for port in ports[:num_ps]]
        self.worker_hosts = [f"127.0.0.1:{port}" for port in ports[num_ps:]]
        self.prefixes = {}  # name -> what leads its command line, as to start it in a network namespace
        self.env = {}
        self.is_fresh = not can_fork()
        self.tasks = []

    @property
    def names(self):
        ps = [f"ps:{index}" for index in range(len(self.ps_hosts))]
        return ps + [f"worker:{index}" for index in range(len(self.worker_hosts))]

    def start(self, name, *extra, tf_config=None, cwd=None, **overrides):
        """Starts one task; `overrides` are flags, None leaves one out."""
        task = TaskId.from_string(name)
        settings = {
            "job_name": task.job, "task_index": task.index,
            "ps_hosts": ",".join(self.ps_hosts), "worker_hosts": ",".join(self.worker_hosts),
            "model": self.model, "model_params": self.params or None, "train_dir": self.train_dir,
            "startup_timeout_secs": START_SECS, "peer_timeout_secs": self.timeout_secs,
            "shutdown_timeout_secs": self.timeout_secs,
        }  # fmt: skip
        env = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        env |= {"CUDA_VISIBLE_DEVICES": "-1", **self.env}
        if tf_config is not None:
            env["TF_CONFIG"] = json.dumps(tf_config)
            settings.update(job_name=None, task_index=None, ps_hosts=None, worker_hosts=None)
        settings.update(overrides)
        argv = [f"--{key}={value}" for key, value in settings.items() if value is not None]
        flags = [*argv, *self.flags, *extra]
        prefix = self.prefixes.get(name, ())
        is_fresh = bool(self.is_fresh or self.env or prefix)
        process = TaskProcess(name, flags, self.folder, env, cwd, prefix, is_fresh)
        self.tasks.append(process)
        return process

    def start_all(self, names=None):
        """Starts the named tasks, or all of them, in that order; the processes in that order."""
        return [self.start(name) for name in names or self.names]

    def expect_exits(self, status=0, tasks=None, secs=START_SECS):
        """All end with `status` within `secs` and show no traceback."""
        deadline = time.monotonic() + secs
        for task in self.tasks if tasks is None else tasks:
            got = task.wait(max(deadline - time.monotonic(), 0.1))
            assert got == status, f"{task.name} ended with {got}, expected {status}\n{task.tail()}"
            assert "Traceback" not in task.log, f"{task.name} shows a traceback\n{task.tail(60)}"

    def tails(self):
        return "\n".join(task.tail() for task in self.tasks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task in self.tasks:
            task.kill()


def checkpoint_of(train_dir):
    """Variable name -> value, of the newest checkpoint."""
    from ps_train.checkpoints import latest_checkpoint
    from ps_train.compat import tf

    path = latest_checkpoint(str(train_dir))
    assert path, f"no checkpoint in {train_dir}"
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
