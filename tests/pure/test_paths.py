"""Places that cannot be written are refused up front."""

import os
import stat

import pytest

from ps_train import paths
from ps_train.commands import eval, train
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.flags import parse

HOSTS = ("--ps_hosts=p:1", "--worker_hosts=w:1,v:1")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current directory, with a file and a directory that is not writable, also for root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o555)

    def access(path, mode):
        return bool(os.stat(path).st_mode & stat.S_IWUSR)

    monkeypatch.setattr(os, "access", access)
    return tmp_path


def refused(make):
    with pytest.raises(UsageError) as caught:
        make()
    return str(caught.value).splitlines()


def plan(*args):
    return train.make_plan(parse(args)[0], {})


def test_what_can_be_made_is_no_problem(here):
    for place in ("new/and/newer", "", None, str(here), "gs://bucket/x"):
        config = TrainConfig(train_dir=place, log_dir=place, report_file=f"{place}/r.json")
        assert paths.problems(config, is_local=True) == [], place
    assert os.listdir(here / "locked") == [] and not (here / "new").exists()


def test_files_and_directories_in_each_others_place(here):
    config = TrainConfig(train_dir="file", log_dir="file", report_file="locked")
    assert paths.problems(config, is_local=True) == [
        "--train_dir=file is a file. Expected a directory.",
        "--log_dir=file is a file. Expected a directory.",
        "--report_file=locked is a directory. Expected a file.",
    ]
    config = TrainConfig(train_dir="file/a", log_dir="file/a/b", report_file="file/r.json")
    assert paths.problems(config, is_local=True) == [
        "The directory file/a cannot be made: Not a directory. Choose another --train_dir.",
        "The directory file/a/b cannot be made: Not a directory. Choose another --log_dir.",
        "The directory file cannot be made: Not a directory. Choose another --report_file.",
    ]


def test_a_link_that_leads_nowhere(here):
    (here / "link").symlink_to("gone")
    assert paths.problems(TrainConfig(train_dir="link/a")) == [
        "The directory link/a cannot be made: Not a directory. Choose another --train_dir."
    ]


def test_what_is_not_writable(here):
    line = f"cannot be written: {here}/locked is not writable for this user. Choose another place, or change its permissions."
    config = TrainConfig(train_dir="locked", log_dir="locked/a", report_file="locked/r.json")
    assert paths.problems(config, is_local=True) == [
        f"--train_dir=locked {line}",
        f"--log_dir=locked/a {line}",
        f"--report_file=locked/r.json {line}",
    ]


def test_only_those_that_write_need_to(here):
    for task in ("--task_index=0", "--job_name=evaluator"):
        args = ["--job_name=worker", *HOSTS, task, "--train_dir=locked"]
        assert refused(lambda args=args: plan(*args))[0].startswith("--train_dir=locked cannot be written")
    assert refused(lambda: plan("--train_dir=locked", "--log_dir=file")) == [
        *refused(lambda: plan("--train_dir=locked")),
        "--log_dir=file is a file. Expected a directory.",
    ]
    assert plan("--job_name=worker", *HOSTS, "--task_index=1", "--train_dir=locked", "--log_dir=file")
    assert plan("--job_name=ps", *HOSTS, "--train_dir=locked")
    assert refused(lambda: plan("--job_name=ps", *HOSTS, "--train_dir=file")) == [
        "--train_dir=file is a file. Expected a directory."
    ]
    assert refused(lambda: eval.make_plan(parse(["--train_dir=locked"])[0]))[0].startswith(
        "--train_dir=locked cannot be written"
    )


@pytest.mark.parametrize(
    "task", [(), ("--job_name=ps", *HOSTS), ("--job_name=worker", "--task_index=1", *HOSTS)]
)
def test_a_record_is_written_by_each_task(task):
    assert refused(lambda: plan("--record=file", "--train_steps=9", *task)) == [
        "--record=file is a file. Expected a directory."
    ]
    (said,) = refused(lambda: plan("--record=locked/r", "--train_steps=9", *task))
    assert said.startswith("--record=locked/r cannot be written: ")
