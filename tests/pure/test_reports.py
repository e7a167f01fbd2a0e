"""The report file: its content for each end, and that there is never half of one."""

import io
import json
import os
import stat
import threading

import pytest

from ps_train import logs
from ps_train.cluster import TaskId
from ps_train.reports import Report

KEYS = (
    "job task is_chief outcome exit_status reason global_step local_steps examples train_secs steps_per_sec "
    "restored_from checkpoint"
).split()


@pytest.fixture
def report():
    return Report(TaskId("worker", 1), is_chief=True, global_step=200, local_steps=104, train_secs=4.0)


def test_content(report):
    values = report.as_dict(0)
    assert set(KEYS) <= set(values)
    assert (values["job"], values["task"], values["is_chief"]) == ("worker", 1, True)
    assert (values["global_step"], values["local_steps"], values["steps_per_sec"]) == (200, 104, 26.0)
    assert values["restored_from"] is None and values["checkpoint"] is None


@pytest.mark.parametrize(
    "status, outcome",
    [(0, "done"), (1, "failed"), (138, "failed"), (130, "stopped"), (143, "stopped"), (2, "failed")],
)
def test_outcome(report, status, outcome):
    values = report.as_dict(status)
    assert (values["outcome"], values["exit_status"]) == (outcome, status)


def test_a_given_reason_goes_before_the_kept_one(report):
    report.reason = "kept"
    assert report.as_dict(0)["reason"] == "kept"
    assert report.as_dict(1, "given")["reason"] == "given"
    assert report.as_dict(1, "")["reason"] == ""


def test_no_rate_before_the_first_step():
    assert Report(TaskId("ps", 0)).as_dict(0)["steps_per_sec"] is None


def test_write(tmp_path, report):
    path = tmp_path / "new" / "directory" / "r.json"
    report.write(str(path), 143, "stopped by SIGTERM")
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.as_dict(143, "stopped by SIGTERM")))
    assert os.listdir(path.parent) == ["r.json"]


def test_write_to_a_bare_name(tmp_path, monkeypatch, report):
    monkeypatch.chdir(tmp_path)
    report.write("r.json", 0)
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "done"


@pytest.mark.parametrize("path", [None, ""])
def test_no_path_no_file(tmp_path, monkeypatch, report, path):
    monkeypatch.chdir(tmp_path)
    report.write(path, 0)
    assert os.listdir(tmp_path) == []


def test_the_old_file_stays_when_writing_fails(tmp_path, monkeypatch, report):
    path = tmp_path / "r.json"
    report.write(str(path), 0)

    def full(*args, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert report.write(str(path), 1) is False
    monkeypatch.undo()
    assert json.loads(path.read_text())["exit_status"] == 0
    assert os.listdir(tmp_path) == ["r.json"], "no half-written draft"


def test_a_place_that_cannot_be_written_is_logged_and_not_raised(tmp_path, report):
    (tmp_path / "file").write_text("")
    stream = io.StringIO()
    logs.start("worker:1", stream)
    assert report.write(f"{tmp_path}/file/sub/r.json", 0) is False
    assert stream.getvalue().split(" ", 1)[1] == (
        f"worker:1 error: the report {tmp_path}/file/sub/r.json cannot be written: Not a directory. Check --report_file.\n"
    )


def test_nan_and_inf_are_null(tmp_path, report):
    report.loss, report.metrics = float("nan"), {"loss": float("inf"), "accuracy": 0.5}
    report.curve = [[0.5, 1, float("nan")]]
    report.write(str(tmp_path / "r.json"), 1)
    text = (tmp_path / "r.json").read_text()
    values = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert (values["loss"], values["metrics"]) == (None, {"loss": None, "accuracy": 0.5})
    assert values["curve"] == [[0.5, 1, None]]


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o007, 0o660)])
def test_its_mode_follows_the_umask(tmp_path, report, umask, mode):
    before = os.umask(umask)
    try:
        report.write(str(tmp_path / "r.json"), 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "r.json").st_mode) == mode


def test_a_target_that_was_reached_before(report):
    report.note_finished("t/model.ckpt-60", train_steps=50, global_step=60)
    values = report.as_dict(0)
    assert values["reason"] == "t/model.ckpt-60 has reached the target of 50 steps: nothing to do"
    assert values["global_step"] == 60


def test_a_reader_never_sees_half_a_file(tmp_path, report):
    path = tmp_path / "r.json"
    report.reason = "x" * 20_000
    report.write(str(path), 0)
    done, torn = threading.Event(), []

    def read():
        while not done.is_set():
            try:
                assert len(json.loads(path.read_text())["reason"]) == 20_000
            except (ValueError, AssertionError, OSError) as error:
                torn.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(100):
            report.write(str(path), 0)
    finally:
        done.set()
        thread.join(10)
    assert not torn
