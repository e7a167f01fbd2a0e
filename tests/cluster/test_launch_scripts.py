"""`ps_train launch -- python script.py`: scripts that know TF_CONFIG, and the examples of tf.distribute's strategies."""

import contextlib
import os
import pathlib
import re
import signal
import sys
import time

import pytest
from launchers import Launched, clean_env, descendants
from test_examples import EXAMPLES, STAMPS, make_crops, needs_fashion_mnist

pytestmark = pytest.mark.cluster
GRACE_SECS = 30
TRAIN_SECS = 180
LARGE_GRAPH_SECS = 360  # some 40 s of processor time, most of it to import and to build the graph
# Says who it is, and does as its argument for it says: "worker:1=fail".
SCRIPT = """\
import json, os, signal, subprocess, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}:{task['index']}"
print("here", *sys.argv[1:])
print(json.dumps(json.loads(os.environ["TF_CONFIG"])["cluster"], sort_keys=True))
act = dict(word.split("=") for word in sys.argv[1:] if "=" in word).get(name, "end")
if act == "fail":
    raise ValueError("no good")
if act == "late":  # fails when the others are done
    time.sleep(2)
    sys.exit(3)
if act == "told":  # fails when it is told to
    while not os.path.exists("go"):
        time.sleep(0.05)
    sys.exit(3)
if act == "save":
    def save(*_):
        print("saving")
        time.sleep(2)
        print("saved")
        sys.exit()
    signal.signal(signal.SIGTERM, save)
if act == "child":
    subprocess.Popen(["sleep", "1000"])
if act == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if act != "end":
    print("stays")
    time.sleep(1000)
print("done")
"""

# Runs a script in a directory of the task's own.
IN_ITS_DIRECTORY = """\
import json, os, sys
own = "task" + str(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
os.makedirs(own, exist_ok=True)
os.chdir(own)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def launch(tmp_path):
    """Starts `ps_train launch`, which ends with the test."""
    started = []

    def start(*argv, **env):
        log = tmp_path / f"{len(started)}.log"
        full = [sys.executable, "-m", "ps_train", "launch", *argv]
        started.append(Launched(full, log, clean_env() | env, tmp_path))
        return started[-1]

    (tmp_path / "script.py").write_text(SCRIPT)
    yield start
    for each in started:
        each.close()


def run_script(*words):
    return ["--", sys.executable, "script.py", *words]


def pid_of(job, job_name, index):
    """The process of one task's script."""
    wanted = f'"type": "{job_name}", "index": {index}'.encode()
    for pid in descendants(job.pid):
        with contextlib.suppress(OSError):
            if wanted in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    raise AssertionError(f"{job_name}:{index} does not run\n{job.tail()}")


def command_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def wait_until_gone(pids, secs=GRACE_SECS):
    deadline = time.monotonic() + secs
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def lines_of(job, name):
    return [line.removeprefix(f"{name} ") for line in job.log.splitlines() if line.startswith(f"{name} ")]


def test_each_task_has_its_tf_config_and_its_lines_have_its_name(launch):
    job = launch("--num_workers=2", "--chief", "--port_base=23450", *run_script("--x", "a b"))
    assert job.wait(GRACE_SECS) == 0, job.tail()
    cluster = '{"chief": ["127.0.0.1:23450"], "worker": ["127.0.0.1:23451", "127.0.0.1:23452"]}'
    for name in ("chief:0", "worker:0", "worker:1"):
        assert lines_of(job, name) == ["here --x a b", cluster, "done"]
    assert job.log.splitlines()[-1] == "Done (status 0): 3 tasks on 1 host."


def test_a_line_that_the_encoding_of_stdout_lacks_is_shown_all_the_same(launch):
    write = r"import os; os.write(1, '\u2501 caf\xe9\n'.encode())"
    job = launch("--num_workers=1", "--", sys.executable, "-c", write, PYTHONIOENCODING="latin-1")
    assert job.wait(GRACE_SECS) == 0, job.tail()
    assert rb"worker:0 \u2501 caf" + b"\xe9\n" in job.log_path.read_bytes()


def test_ps_tasks_that_never_end_are_ended_and_that_is_no_failure(launch):
    job = launch("--num_ps=2", "--num_workers=1", *run_script("ps:0=stay", "ps:1=stay"))
    assert job.wait(GRACE_SECS) == 0, job.tail()
    assert lines_of(job, "ps:1")[-1] == "stays" and "failed" not in job.log


def test_beside_ps_tasks_the_chief_decides_when_the_job_is_over(launch):
    words = ["ps:0=stay", "worker:0=stay", "worker:1=late"]
    job = launch("--chief", "--num_ps=1", *run_script(*words))
    assert job.wait(GRACE_SECS) == 0, job.tail()
    assert lines_of(job, "chief:0")[-1] == "done"


def test_one_that_fails_is_the_headline_and_ends_all(launch, tmp_path):
    job = launch("--num_ps=1", "--log_dir=logs", *run_script("ps:0=stay", "worker:0=child", "worker:1=fail"))
    assert job.wait(GRACE_SECS) == 1, job.tail()
    assert (
        "ps_train: worker:1 failed (status 1): ValueError: no good\nps_train: Its log: logs/worker1.log"
        in job.log
    )
    assert "ValueError: no good" in (tmp_path / "logs/worker1.log").read_text()
    assert "worker:0 failed" not in job.log and "ps:0 failed" not in job.log


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="writes to a full disk, and there is no /dev/full"
)
def test_a_full_disk_under_log_dir_costs_lines_and_not_the_job(launch, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/worker0.log").symlink_to("/dev/full")
    job = launch("--num_workers=2", "--log_dir=logs", *run_script("worker:1=late"))
    assert job.wait(GRACE_SECS) == 3, job.tail()
    assert job.log.count("ps_train: logs/worker0.log cannot be written: No space left on device.") == 1
    assert lines_of(job, "worker:0")[-1] == "done" and "Traceback" not in job.log
    assert "here" in (tmp_path / "logs/worker1.log").read_text()


def test_a_log_that_cannot_be_opened_is_told_before_anything_starts(launch, tmp_path):
    (tmp_path / "logs/worker1.log").mkdir(parents=True)
    job = launch("--num_workers=2", "--log_dir=logs", *run_script())
    assert job.wait(GRACE_SECS) == 1
    assert job.log == (
        "ps_train: The log logs/worker1.log of worker:1 cannot be written: Is a directory. Choose another --log_dir.\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_even_those_that_do_not_hear_it(launch, number):
    job = launch("--num_ps=1", *run_script("ps:0=stay", "worker:0=deaf", "worker:1=child"))
    for name in ("worker:0", "worker:1", "ps:0"):
        job.wait_for_line(f"{name} stays", GRACE_SECS)
    pids = descendants(job.pid)
    assert len(pids) >= 7  # three tethers, three scripts and the sleep
    os.kill(job.pid, number)
    assert job.wait(GRACE_SECS) == 128 + number, job.tail()
    assert f"ps_train: Stopped by {number.name}." in job.log and "failed" not in job.log
    wait_until_gone(pids)


def test_a_second_signal_kills(launch):
    job = launch("--num_workers=1", "--shutdown_timeout_secs=600", *run_script("worker:0=deaf"))
    job.wait_for_line("stays", GRACE_SECS)
    os.kill(pid_of(job, "worker", 0), signal.SIGSTOP)  # so that no SIGTERM ends it
    os.kill(job.pid, signal.SIGINT)
    time.sleep(0.7)  # sooner it is taken for the same request
    os.kill(job.pid, signal.SIGINT)
    assert job.wait(GRACE_SECS) == 130, job.tail()


def test_a_signal_after_a_failure_does_not_keep_a_task_from_saving(launch, tmp_path):
    job = launch("--num_workers=2", *run_script("worker:0=save", "worker:1=told"))
    job.wait_for_line("worker:0 stays", GRACE_SECS)
    (tmp_path / "go").touch()
    job.wait_for_line("worker:0 saving", GRACE_SECS)
    time.sleep(0.7)  # sooner it is taken for a repetition, of which there is none
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(GRACE_SECS) == 3, job.tail()
    assert lines_of(job, "worker:0")[-1] == "saved"
    assert "worker:1 failed (status 3)" in job.log and "Stopped by" not in job.log


@pytest.fixture
def deaf_ssh(tmp_path):
    """An ssh that takes the connection, and then nothing happens; a shell with a child, as one with options of a site's."""
    path = tmp_path / "ssh"
    path.write_text("#!/bin/sh\necho welcome\nsleep 1000\n")
    path.chmod(0o755)
    return path


def test_a_host_that_never_answers_is_not_waited_for_longer_than_its_bound(launch, deaf_ssh):
    flags = ["--hosts=host7", "--num_workers=1", f"--ssh={deaf_ssh}", "--startup_timeout_secs=9"]
    job = launch(*flags, *run_script())
    assert job.wait(GRACE_SECS) == 138, job.tail()
    assert job.log.splitlines()[:2] == [
        "ps_train: Waiting for ssh to start worker:0 on host7, no longer than 9 s (--startup_timeout_secs).",
        "ps_train: worker:0 failed (status 138): host7 has not started it within 9 s (--startup_timeout_secs). Expected its "
        f"shell, its directories and its Python to answer: try {deaf_ssh} host7 true. It said: welcome",
    ]


@pytest.mark.parametrize("num_signals", [1, 2])
def test_ctrl_c_does_not_wait_for_an_ssh_that_hangs(launch, deaf_ssh, num_signals):
    flags = ["--hosts=host7", f"--ssh={deaf_ssh}", "--shutdown_timeout_secs=600"]
    job = launch("--num_workers=1", *flags, *run_script())
    deadline = time.monotonic() + GRACE_SECS
    while not (pids := [pid for pid in descendants(job.pid) if "sleep" in command_of(pid)]):
        assert time.monotonic() < deadline, job.tail()
        time.sleep(0.05)
    for _ in range(num_signals):
        os.kill(job.pid, signal.SIGINT)
        time.sleep(0.7)  # sooner a second one is taken for the same request
    assert job.wait(GRACE_SECS) == 130, job.tail()
    assert "ps_train: Stopped by SIGINT." in job.log
    wait_until_gone(pids)


def test_a_killed_launcher_leaves_nothing_behind(launch):
    job = launch("--num_ps=1", *run_script("ps:0=stay", "worker:0=child", "worker:1=stay"))
    for name in ("worker:0", "worker:1", "ps:0"):
        job.wait_for_line(f"{name} stays", GRACE_SECS)
    pids = descendants(job.pid)
    assert len(pids) >= 7
    os.kill(job.pid, signal.SIGKILL)
    job.wait(GRACE_SECS)
    wait_until_gone(pids)


def test_a_killed_tether_takes_its_task_along(launch):
    job = launch("--num_workers=2", *run_script("worker:0=stay", "worker:1=stay"))
    for name in ("worker:0", "worker:1"):
        job.wait_for_line(f"{name} stays", GRACE_SECS)
    pids = descendants(job.pid)
    script = pid_of(job, "worker", 1)
    tether = next(pid for pid in pids if script in descendants(pid))
    os.kill(tether, signal.SIGKILL)
    assert job.wait(GRACE_SECS) == 1, job.tail()
    assert "worker:1 failed (status 1): its tether was lost" in job.log
    wait_until_gone(pids)


def test_a_command_that_is_not_there(launch):
    job = launch("--num_workers=1", "--", "no_such_program")
    assert job.wait(GRACE_SECS) == 127
    assert "worker:0 failed (status 127): no_such_program cannot be started: No such file" in job.log


@needs_fashion_mnist
def test_keras_mirrored(launch):
    job = launch("--num_workers=1", "--", sys.executable, str(EXAMPLES / "keras_mirrored.py"), "--steps=120")
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert accuracy(job, "worker:0 2 replicas, 120 steps") > 0.7


@needs_fashion_mnist
def test_keras_multi_worker_goes_on_from_its_checkpoint_after_the_chief_is_killed(launch):
    script = [str(EXAMPLES / "keras_multi_worker.py"), "--steps=600", "--save_steps=50", "--train_dir=train"]
    job = launch("--num_workers=2", "--max_restarts=1", "--", sys.executable, *script)
    job.wait_for_line("worker:0 step 100/600, .* saved", TRAIN_SECS)
    os.kill(pid_of(job, "worker", 0), signal.SIGKILL)
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert "ps_train: worker:0 failed (status 137): ended by SIGKILL" in job.log
    assert "ps_train: All tasks are started again: restart 1 of 1." in job.log
    for name in ("worker:0", "worker:1"):
        assert int(re.search(rf"(?m)^{name} restored step (\d+)", job.log)[1]) >= 100
    assert accuracy(job, "worker:0 2 workers, 600 steps") > 0.8


@needs_fashion_mnist
def test_keras_fit_goes_on_from_the_epoch_that_was_backed_up(launch):
    script = [str(EXAMPLES / "keras_fit.py"), "--epochs=14", "--steps_per_epoch=40", "--train_dir=train"]
    job = launch(
        "--num_workers=2", "--max_restarts=1", "--", sys.executable, *script, TF_USE_LEGACY_KERAS="1"
    )
    job.wait_for_line("worker:0 epoch 4 of 14", TRAIN_SECS)
    os.kill(pid_of(job, "worker", 1), signal.SIGKILL)
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert "ps_train: worker:1 failed (status 137): ended by SIGKILL" in job.log
    again = job.log.partition("All tasks are started again")[2]
    assert int(re.search(r"(?m)^worker:0 epoch (\d+) of 14", again)[1]) >= 4, (
        "from the beginning it would be 1"
    )
    assert accuracy(job, "worker:0 2 workers, 14 epochs") > 0.75


def test_keras_fit_says_that_keras_3_cannot_do_it(launch):
    job = launch("--num_workers=1", "--", sys.executable, str(EXAMPLES / "keras_fit.py"))
    assert job.wait(GRACE_SECS) == 1
    assert "Keras 3's fit does not work here. Set TF_USE_LEGACY_KERAS=1 for all tasks." in job.log


@needs_fashion_mnist
def test_keras_multi_worker_does_not_go_on_from_different_steps(launch):
    """Where train_dir is not shared the chief alone finds its checkpoint, would end first, and the others wait for it."""
    script = [
        sys.executable,
        "-c",
        IN_ITS_DIRECTORY,
        str(EXAMPLES / "keras_multi_worker.py"),
        "--save_steps=10",
    ]
    alone = launch("--num_workers=1", "--", *script, "--steps=10")
    assert alone.wait(TRAIN_SECS) == 0, alone.tail()
    job = launch("--num_workers=2", "--", *script, "--steps=20")
    assert job.wait(TRAIN_SECS) == 1, job.tail()
    assert "worker:0 restored step 10" in job.log and "worker:1 restored" not in job.log
    assert "--train_dir=runs/multi_worker is not one directory for all workers. Share one." in job.log


@needs_fashion_mnist
def test_keras_parameter_server(launch):
    script = [str(EXAMPLES / "keras_parameter_server.py"), "--steps=200", "--train_dir=train"]
    job = launch("--chief", "--num_ps=1", "--num_workers=2", "--", sys.executable, *script)
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert accuracy(job, "chief:0 200 steps") > 0.6


def test_keras_mobilenet(launch, tmp_path):
    images = pathlib.Path(STAMPS)
    if not images.is_dir():
        images = tmp_path / "crops"
        make_crops(images)
    script = [str(EXAMPLES / "keras_mobilenet.py"), f"--images={images}", "--train_dir=train"]
    script += ["--steps=60", "--save_steps=20", "--batch_size=16"]
    job = launch("--num_workers=2", "--", sys.executable, *script)
    assert job.wait(LARGE_GRAPH_SECS) == 0, job.tail()
    losses = [
        re.findall(rf"(?m)^{name} step [246]0/60, mean loss ([0-9.]+), saved$", job.log)
        for name in ("worker:0", "worker:1")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 3, job.tail()  # both tell that of all pictures
    assert float(losses[0][-1]) < 0.9 * float(losses[0][0])
    assert 0 <= accuracy(job, "worker:0 2 workers, 60 steps: loss [0-9.]+") <= 1
    assert "ckpt-60" in (tmp_path / "train" / "checkpoint").read_text()


def test_keras_mobilenet_without_pictures(launch, tmp_path):
    script = [str(EXAMPLES / "keras_mobilenet.py"), f"--images={tmp_path}"]
    job = launch("--num_workers=1", "--", sys.executable, *script)
    assert job.wait(TRAIN_SECS) == 1
    assert f"worker:0 failed (status 1): --images={tmp_path} has 0 folders with pictures in them" in job.log
    assert "Traceback" not in job.log


def accuracy(job, head):
    match = re.search(rf"(?m)^{head}[:,] accuracy ([0-9.]+)$", job.log)
    assert match, job.tail()
    return float(match[1])
