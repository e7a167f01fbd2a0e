"""The launcher's decisions, without processes of ps_train; the processes are in tests/cluster."""

import dataclasses
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from ps_train import command_lines, process
from ps_train.cluster import Cluster, TaskId
from ps_train.command_lines import evaluate, go_on, on_a_host
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.launcher import LocalCluster, Roles, run_local
from ps_train.local_config import fill_in, log_path, report_path
from ps_train.params import Params
from ps_train.picture import Row
from ps_train.summary import Summary

PS, CHIEF, WORKER = TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)


def test_the_defaults_of_a_local_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled = fill_in(TrainConfig(), now=0.0)
    assert re.fullmatch(r"ps_train_runs/digits-19(70|69)\d{4}-\d{6}", filled.train_dir)
    assert filled.log_dir == f"{filled.train_dir}/logs"
    assert (filled.train_steps, filled.evaluate) == (1000, True)
    (tmp_path / filled.train_dir).mkdir(parents=True)
    assert fill_in(TrainConfig(), now=0.0).train_dir == f"{filled.train_dir}-2"


def test_what_the_user_says_stays():
    config = TrainConfig(
        model="some where/mine.py", train_dir="d", log_dir="l", train_steps=None, evaluate=True
    )
    assert fill_in(config) == config
    filled = fill_in(TrainConfig(model="my.models.cnn"))
    assert filled.train_dir.startswith("ps_train_runs/cnn-")
    assert (filled.train_steps, filled.evaluate) == (None, False)
    assert fill_in(TrainConfig(model="a/mine.py")).train_dir.startswith("ps_train_runs/mine-")


def test_the_chief_reports_where_the_user_says_and_the_others_beside_it():
    config = TrainConfig(report_file="out/r.json", log_dir="logs")
    assert report_path(config, CHIEF, is_chief=True) == "out/r.json"
    assert report_path(config, WORKER) == "out/r.worker1.json"
    assert report_path(TrainConfig(log_dir="logs"), PS) == "logs/ps0.json"
    assert log_path(config, WORKER) == "logs/worker1.log"


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    config = TrainConfig(train_dir=str(tmp_path / "file" / "t"))
    with pytest.raises(UsageError, match=r"^The directory .*file/t cannot be made: Not a directory. Choose "):
        run_local(config, 1, 1, Roles(pytest.fail, pytest.fail, pytest.fail))


@pytest.fixture
def python_on_path(tmp_path, monkeypatch):
    """This process's interpreter is the `python` of a shell."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))


def test_the_interpreter_shown_is_the_one_that_has_ps_train(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in (".venv/bin", "system/bin", "elsewhere")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
    (folders[0] / "python3").symlink_to("python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folders[0] / "python"))
    monkeypatch.setenv("PATH", str(folders[1]))
    assert command_lines.python() == ".venv/bin/python", (
        "the same file by its link, but without the environment"
    )
    monkeypatch.chdir(folders[2])
    assert command_lines.python() == str(folders[0] / "python")
    monkeypatch.setenv("PATH", f"{folders[0]}:{folders[1]}")
    assert command_lines.python() == "python"
    (folders[0] / "python").unlink()
    (folders[0] / "python3").unlink()
    (folders[0] / "python3").symlink_to(folders[1] / "python")
    monkeypatch.setattr(sys, "executable", str(folders[0] / "python3"))
    assert command_lines.python() == "python3"
    monkeypatch.setattr(sys, "executable", "")
    assert command_lines.python() == "python"


def test_command_lines_for_this_host_name_its_interpreter(tmp_path, monkeypatch):
    monkeypatch.setattr(command_lines, "python", lambda: ".venv/bin/python")
    assert go_on(TrainConfig(), 1, 2, None) == ".venv/bin/python -m ps_train"
    assert evaluate(TrainConfig()) == ".venv/bin/python -m ps_train eval"
    assert on_a_host(TrainConfig(), 1, 1).startswith("python -m ps_train ")


def test_command_lines(python_on_path):
    config = TrainConfig(
        model="m.py", model_params=Params(units=3), train_dir="a b", log_dir="l", evaluate=True,
        peer_timeout_secs=20.0, log_every_secs=0.5, report_file="r.json",
    )  # fmt: skip
    hosts = "--ps_hosts=PS0:2222,PS1:2222 --worker_hosts=WORKER0:2222 --model=m.py --model_params=units=3"
    assert on_a_host(config, 2, 1) == (
        f"python -m ps_train --job_name=ps --task_index=0 {hosts} --train_dir=TRAIN_DIR --peer_timeout_secs=20 "
        "--log_every_secs=0.5"
    )
    assert go_on(config, 2, 2, 500) == (
        "python -m ps_train --num_ps=2 --model=m.py --model_params=units=3 --train_steps=500 '--train_dir=a b' "
        "--peer_timeout_secs=20 --report_file=r.json --log_dir=l --log_every_secs=0.5 --evaluate=true"
    )
    assert evaluate(config) == (
        "python -m ps_train eval --model=m.py --model_params=units=3 '--train_dir=a b'"
    )


class FakeTask:
    """A TaskProcess as the launcher sees it; `sent` are the signals that it got."""

    def __init__(self, name):
        self.name, self.log_path = name, f"logs/{name}.log"
        self.status, self.ended_by, self.line, self.sent = None, None, "", []
        self.traceback, self.lines = False, []

    def poll(self):
        return self.status

    def new_lines(self):
        lines, self.lines = self.lines, []
        return lines

    def has_traceback(self):
        return self.traceback

    def last_line(self):
        return self.line

    def send(self, number):
        self.sent.append(number)

    def terminate(self):
        self.send(signal.SIGTERM)

    def kill(self):
        self.send(signal.SIGKILL)


class FakeScreen:
    """Keeps what is said and complained of."""

    def __init__(self):
        self.complaints, self.said = [], []

    def show(self, snapshot, is_urgent=False):
        pass

    def complain(self, text, goes_on=False):
        self.complaints += text.splitlines()

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def local(tmp_path):
    """A cluster of one ps and two workers, of which nothing runs."""
    return make_local(tmp_path)


def make_local(tmp_path, num_workers=2, **settings):
    """A LocalCluster without processes; its `end` notes a task's end and its report."""
    config = TrainConfig(
        train_dir=str(tmp_path), log_dir=str(tmp_path), shutdown_timeout_secs=30.0, **settings
    )
    workers = ",".join(f"127.0.0.1:{number}" for number in range(2, 2 + num_workers))
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker=workers)
    roles = Roles(pytest.fail, pytest.fail, pytest.fail)
    local = LocalCluster(config, cluster, roles, FakeScreen(), Summary(config, config, 1, num_workers))
    local._tasks = {task: FakeTask(str(task)) for task in cluster.tasks}

    def end(task, status, reason=None, line="", ended_by=None):
        running = local._tasks[task]
        running.status, running.line, running.ended_by = status, line, ended_by
        if reason is not None:
            (tmp_path / f"{task.job}{task.index}.json").write_text(json.dumps({"reason": reason}))
        local._note_end(local._end_of(task))

    local.end = end
    local.sent = lambda: [running.sent for running in local._tasks.values()]
    return local


KILLED = {"status": 137, "ended_by": signal.SIGKILL}


def test_what_tasks_warn_of_is_shown_once_a_minute_until_they_are_to_end(local):
    def tell(task, now, *lines):
        local._tasks[task].lines += [f"00:00:00 {task} {line}" for line in lines]
        local._tell_warnings(now)

    tell(CHIEF, 0.0, "listening at h:1", "warning: no 'a'", "step 7, loss 0.5")
    local._tasks[CHIEF].lines += ["warning: a library's"]
    tell(WORKER, 1.0, "warning: no 'a'", "warning: step dropped (1 so far)")
    tell(
        WORKER,
        30.0,
        "warning: step dropped (12 so far)",
        "error: step 9 is not saved: disk full; next try in 10 s",
    )
    tell(PS, 62.0, "warning: this process stood still for 9 s", "error: no worker has come (status 138)")
    tell(WORKER, 63.0, "warning: step dropped (99 so far)")
    local._on_signal(signal.SIGTERM, 64.0)
    tell(WORKER, 65.0, "warning: worker:0 has ended")
    assert local._screen.complaints == [
        "worker:0 warning: no 'a'",
        "worker:1 warning: step dropped (1 so far)",
        "worker:1 error: step 9 is not saved: disk full; next try in 10 s",
        "ps:0 warning: this process stood still for 9 s",
        "worker:1 warning: step dropped (99 so far)",
    ]


@pytest.mark.parametrize(
    "lost, replicas, expected",
    [
        ([1], None, ["Without it an update could take at most 2 of 3 gradients."]),
        ([1, 2], None, ["Without them an update could take at most 1 of 3 gradients."]),
        ([1], 2, []),  # a backup worker
        ([1, 2], 2, ["Without them an update could take at most 1 of 2 gradients."]),
    ],
)
def test_what_an_update_takes_without_lost_workers_is_said(tmp_path, lost, replicas, expected):
    settings = {"update": "sync", "on_worker_loss": "continue", "replicas_to_aggregate": replicas}
    local = make_local(tmp_path, num_workers=3, **settings)
    for index in lost:
        local.end(TaskId("worker", index), **KILLED)
    local._say_trained()
    assert [line for line in local._screen.said if "was lost" not in line][1:] == expected


def test_what_is_said_of_a_lost_worker(local):
    local._follower.records["worker:1"] = {"state": "training", "local_steps": 41}
    local.end(WORKER, **KILLED)
    reason = "ended by SIGKILL, which may be the system's, for want of memory"
    assert local._screen.complaints == [f"worker:1 is lost: {reason}. The job goes on without it."]
    local.end(CHIEF, 0)
    local._steer(100.0)
    local._say_trained()
    assert local._screen.said[1:] == [
        f"worker:1 was lost after about 41 steps of its own: {reason}. Its log: logs/worker:1.log"
    ]
    statuses = {task: running.status for task, running in local._tasks.items()}
    assert local._follower.snapshot(statuses).rows[2] == Row("worker:1", "ended by SIGKILL", 41)


@pytest.mark.parametrize(
    ("traceback", "settings", "note"),
    [
        (False, {}, "; --debug adds the traceback"),
        (False, {"debug": True}, ""),
        (True, {"debug": True}, ", with a traceback"),
        (True, {}, ", with a traceback"),
    ],
)
def test_where_the_traceback_of_a_model_is(tmp_path, traceback, settings, note):
    local = make_local(tmp_path, **settings)
    local._tasks[WORKER].traceback = traceback
    local.end(WORKER, 1, "model_fn in m.py:4 raised KeyError: 'unitz'")
    assert local._policy.find_failure(0.0).log == f"logs/worker:1.log{note}"
    assert local._about_log(local._tasks[PS]) == "logs/ps:0.log", "no model there"


def test_at_a_signal_the_workers_are_ended_and_then_the_ps(local):
    local._on_signal(signal.SIGINT, 100.0)
    local._steer(100.0)
    assert local.sent() == [[], [signal.SIGINT], [signal.SIGINT]]
    local.end(WORKER, 130)
    local._steer(101.0)
    assert local.sent()[0] == []
    local.end(CHIEF, 130)
    for tick in range(20):
        local._steer(102.0 + tick / 10)
    assert local.sent()[0] == [signal.SIGTERM], "a second one would end it at once"
    assert local._ending.signal == signal.SIGINT and local._ending.failure is None


def test_tasks_get_a_sigterm_for_a_sighup_which_they_do_not_handle(local):
    local._on_signal(signal.SIGHUP, 100.0)
    assert local.sent() == [[], [signal.SIGTERM], [signal.SIGTERM]]
    assert local._ending.signal == signal.SIGHUP


def test_a_second_signal_kills_and_one_within_half_a_second_is_none(local):
    local._on_signal(signal.SIGTERM, 100.0)
    local._on_signal(signal.SIGINT, 100.4)
    assert local.sent() == [[], [signal.SIGTERM], [signal.SIGTERM]]
    local._on_signal(signal.SIGINT, 100.5)
    assert all(sent[-1] == signal.SIGKILL for sent in local.sent())
    assert local._ending.signal == signal.SIGTERM


def test_a_signal_after_a_failure_leaves_the_chief_its_time_to_save_and_a_second_one_kills(local):
    local.end(WORKER, 1, "no attribute")
    local._steer(100.0)
    local._on_signal(signal.SIGTERM, 105.0)
    local._on_signal(signal.SIGTERM, 105.4)
    assert local.sent()[1] == [signal.SIGTERM]
    local._on_signal(signal.SIGTERM, 106.0)
    assert local.sent()[1] == [signal.SIGTERM, signal.SIGKILL]
    assert local._ending.signal is None


def test_the_bound_kills(local):
    local._on_signal(signal.SIGTERM, 100.0)
    for running in local._tasks.values():
        running.sent.clear()
    local._steer(129.0)
    assert local.sent() == [[], [], []]
    local._steer(131.0)
    assert local.sent() == [[signal.SIGKILL]] * 3


def test_a_failure_is_told_and_ends_the_others(local):
    local.end(WORKER, 1, "no attribute")
    local._steer(time.monotonic())
    assert local._screen.complaints == [
        "worker:1 failed (status 1): no attribute", "Its log: logs/worker:1.log; --debug adds the traceback",
    ]  # fmt: skip
    assert local.sent()[:2] == [[], [signal.SIGTERM]]
    local.end(CHIEF, 143)
    local._steer(time.monotonic())
    assert local.sent()[0] == [signal.SIGTERM]
    assert len(local._screen.complaints) == 2


def test_after_the_workers_a_ps_ends_by_itself(local):
    local.end(WORKER, 0)
    local.end(CHIEF, 0)
    local._steer(100.0)
    local._steer(129.0)
    assert local.sent()[0] == [] and local._ending.failure is None
    local._steer(131.0)
    assert local.sent()[0] == [signal.SIGKILL]
    assert local._ending.failure[:3] == ("ps:0", 1, "did not end within 30 s after the last worker")


def test_a_ps_that_fails_last_counts(local):
    local.end(WORKER, 0)
    local.end(CHIEF, 0)
    local._steer(100.0)
    local.end(PS, 138, "gone")
    local._steer(101.0)
    assert local._ending.failure[:3] == ("ps:0", 138, "gone")


def test_a_job_that_is_finished_already_is_reported_by_all(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-60"\n')
    (tmp_path / "model.ckpt-60.index").write_text("")
    for name in ("r.json", "r.worker1.json"):
        (tmp_path / name).write_text('{"exit_status": 143}')
    config = TrainConfig(
        train_dir=str(tmp_path), log_dir=str(tmp_path), train_steps=50, report_file=str(tmp_path / "r.json")
    )
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2,127.0.0.1:3")
    roles = Roles(pytest.fail, pytest.fail, pytest.fail)
    LocalCluster(config, cluster, roles, FakeScreen(), None).start()
    for name, is_chief in (("r.json", True), ("r.worker1.json", False), ("r.ps0.json", False)):
        report = json.loads((tmp_path / name).read_text())
        assert (report["outcome"], report["exit_status"], report["is_chief"]) == ("done", 0, is_chief)
        assert (report["global_step"], report["local_steps"]) == (60, 0)
        assert report["reason"] == (
            f"{tmp_path}/model.ckpt-60 has reached the target of 50 steps: nothing to do"
        )


def run_nothing(folder, **settings):
    config = TrainConfig(train_dir=str(folder / "t"), log_dir=str(folder / "l"), evaluate=False, **settings)
    with pytest.raises(UsageError) as raised:
        run_local(config, 1, 1, Roles(lambda: None, pytest.fail, pytest.fail))
    return str(raised.value)


def test_a_log_that_cannot_be_written_is_told_in_a_line(tmp_path):
    (tmp_path / "l" / "ps0.log").mkdir(parents=True)
    assert run_nothing(tmp_path) == (
        f"The log {tmp_path}/l/ps0.log of ps:0 cannot be written: Is a directory. Choose another --log_dir."
    )


def test_a_report_that_cannot_be_written_is_told_before_the_training(tmp_path):
    (tmp_path / "r.ps0.json").mkdir()
    assert run_nothing(tmp_path, report_file=str(tmp_path / "r.json")) == (
        f"The report {tmp_path}/r.ps0.json cannot be written: Is a directory. Choose another --report_file."
    )
    (tmp_path / "l" / "ps0.json").mkdir()
    assert run_nothing(tmp_path).endswith(
        "/l/ps0.json cannot be written: Is a directory. Choose another --log_dir."
    )


def test_a_host_that_is_full_is_told_in_a_line(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(process, "start", refuse)
    assert run_nothing(tmp_path) == (
        "No process can be started for ps:0: Resource temporarily unavailable. Expected this host to have room for one "
        "more. Check its memory and the limit of processes (ulimit -u)."
    )


def test_last_words(tmp_path, python_on_path):
    asked = TrainConfig(model="m.py", train_dir=str(tmp_path))
    summary = Summary(asked, fill_in(asked), 1, 1)
    report = {"global_step": 7, "train_secs": 1.26}
    assert summary.trained(report) == "Trained to step 7 in 1.3 s, async, on 1 worker."
    assert summary.saved() == "No checkpoint was saved."
    short = Summary(asked, TrainConfig(train_dir=str(tmp_path), train_steps=9), 1, 1)
    used_up = {**report, "reason": "global step 7: data used up after 4 local steps"}
    assert short.trained(used_up) == (
        "Trained to step 7 of 9 in 1.3 s, async, on 1 worker: the data is used up. With dataset.repeat() input_fn gives it "
        "again and again."
    )
    asked_to = {**report, "reason": "global step 7: a hook asked to stop"}
    assert short.trained(asked_to).endswith("on 1 worker: a hook asked to stop.")
    assert "To train on" in short.what_next()
    assert summary.evaluated({"metrics": {"loss": 0.5, "accuracy": 0.98765}}) == (
        "Held-out data: accuracy 0.9877, loss 0.5000"
    )
    assert summary.evaluated({"metrics": {"loss": None}}) == "Held-out data: loss nan"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    (tmp_path / "model.ckpt-7.index").write_text("")
    assert summary.saved().splitlines() == [
        f"Checkpoint: {tmp_path}/model.ckpt-7",
        f"To go on from there: python -m ps_train --num_workers=1 --model=m.py --train_dir={tmp_path}",
    ]
    assert summary.saved(7, can_go_on=False) == f"Checkpoint: {tmp_path}/model.ckpt-7"
    assert (
        summary.saved(8, can_go_on=False) == f"Checkpoint: {tmp_path}/model.ckpt-7 (1 step after it is lost)"
    )
    recorded = summary._replace(config=dataclasses.replace(summary.config, record="r"))
    assert recorded.saved(can_go_on=False).splitlines()[1:] == [
        "Which push it began with: python -m ps_train replay --record=r"
    ]
    assert "To train on" not in short.what_next(), "the data is used up"
    hosts = "--ps_hosts=PS0:2222 --worker_hosts=WORKER0:2222 --model=m.py --train_dir=TRAIN_DIR"
    assert summary.what_next().splitlines() == [
        f"Checkpoint:  {tmp_path}/model.ckpt-7",
        f"Logs:        {tmp_path}/logs",
        f"To evaluate: python -m ps_train eval --model=m.py --train_dir={tmp_path}",
        "On real hosts, for ps:0, with names and directory to fill in; for worker:0 change job_name and task_index:",
        f"  python -m ps_train --job_name=ps --task_index=0 {hosts}",
    ]
    many = Summary(asked, fill_in(TrainConfig(train_dir="t")), 3, 40)
    lines = many.what_next().splitlines()
    assert lines[2].startswith(
        "To train on: python -m ps_train --num_ps=3 --num_workers=40 --model=m.py --train_steps=2000 "
    )
    assert "; for ps:1-2 and worker:0-39 change job_name and task_index:" in lines[4]
    past = Summary(asked, TrainConfig(train_dir=str(tmp_path), train_steps=2), 1, 1)
    assert "--train_steps=14 " in past.what_next(), "twice the step that it is at"
    again = Summary(asked, TrainConfig(train_dir="t", train_steps=1), 1, 1)
    assert again.nothing_left("t/model.ckpt-1").endswith("/model.ckpt-1 has reached the target of 1 step.")


@pytest.mark.parametrize(
    ("status", "ended_by", "is_shown"), [(1, None, False), (138, None, True), (137, signal.SIGKILL, True)]
)
def test_the_same_again_is_proposed_unless_it_would_fail_again(tmp_path, status, ended_by, is_shown):
    local = make_local(tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    (tmp_path / "model.ckpt-7.index").write_text("")
    local.end(CHIEF, status, ended_by=ended_by)
    local._steer(time.monotonic())
    for task in (PS, WORKER):
        local.end(task, 0)
    assert local.run() == status
    assert f"Checkpoint: {tmp_path}/model.ckpt-7" in local._screen.complaints
    assert any("To go on" in line for line in local._screen.complaints) == is_shown


STOPPED_IMPORT = """\
import os
from ps_train.config import TrainConfig
from ps_train.launcher import Roles, run_local

def prepare():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow's lines are held back
    try:
        os.kill(os.getpid(), {})
    except BaseException:
        print("swallowed, as some modules do")

run_local(TrainConfig(), 1, 1, Roles(prepare, None, None))
"""


@pytest.mark.skipif(not process.can_fork(), reason="the launcher imports first only to fork")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_is_one_line(tmp_path, number):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_IMPORT.format(int(number))], capture_output=True, text=True, timeout=20,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (
        128 + number,
        "importing TensorFlow, which takes some seconds\n",
        f"ps_train: Stopped by {number.name} before the training began.\n",
    )
