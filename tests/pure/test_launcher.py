"""The launcher's decisions, without processes of ps_train; the processes are in tests/cluster."""

import json
import re
import signal

import pytest

from ps_train import launcher
from ps_train.cluster import Cluster, TaskId
from ps_train.command_lines import evaluate, go_on, same_on_hosts
from ps_train.config import Params, TrainConfig
from ps_train.errors import UsageError
from ps_train.launcher import LocalCluster, Roles, fill_in, report_path, run_local

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
    assert fill_in(TrainConfig(train_dir="gs://bucket/run")).log_dir == "run/logs"


def test_the_chief_reports_where_the_user_says_and_the_others_beside_it():
    config = TrainConfig(report_file="out/r.json", log_dir="logs")
    assert report_path(config, CHIEF, is_chief=True) == "out/r.json"
    assert report_path(config, WORKER) == "out/r.worker1.json"
    assert report_path(TrainConfig(log_dir="logs"), PS) == "logs/ps0.json"


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


class Ended:
    """A TaskProcess as the launcher sees it."""

    def __init__(self, name, status=None, line=""):
        self.name, self.status, self.line, self.log_path = name, status, line, f"logs/{name}.log"

    def poll(self):
        return self.status

    def last_line(self):
        return self.line


@pytest.fixture
def local(tmp_path):
    """A cluster of one ps and two workers, of which nothing runs; `end` notes a task's end and its report."""
    config = TrainConfig(train_dir=str(tmp_path), log_dir=str(tmp_path))
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2,127.0.0.1:3")
    local = LocalCluster(config, config, cluster, Roles(pytest.fail, pytest.fail, pytest.fail), None)
    local._tasks = {task: Ended(str(task)) for task in cluster.tasks}

    def end(task, status, reason=None, line=""):
        local._tasks[task] = Ended(str(task), status, line)
        local._ended.append(task)
        if reason is not None:
            (tmp_path / f"{task.job}{task.index}.json").write_text(json.dumps({"reason": reason}))

    local.end = end
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
    ("status", "line", "reason"),
    [
        (128 + signal.SIGKILL, "step 3", "ended by SIGKILL, which may be the system's, for want of memory"),
        (128 + signal.SIGSEGV, "", "ended by SIGSEGV"),
        (1, "ImportError: no", "ImportError: no"),
        (3, "", "no output"),
    ],
)
def test_without_a_report_the_status_or_the_log_tells(local, status, line, reason):
    local.end(WORKER, status, line=line)
    assert local._find_failure(0.0).reason == reason


def test_the_picture_of_the_tasks(local):
    local._watch.records = {
        "ps:0": {"state": "serving"},
        "worker:0": {"state": "training", "step": 12, "local_steps": 8, "local_rate": 4.0, "loss": 0.5},
    }
    local.end(WORKER, 143, "stopped")
    snapshot = local._snapshot()
    assert [row.state for row in snapshot.rows] == ["serving", "training", "stopped"]
    assert (snapshot.step, snapshot.loss, snapshot.target) == (12, 0.5, None)
    assert launcher.Snapshot is type(snapshot)
