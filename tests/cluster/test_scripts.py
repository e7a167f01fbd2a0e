"""A script with its own loop: how it ends, well and badly."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from harness import MODELS, START_SECS, checkpoint_of, free_ports

pytestmark = pytest.mark.cluster


class Script:
    """The processes of one job of `models/script.py`."""

    def __init__(self, folder, update, *more, script=MODELS / "script.py", env=None, names=None):
        self.folder, self.tasks, self._script, self._args = folder, {}, script, [update, *more]
        self._ps, *self._workers = (f"localhost:{port}" for port in free_ports(3))
        self._env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
        for name in names or ("ps:0", "worker:0", "worker:1"):
            self.start(name)

    def start(self, name):
        hosts = [self._ps, ",".join(self._workers), str(self.folder / "train")]
        command = [sys.executable, str(self._script), *name.split(":"), *hosts, *self._args]
        with open(self.log_path(name), "wb") as log:
            self.tasks[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    def log_path(self, name):
        return self.folder / f"{name.replace(':', '')}.log"

    def log(self, name):
        return self.log_path(name).read_text(errors="replace")

    def logs(self):
        return "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.tasks)

    def wait_for_line(self, name, pattern, secs=START_SECS):
        deadline = time.monotonic() + secs
        while not re.search(pattern, self.log(name)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {name}\n{self.logs()}"
            time.sleep(0.1)

    def expect(self, secs=START_SECS, **statuses):
        deadline = time.monotonic() + secs
        for name, status in statuses.items():
            name = name[:-1] + ":" + name[-1]
            try:
                got = self.tasks[name].wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} still runs after {secs} s\n{self.logs()}") from None
            assert got == status, f"{name} ended with {got}, expected {status}\n{self.logs()}"
            assert "Traceback" not in self.log(name), self.log(name)


@pytest.fixture
def start(tmp_path):
    scripts = []

    def start_script(*args, **options):
        scripts.append(Script(tmp_path, *args, **options))
        return scripts[-1]

    yield start_script
    for script in scripts:
        for task in script.tasks.values():
            task.kill()
            task.wait(10)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_script_at_module_level_ends_by_itself(start, update):
    script = start(update, "100")
    script.expect(ps0=0, worker0=0, worker1=0)
    assert "the loop has ended" in script.log("worker:1")


def test_a_lost_worker_of_a_sync_script_ends_it(start, tmp_path):
    script = start("sync")
    script.wait_for_line("worker:1", "step ")
    script.tasks["worker:1"].kill()
    script.expect(worker0=138, ps0=138)
    assert "gone for 8 s: worker:1 at localhost:" in script.log("worker:0")
    assert checkpoint_of(tmp_path / "train")["global_step"] > 0


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_stopped_chief_saves_and_the_others_end_for_it(start, update, tmp_path):
    script = start(update)
    script.wait_for_line("worker:0", "step ")
    script.wait_for_line("worker:1", "step ")
    script.tasks["worker:0"].send_signal(signal.SIGTERM)
    script.expect(worker0=143)
    script.expect(worker1=138, ps0=138)
    assert "gone for 8 s: worker:0 at localhost:" in script.log("worker:1")
    assert checkpoint_of(tmp_path / "train")["global_step"] > 0


def test_signals_have_their_effect_again_after_the_loop(start):
    script = start("async", "50", "60")
    for name in ("worker:0", "worker:1"):
        script.wait_for_line(name, "the loop has ended")
        script.tasks[name].send_signal(signal.SIGTERM)
    script.expect(secs=10, worker0=-signal.SIGTERM, worker1=-signal.SIGTERM)
    script.expect(ps0=0)


def test_a_finished_script_does_no_further_step(start, tmp_path):
    for _ in range(2):
        start("async", "60").expect(ps0=0, worker0=0, worker1=0)
        if _ == 0:
            before = sorted(path.name for path in (tmp_path / "train").glob("model.ckpt*"))
    assert sorted(path.name for path in (tmp_path / "train").glob("model.ckpt*")) == before


def test_a_task_that_is_ready_only_when_the_job_is_over(start):
    script = start("async", "40", names=("worker:1",))
    script.wait_for_line("worker:1", "waiting for ps:0")
    script.tasks["worker:1"].send_signal(signal.SIGSTOP)
    for name in ("ps:0", "worker:0"):
        script.start(name)
    script.expect(ps0=0, worker0=0)
    script.tasks["worker:1"].send_signal(signal.SIGCONT)
    script.expect(secs=30, worker1=0)
    assert "the job has reached its target: nothing to do" in script.log("worker:1")


@pytest.fixture
def start_joined(start):
    return lambda *args, **options: start(*args, script=MODELS / "joined.py", **options)


def test_a_worker_that_joins_returns_when_the_job_is_over(start_joined, tmp_path):
    script = start_joined("trains", "60", "100")
    script.expect(ps0=0, worker0=0, worker1=0)
    assert "the job is over: global step 100: the script's loop has ended" in script.log("worker:1")
    assert script.log("worker:1").endswith("joined\n") and "no session yet" not in script.log("worker:1")
    assert checkpoint_of(tmp_path / "train")["global_step"] == 100
    assert "did not leave" not in script.log("worker:0"), (
        "the chief has waited for one that has nothing to do"
    )


@pytest.mark.parametrize(
    "chief, expected", [("trains", "rejoined the living model"), ("pins", r"restored \S+ckpt-\d+")]
)
def test_a_worker_that_joins_and_is_lost_may_come_back(start_joined, tmp_path, chief, expected):
    """If it holds a variable, all go back to the checkpoint."""
    script = start_joined(chief, "60", "400")
    script.wait_for_line("worker:0", "saved|(trained\n){4}")
    script.tasks["worker:1"].kill()
    script.tasks["worker:1"].wait(10)
    script.start("worker:1")
    script.expect(ps0=0, worker0=0, worker1=0)
    assert re.search(expected, script.log("worker:0"))
    found = checkpoint_of(tmp_path / "train")
    assert found["global_step"] == 400
    np.testing.assert_allclose(found["w"], 1 - 0.998**400, rtol=1e-5)


def test_a_worker_that_joins_and_stays_away_ends_the_job(start_joined):
    script = start_joined("trains", "8")
    script.wait_for_line("worker:1", "worker:0 has its session: serving until the job is over")
    script.tasks["worker:1"].kill()
    script.expect(worker0=138, ps0=138, secs=60)
    address = script.log("worker:1").split("listening at localhost")[1].split(",")[0]
    last = script.log("worker:0").splitlines()[-1]
    assert address in last and re.search(
        "gone for 8 s: worker:1|gave up after 8 s: .*Connection refused", last
    )


def test_a_worker_that_joins_ends_for_a_lost_chief(start_joined):
    script = start_joined("trains", "8")
    script.wait_for_line("worker:1", "worker:0 has its session: serving until the job is over")
    script.tasks["worker:0"].kill()
    script.expect(worker1=138, ps0=138, secs=60)
    assert "gone for 8 s: worker:0 at localhost:" in script.log("worker:1")


def test_a_worker_that_joins_ends_by_a_signal(start_joined):
    script = start_joined("trains", "8", names=("ps:0", "worker:1"))
    script.wait_for_line("worker:1", r"waiting for worker:0 at localhost:\d+ to make its session")
    script.tasks["worker:1"].send_signal(signal.SIGTERM)
    script.expect(worker1=143, secs=10)


def test_a_chief_that_joins_is_one_line(start_joined):
    """Alone: it may have ended before there is a ps that could tell the others."""
    script = start_joined("joins", "8", names=("worker:0",))
    script.expect(worker0=1)
    assert "worker:0 is the chief of this cluster and called join(): nobody would train." in script.log(
        "worker:0"
    )


@pytest.fixture
def with_stock(tmp_path):
    """Makes a copy of the script in which some of ps_train's names are TensorFlow's."""

    def make(*names):
        text = (MODELS / "script.py").read_text()
        for name in names:
            assert f"ps_train.{name}" in text
            text = text.replace(f"ps_train.{name}", f"tf.train.{name}")
            if name == "Server(":  # without the arguments that only ours has
                text = text.replace(", peer_timeout_secs=8, shutdown_timeout_secs=8", "")
        (tmp_path / "stock.py").write_text(text)
        return tmp_path / "stock.py"

    return make


def test_a_stock_session_on_our_server_ends_and_is_named(start, with_stock):
    """The ps tasks cannot see when such a job is over: that is said, and nobody stays behind."""
    script = start("async", "60", script=with_stock("MonitoredTrainingSession"))
    script.wait_for_line(
        "worker:0", "error: the script ended without a session. Expected a ps_train.MonitoredTra"
    )
    script.expect(ps0=1, worker0=1)
    assert "the script ended without a session. Expected a ps_train.MonitoredTrainingSession" in script.log(
        "ps:0"
    )


def test_our_sync_optimizer_in_a_stock_session_is_one_line(start, with_stock):
    script = start("sync", "60", script=with_stock("MonitoredTrainingSession"))
    script.expect(worker0=1, worker1=1, ps0=1)
    for name in ("worker:0", "worker:1"):
        assert "Traceback" not in script.log(name)
        assert "ps_train.SyncReplicasOptimizer needs a session that brings up its rounds." in script.log(name)


def test_a_signal_ends_a_stock_session_on_our_server(start, with_stock):
    script = start("async", script=with_stock("MonitoredTrainingSession"))
    script.wait_for_line("worker:0", "listening")
    time.sleep(5)
    for name in ("worker:0", "worker:1"):
        script.tasks[name].send_signal(signal.SIGTERM)
    script.expect(secs=5, worker0=143, worker1=143)


def test_a_stock_sync_optimizer_is_warned_of(start, with_stock):
    script = start("sync", "40", script=with_stock("SyncReplicasOptimizer"))
    script.wait_for_line("worker:0", "warning: tf.train.SyncReplicasOptimizer is in use")


def test_our_session_on_a_stock_server_is_one_line(start, with_stock):
    script = start("async", "40", script=with_stock("Server("))
    script.expect(worker0=1)


def test_a_mistake_in_a_script_s_cluster_is_one_line_about_the_server(tmp_path):
    script = [sys.executable, str(MODELS / "script.py")]
    for args, expected in (
        (
            ["worker", "5", "localhost:1", "localhost:2", "-", "async"],
            "Check what ps_train.Server was given.",
        ),
        (["wroker", "0", "localhost:1", "localhost:2", "-", "async"], "there is no job 'wroker'"),
        (["worker", "0", "localhost", "localhost:2", "-", "async"], "Check what ps_train.Server was given."),
    ):
        done = subprocess.run([*script, *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done
        lines = [line for line in done.stderr.splitlines() if re.match(r"\d\d:\d\d:\d\d", line)]
        assert len(lines) == 1 and expected in lines[0] and "TF_CONFIG" not in lines[0], done.stderr
        assert "Traceback" not in done.stderr
