"""`python -m ps_train` without a job name: a whole cluster on this host, and every way it can end.

Each launcher runs with a mark in its environment, by which its tasks are found in /proc whoever their parent is by then;
whatever is left of them at the end of a test is killed.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid

import pytest
from terminals import Terminal

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not pathlib.Path("/proc/self/environ").exists(), reason="finds the tasks in /proc"),
]

DEADLINE_SECS = 90
SLOW_MODEL = """\
import time
from ps_train import builtin_model, ModelSpec
from ps_train.compat import tf

def input_fn(context):
    def wait(image, label):
        time.sleep(0.02)
        return image, label
    data = builtin_model.input_fn(context)
    slow = lambda image, label: tf.numpy_function(wait, [image, label], [tf.float32, tf.int64])
    shaped = lambda image, label: (tf.ensure_shape(image, [None, 64]), tf.ensure_shape(label, [None]))
    return data.map(slow).map(shaped)

model_fn = builtin_model.model_fn
"""
RAISING_MODEL = """\
from ps_train.builtin_model import input_fn

def model_fn(features, labels, mode, params):
    units = params["unitz"]
"""


class Launcher:
    """A launcher's process, its output in files, and its tasks."""

    def __init__(self, folder, *args, env=None, stdout=None):
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.out_path, self.err_path = folder / "launcher.out", folder / "launcher.err"
        out = stdout if stdout is not None else open(self.out_path, "wb")
        full_env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        path = os.pathsep.join([os.path.dirname(sys.executable), full_env["PATH"]])  # `python` is this one
        full_env |= {"CUDA_VISIBLE_DEVICES": "-1", "LAUNCHER_MARK": self.mark, "PATH": path, **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ps_train", *args], cwd=folder, env=full_env, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out if stdout is not None else open(self.err_path, "wb"), start_new_session=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [self.process.pid, *self.pids()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def out(self):
        return self.out_path.read_text()

    @property
    def err(self):
        return self.err_path.read_text()

    def pids(self):
        """Process ids with this launcher's mark, its own left out."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                pid = int(path.parent.name)
                if self.mark.encode() in path.read_bytes() and pid != self.process.pid:
                    found.append(pid)
        return found

    def wait(self, secs=DEADLINE_SECS):
        try:
            return self.process.wait(secs)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the launcher still runs after {secs} s\n{self.tails()}")

    def wait_for(self, condition, what, secs=DEADLINE_SECS):
        deadline = time.monotonic() + secs
        while not condition():
            if time.monotonic() > deadline or self.process.poll() not in (None, -signal.SIGKILL):
                pytest.fail(f"no {what} (launcher's status {self.process.poll()})\n{self.tails()}")
            time.sleep(0.05)

    def wait_for_training(self):
        """Until both workers train and a step is made; a line tells the states only if they are new."""
        self.wait_for(lambda: re.search(r"worker:0-1 training", self.out), "training")
        self.wait_for(lambda: re.search(r"^step [1-9]", self.out, re.MULTILINE), "step")

    def tails(self):
        paths = [self.out_path, self.err_path, *sorted(self.folder.glob("**/logs/*.log"))]
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths if path.exists()
        )


@pytest.fixture
def slow_model(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(SLOW_MODEL)
    return f"--model={path.name}"


def steps_of(train_dir):
    return sorted(int(path.stem.rpartition("-")[2]) for path in train_dir.glob("model.ckpt-*.index"))


def expect_no_task_left(launcher, secs=1.0):
    deadline = time.monotonic() + secs
    while launcher.pids() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert launcher.pids() == [], launcher.tails()


def test_a_bare_run_shows_a_newcomer_the_whole_thing(tmp_path):
    folder = tmp_path / "a path with [blanks]"
    folder.mkdir()
    with Launcher(folder) as launcher:
        assert launcher.wait() == 0, launcher.tails()
        expect_no_task_left(launcher)
        out = launcher.out
        assert launcher.err == ""
    assert float(re.search(r"^Held-out data: accuracy ([\d.]+)", out, re.MULTILINE)[1]) > 0.9
    assert re.search(r"^Trained to step 100[01] in [\d.]+ s, async, on 2 workers\.$", out, re.MULTILINE)
    train_dir = folder / re.search(r"^Checkpoint: +(ps_train_runs/digits-[\d-]+)/model", out, re.MULTILINE)[1]
    assert steps_of(train_dir)[-1] in (1000, 1001)
    assert re.search(r"^Logs: +(.*)$", out, re.MULTILINE)[1] == str(train_dir.relative_to(folder) / "logs")
    hosts = "--ps_hosts=PS0:2222 --worker_hosts=WORKER0:2222,WORKER1:2222 --train_steps=1000"
    assert f"  python -m ps_train --job_name=ps --task_index=0 {hosts} --train_dir=TRAIN_DIR\n" in out
    assert max(map(len, out[: out.index("Checkpoint:")].splitlines())) < 80
    for name in ("ps0", "worker0", "worker1"):
        report = json.loads((train_dir / "logs" / f"{name}.json").read_text())
        assert (report["outcome"], report["exit_status"]) == ("done", 0)
        assert "Traceback" not in (train_dir / "logs" / f"{name}.log").read_text()
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert 2 <= len(lines) <= 20


def test_sync_over_two_ps_with_a_report_and_the_same_again(tmp_path):
    args = (
        "--num_ps=2",
        "--num_workers=2",
        "--update=sync",
        "--train_steps=60",
        "--train_dir=t",
        "--noevaluate",
        "--model_params=hidden=9,rate=0.1",
    )
    states = r"; ps:0-1 serving, worker:0.* (starting|training)\n"
    with Launcher(tmp_path, *args, "--report_file=r.json") as launcher:
        assert launcher.wait() == 0, launcher.tails()
    assert launcher.err == (
        "ps_train: worker:0 warning: --model_params has 'rate', which was not read while the graph was built. Read "
        "were: hidden, learning_rate.\n"
    )
    assert json.loads((tmp_path / "r.json").read_text())["is_chief"]
    assert json.loads((tmp_path / "r.worker1.json").read_text())["local_steps"] == 60
    assert json.loads((tmp_path / "r.ps1.json").read_text())["outcome"] == "done"
    assert "Held-out" not in launcher.out
    assert re.search(states, launcher.out), launcher.out
    with Launcher(tmp_path, *args, "--report_file=r.json") as launcher:
        assert launcher.wait() == 0, launcher.tails()
    assert launcher.out.startswith(
        "Nothing left to train: t/model.ckpt-60 has reached the target of 60 steps.\n"
    )
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["outcome"], report["global_step"], report["local_steps"]) == ("done", 60, 0)
    assert report["reason"] == "t/model.ckpt-60 has reached the target of 60 steps: nothing to do"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_in_order_with_a_checkpoint(tmp_path, slow_model, number, status):
    with Launcher(tmp_path, slow_model, "--train_dir=t") as launcher:
        launcher.wait_for_training()
        assert len(launcher.pids()) == 3
        launcher.process.send_signal(number)
        assert launcher.wait(25) == status, launcher.tails()
        expect_no_task_left(launcher, secs=0)
        assert steps_of(tmp_path / "t")[-1] > 0, launcher.tails()
        assert launcher.err.splitlines() == [
            f"ps_train: Stopped by {number.name}.",
            f"ps_train: Checkpoint: t/model.ckpt-{steps_of(tmp_path / 't')[-1]}",
            "ps_train: To go on from there: python -m ps_train --model=slow.py --train_dir=t",
        ]
        assert "Traceback" not in launcher.tails()


def test_a_second_signal_ends_all_at_once(tmp_path, slow_model):
    with Launcher(tmp_path, slow_model, "--train_dir=t") as launcher:
        launcher.wait_for_training()
        for pid in launcher.pids():
            os.kill(pid, signal.SIGSTOP)  # none of them can end in order
        launcher.process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        launcher.process.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 130, launcher.tails()
        expect_no_task_left(launcher, secs=0)


def test_tasks_that_do_not_end_are_killed_in_time(tmp_path, slow_model):
    with Launcher(tmp_path, slow_model, "--train_dir=t", "--shutdown_timeout_secs=1") as launcher:
        launcher.wait_for_training()
        for pid in launcher.pids():
            os.kill(pid, signal.SIGSTOP)
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.wait(20) == 143, launcher.tails()
        expect_no_task_left(launcher, secs=0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_no_task_survives_the_launcher_and_the_chief_saves(tmp_path, slow_model, start):
    with Launcher(tmp_path, slow_model, "--train_dir=t", env={"PS_TRAIN_START": start}) as launcher:
        launcher.wait_for_training()
        launcher.process.kill()
        launcher.process.wait(5)
        expect_no_task_left(launcher, secs=10)
        assert steps_of(tmp_path / "t")[-1] > 0, launcher.tails()


def test_a_launcher_that_stands_still_holds_nobody_up(tmp_path, slow_model):
    """Its tasks train on meanwhile; it then ends them in order, as ever."""
    flags = ["--train_dir=t", "--save_checkpoint_steps=10", "--keep_checkpoint_max=0"]
    with Launcher(tmp_path, slow_model, *flags) as launcher:
        launcher.wait_for_training()
        launcher.process.send_signal(signal.SIGSTOP)
        before = steps_of(tmp_path / "t")[-1]
        launcher.wait_for(
            lambda: steps_of(tmp_path / "t")[-1] >= before + 20, "training without the launcher"
        )
        launcher.process.send_signal(signal.SIGCONT)
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.wait() == 143, launcher.tails()
        expect_no_task_left(launcher, secs=0)


def test_a_model_that_raises_is_one_headline(tmp_path):
    (tmp_path / "broken.py").write_text(RAISING_MODEL)
    with Launcher(tmp_path, "--model=broken.py", "--train_dir=t") as launcher:
        assert launcher.wait() == 1, launcher.tails()
        expect_no_task_left(launcher, secs=0)
        headline, log, end = launcher.err.splitlines()
    assert re.fullmatch(
        r"ps_train: worker:[01] failed \(status 1\): model_fn in broken\.py:4 raised KeyError: 'unitz'",
        headline,
    )
    assert re.fullmatch(r"ps_train: Its log: t/logs/worker[01]\.log; --debug adds the traceback", log)
    assert end == "ps_train: No checkpoint was saved."
    assert "Traceback" not in launcher.out


def test_with_debug_the_traceback_is_in_the_log_that_is_named(tmp_path):
    (tmp_path / "broken.py").write_text(RAISING_MODEL)
    with Launcher(tmp_path, "--model=broken.py", "--train_dir=t", "--debug") as launcher:
        assert launcher.wait() == 1, launcher.tails()
        name = re.search(
            r"^ps_train: Its log: (t/logs/worker[01]\.log), with a traceback$", launcher.err, re.M
        )[1]
    assert "units = params[" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--update=sync"], "worker1"),
        ([], "worker0"),
        ([], "ps0"),
    ],
)
def test_a_killed_task_that_is_needed_is_the_headline_and_its_status_the_launchers(
    tmp_path, slow_model, args, name
):
    with Launcher(tmp_path, slow_model, "--train_dir=t", "--save_checkpoint_steps=5", *args) as launcher:
        launcher.wait_for_training()
        launcher.wait_for(lambda: steps_of(tmp_path / "t"), "checkpoint")
        os.kill(pid_of(launcher, name), signal.SIGKILL)
        assert launcher.wait(20) == 137, launcher.tails()
        headline = f"ps_train: {name[:-1]}:{name[-1]} failed (status 137): ended by SIGKILL"
        assert launcher.err.startswith(headline), launcher.err
        assert "ps_train: Checkpoint: t/model.ckpt-" in launcher.err
        assert "ps_train: To go on from there: python -m ps_train --model=slow.py" in launcher.err
        expect_no_task_left(launcher, secs=0)


@pytest.mark.parametrize(
    "args",
    [
        ["--num_ps=2"],
        ["--update=sync", "--replicas_to_aggregate=1"],
        ["--update=sync", "--on_worker_loss=continue"],
    ],
)
def test_a_job_goes_on_without_a_killed_worker(tmp_path, slow_model, args):
    with Launcher(tmp_path, slow_model, "--train_dir=t", "--train_steps=400", *args) as launcher:
        launcher.wait_for(lambda: "worker:0-1 training" in launcher.out, "training")
        log = tmp_path / "t" / "logs" / "worker1.log"
        launcher.wait_for(lambda: "step " in log.read_text(), "step of worker:1")
        os.kill(pid_of(launcher, "worker1"), signal.SIGKILL)
        launcher.wait_for(lambda: launcher.err, "word of it")
        start = time.monotonic()
        assert launcher.wait(40) == 0, launcher.tails()
        assert time.monotonic() - start < 20, "nobody waits for it at the end"
        expect_no_task_left(launcher, secs=0)
        out, err = launcher.out, launcher.err
    reason = "ended by SIGKILL, which may be the system's, for want of memory"
    first, *others = err.splitlines()
    assert first == f"ps_train: worker:1 is lost: {reason}. The job goes on without it."
    # The chief's own word, if the job goes on for longer than the chief's patience with a lost worker.
    told = f"ps_train: worker:0 warning: worker:1 has ended ({reason})"
    assert others in ([], [told], [f"{told}: going on without it"])
    assert re.search(r"^Trained to step 40\d in ", out, re.M)
    when = r"(after about \d+ steps? of its own|before its first step)"
    assert re.search(rf"^worker:1 was lost {when}: {reason}\. Its log: ", out, re.M)
    assert "worker:0 training, worker:1 ended by SIGKILL" in out, out
    assert steps_of(tmp_path / "t")[-1] >= 400


def pid_of(launcher, name):
    for pid in launcher.pids():
        if os.readlink(f"/proc/{pid}/fd/2").endswith(f"{name}.log"):
            return pid
    pytest.fail(f"no process of {name}\n{launcher.tails()}")


def test_spawned_tasks_do_the_same(tmp_path):
    args = ("--train_steps=300", "--train_dir=a dir")
    with Launcher(tmp_path, *args, env={"PS_TRAIN_START": "spawn"}) as launcher:
        assert launcher.wait() == 0, launcher.tails()
        expect_no_task_left(launcher)
    assert "Held-out data: accuracy 0.9" in launcher.out
    assert "--train_dir='a dir'" not in launcher.out  # shlex quotes the whole word
    assert f"To evaluate: python -m ps_train eval {shlex.quote('--train_dir=a dir')}\n" in launcher.out


def test_on_a_terminal_a_picture_is_drawn(tmp_path, slow_model):
    """The frozen worker is marked, and the last figures are those of the reports."""
    args = [slow_model, "--update=sync", "--train_steps=200", "--report_file=report.json", "--evaluate"]
    with Terminal() as terminal, Launcher(tmp_path, *args, env=terminal.env, stdout=terminal.fd) as launcher:
        process = launcher.process
        terminal.wait_for("importing TensorFlow", DEADLINE_SECS, process)
        head = r"step \d+/200  [█░]+  [\d.]+ steps/s  loss [\d.e-]+  \d:\d\d left\n"
        terminal.wait_for(
            head + r" +ps:0 +serving\n.*\n +worker:1 +training +\d\d+ steps", DEADLINE_SECS, process
        )
        pid = pid_of(launcher, "worker1")
        os.kill(pid, signal.SIGSTOP)
        terminal.wait_for(r"worker:0 +waiting for worker:1.*\n +worker:1 +silent for 0:", 30, process)
        os.kill(pid, signal.SIGCONT)
        terminal.wait_for(r"Held-out data: accuracy 0\.\d", DEADLINE_SECS, process)
        assert launcher.wait(20) == 0
        expect_the_picture_to_agree(terminal, tmp_path)


def expect_the_picture_to_agree(terminal, folder, has_reports=True):
    """The last picture has the figures of the reports, and nothing was written that a terminal would have to forget.

    Where the launcher has no reports, it may not know how many steps each worker made: then it must not say.
    """
    reports = [json.loads((folder / name).read_text()) for name in ("report.json", "report.worker1.json")]
    chief = reports[0]
    head, ps, *rows = re.findall(r"(?m)^step .*|^ +(?:ps|worker):\d .*", terminal.text)[-4:]
    assert re.fullmatch(rf"step {chief['global_step']}/200  █+  loss {chief['loss']:.4g}", head), (
        terminal.text
    )
    assert ps.split() == ["ps:0", "done"]
    for index, (row, report) in enumerate(zip(rows, reports, strict=True)):
        wanted = [f"worker:{index}", "done", str(report["local_steps"]), "steps"]
        assert row.split() in ([wanted] if has_reports else [wanted, wanted[:2]]), terminal.text
    assert terminal.strange == []


def test_a_reader_that_leaves_does_not_end_the_job(tmp_path):
    read_fd, write_fd = os.pipe()
    with Launcher(tmp_path, "--train_steps=100", "--train_dir=t", stdout=write_fd) as launcher:
        os.close(write_fd)
        os.read(read_fd, 1)
        os.close(read_fd)
        assert launcher.wait() == 0
    assert steps_of(tmp_path / "t")[-1] >= 100


def test_a_directory_that_cannot_be_made_is_said_before_tensorflow(tmp_path):
    (tmp_path / "file").write_text("")
    start = time.monotonic()
    with Launcher(tmp_path, "--train_dir=file/t") as launcher:
        assert launcher.wait() == 1
        assert time.monotonic() - start < 2.0
    assert launcher.err == (
        "ps_train: The directory file/t cannot be made: Not a directory. Choose another --train_dir.\n"
    )
