"""The launcher's decisions, without processes of ps_train; the processes are in tests/cluster."""

import errno
import json
import os
import re
import signal
import time

import pytest

from ps_train import follower as follower_lib
from ps_train import process
from ps_train.cluster import Cluster, TaskId
from ps_train.command_lines import evaluate, go_on, same_on_hosts
from ps_train.config import Params, TrainConfig
from ps_train.errors import UsageError
from ps_train.follower import Follower
from ps_train.launcher import LocalCluster, Roles, run_local
from ps_train.local_config import fill_in, log_path, report_path
from ps_train.progress import Row
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


def test_command_lines():
    config = TrainConfig(
        model="m.py", model_params=Params(units=3), train_dir="a b", log_dir="l", evaluate=True
    )
    hosts = "--ps_hosts=PS0:2222,PS1:2222 --worker_hosts=WORKER0:2222 --model=m.py --model_params=units=3"
    assert same_on_hosts(config, 2, 1) == [
        f"python -m ps_train --job_name={job} --task_index={index} {hosts} --train_dir=TRAIN_DIR"
        for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
    ]
    assert go_on(config, 2, 2, 500) == (
        "python -m ps_train --num_ps=2 --model=m.py --model_params=units=3 --train_steps=500 '--train_dir=a b' "
        "--log_dir=l --evaluate=true"
    )
    assert evaluate(config) == (
        "python -m ps_train eval --model=m.py --model_params=units=3 '--train_dir=a b'"
    )


class FakeTask:
    """A TaskProcess as the launcher sees it; `sent` are the signals that it got."""

    def __init__(self, name):
        self.name, self.log_path = name, f"logs/{name}.log"
        self.status, self.ended_by, self.line, self.sent = None, None, "", []

    def poll(self):
        return self.status

    def last_line(self):
        return self.line

    def send(self, number):
        self.sent.append(number)

    def terminate(self):
        self.send(signal.SIGTERM)

    def kill(self):
        self.send(signal.SIGKILL)


class FakeScreen:
    """Keeps what is complained of."""

    def __init__(self):
        self.complaints = []

    def show(self, snapshot, is_urgent=False):
        pass

    def complain(self, text):
        self.complaints += text.splitlines()


@pytest.fixture
def local(tmp_path):
    """A cluster of one ps and two workers, of which nothing runs; `end` notes a task's end and its report."""
    config = TrainConfig(train_dir=str(tmp_path), log_dir=str(tmp_path), shutdown_timeout_secs=30.0)
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2,127.0.0.1:3")
    local = LocalCluster(config, cluster, Roles(pytest.fail, pytest.fail, pytest.fail), FakeScreen(), None)
    local._tasks = {task: FakeTask(str(task)) for task in cluster.tasks}

    def end(task, status, reason=None, line="", ended_by=None):
        running = local._tasks[task]
        running.status, running.line, running.ended_by = status, line, ended_by
        local._ended.append(task)
        if reason is not None:
            (tmp_path / f"{task.job}{task.index}.json").write_text(json.dumps({"reason": reason}))

    local.end = end
    local.sent = lambda: [running.sent for running in local._tasks.values()]
    return local


def test_the_first_that_failed_is_to_blame(local):
    local.end(CHIEF, 0, "done")
    assert local._find_failure(0.0) is None
    local.end(WORKER, 138, "Lost ps:0.")
    local.end(PS, 1, "other")
    assert str(local._find_failure(0.0)) == (
        "worker:1 failed (status 138): Lost ps:0.\nIts log: logs/worker:1.log"
    )


def test_one_that_ended_because_of_another_points_to_it(local):
    local.end(PS, 1, "worker:1 failed: no attribute")
    assert local._find_failure(0.0) is None  # worker:1 is about to end
    local.end(WORKER, 1, "no attribute")
    assert local._find_failure(0.1)[:3] == ("worker:1", 1, "no attribute")


def test_one_that_does_not_end_is_not_waited_for(local):
    local.end(PS, 1, "worker:1 failed: no attribute")
    assert local._find_failure(0.0) is None
    assert local._find_failure(10.0)[:3] == ("ps:0", 1, "worker:1 failed: no attribute")


@pytest.mark.parametrize(
    ("status", "ended_by", "line", "reason"),
    [
        (137, signal.SIGKILL, "step 3", "ended by SIGKILL, which may be the system's, for want of memory"),
        (139, signal.SIGSEGV, "", "ended by SIGSEGV"),
        (138, signal.SIGUSR1, "", "ended by SIGUSR1"),
        (168, 40, "", "ended by signal 40"),
        (138, None, "Lost ps:0.", "Lost ps:0."),
        (1, None, "ImportError: no", "ImportError: no"),
        (3, None, "", "no output"),
    ],
)
def test_without_a_report_the_signal_or_the_log_tells(local, status, ended_by, line, reason):
    local.end(WORKER, status, line=line, ended_by=ended_by)
    assert local._find_failure(0.0).reason == reason


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
    assert local._signal == signal.SIGINT and local._failure is None


def test_tasks_get_a_sigterm_for_a_sighup_which_they_do_not_handle(local):
    local._on_signal(signal.SIGHUP, 100.0)
    assert local.sent() == [[], [signal.SIGTERM], [signal.SIGTERM]]
    assert local._signal == signal.SIGHUP


def test_a_second_signal_kills_and_one_within_half_a_second_is_none(local):
    local._on_signal(signal.SIGTERM, 100.0)
    local._on_signal(signal.SIGINT, 100.4)
    assert local.sent() == [[], [signal.SIGTERM], [signal.SIGTERM]]
    local._on_signal(signal.SIGINT, 100.5)
    assert all(sent[-1] == signal.SIGKILL for sent in local.sent())
    assert local._signal == signal.SIGTERM


def test_a_signal_after_a_failure_is_a_second_one(local):
    local.end(WORKER, 1, "no attribute")
    local._steer(100.0)
    local._on_signal(signal.SIGTERM, 100.1)
    assert local.sent()[1] == [signal.SIGTERM]
    local._on_signal(signal.SIGTERM, 101.0)
    assert local.sent()[1] == [signal.SIGTERM, signal.SIGKILL]
    assert local._signal is None


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
        "worker:1 failed (status 1): no attribute", "Its log: logs/worker:1.log",
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
    assert local.sent()[0] == [] and local._failure is None
    local._steer(131.0)
    assert local.sent()[0] == [signal.SIGKILL]
    assert local._failure[:3] == ("ps:0", 1, "did not end within 30 s after the last worker")


def test_a_ps_that_fails_last_counts(local):
    local.end(WORKER, 0)
    local.end(CHIEF, 0)
    local._steer(100.0)
    local.end(PS, 138, "gone")
    local._steer(101.0)
    assert local._failure[:3] == ("ps:0", 138, "gone")


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


def test_the_report_of_a_task_that_has_ended_is_read_once(tmp_path, monkeypatch):
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2")
    follower = Follower(cluster, TrainConfig(log_dir=str(tmp_path)))
    read = []
    monkeypatch.setattr(follower_lib, "read_report", lambda path: read.append(path) or {"global_step": 3})
    for _ in range(3):
        assert follower.snapshot({PS: None, CHIEF: 0}).step == 3
    assert read == [f"{tmp_path}/worker0.json"]


def test_what_is_shown_of_the_tasks(tmp_path):
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2,127.0.0.1:3")
    follower = Follower(cluster, TrainConfig(train_steps=50, log_dir=str(tmp_path)))
    running = dict.fromkeys(cluster.tasks)
    assert follower.snapshot(running) == (
        tuple(Row(str(task), "starting") for task in cluster.tasks), None, 50, None, None, "starting the tasks",
    )  # fmt: skip
    follower.records = {
        "ps:0": {"state": "serving"},
        "worker:0": {"state": "training", "step": 12, "local_steps": 8, "local_rate": 4.0},
        "worker:1": {"state": "left", "step": 11, "local_steps": 4, "local_rate": 9.0, "loss": 0.5},
    }
    (tmp_path / "worker1.json").write_text('{"global_step": 14}')
    rows, step, target, rate, loss, _ = follower.snapshot({**running, WORKER: 0})
    assert rows == (Row("ps:0", "serving"), Row("worker:0", "training", 8, 4.0), Row("worker:1", "done", 4))
    assert (step, target, rate, loss) == (14, 50, None, 0.5)
    assert follower.snapshot({PS: 1, CHIEF: 143, WORKER: 137}).rows[2].state == "status 137"


def test_last_words(tmp_path):
    asked = TrainConfig(model="m.py", train_dir=str(tmp_path))
    summary = Summary(asked, fill_in(asked), 1, 1)
    report = {"global_step": 7, "train_secs": 1.26}
    assert summary.trained(report) == "Trained to step 7 in 1.3 s, async, on 1 worker."
    assert summary.saved() == "No checkpoint was saved."
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
    hosts = "--ps_hosts=PS0:2222 --worker_hosts=WORKER0:2222 --model=m.py --train_dir=TRAIN_DIR"
    assert summary.what_next().splitlines() == [
        f"Checkpoints: {tmp_path} (newest: {tmp_path}/model.ckpt-7)",
        f"Logs:        {tmp_path}/logs",
        "",
        "The same on real hosts, a line for each; fill in their names and a directory for checkpoints:",
        f"  python -m ps_train --job_name=ps --task_index=0 {hosts}",
        f"  python -m ps_train --job_name=worker --task_index=0 {hosts}",
        "",
        "To evaluate:",
        f"  python -m ps_train eval --model=m.py --train_dir={tmp_path}",
    ]
    many = Summary(asked, fill_in(TrainConfig(train_dir="t")), 2, 40)
    lines = many.what_next().splitlines()
    assert lines[10] == "  ... and 36 more, to --job_name=worker --task_index=39"
    assert lines[13].startswith(
        "  python -m ps_train --num_ps=2 --num_workers=40 --model=m.py --train_steps=2000 "
    )
