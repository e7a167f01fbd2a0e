"""A real job's record, replayed in this process: to the bit, and not so once it is another one."""

import collections
import itertools
import json

import numpy as np
import pytest
from harness import checkpoint_of

from ps_train import __main__, task_context
from ps_train.recorded import StepEvent, read

pytestmark = pytest.mark.cluster


def replay(directory, tmp_path, *flags):
    """(exit status, report) of the command."""
    path = tmp_path / "replay.json"
    status = __main__.main(["replay", f"--record={directory}", f"--report_file={path}", *flags])
    return status, json.loads(path.read_text())


def test_a_job_with_a_killed_worker_is_replayed_to_the_bit(make_job, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(task_context, "_current", [])
    directory = tmp_path / "record"
    flags = [
        f"--record={directory}",
        "--train_steps=600",
        "--save_checkpoint_steps=150",
        "--log_every_secs=0.2",
        "--seed=4",
    ]
    job = make_job(num_ps=2, num_workers=2, model="noisy.py", params="pause=5", flags=flags)
    *_, chief, other = job.start_all()
    other.wait_for_line(r"step \d\d\d/600")
    other.kill()
    again = job.start("worker:1")
    job.expect_exits(0, [job.tasks[0], job.tasks[1], chief, again])
    status, found = replay(directory, tmp_path, f"--out={tmp_path / 'out'}")
    shown = capsys.readouterr().out
    assert status == 0, shown
    last = chief.report["global_step"]
    assert found["global_step"] == found["pushes"] == last >= 600, shown
    assert f"losses: all {found['losses_compared']} equal bit for bit" in shown
    assert last - 1 <= found["losses_compared"] == found["losses_equal"] <= last, (
        "one may not have been noted"
    )
    assert found["checkpoints"][-1] == {
        "path": chief.report["checkpoint"],
        "variable": None,
        "difference": 0.0,
    }
    assert len(found["checkpoints"]) >= 3 and all(one["difference"] == 0 for one in found["checkpoints"])
    np.testing.assert_equal(checkpoint_of(tmp_path / "out"), checkpoint_of(job.train_dir))
    assert {row["session"] for row in found["order"] if row["worker"] == 1} <= {0, 1}

    swap_two_pushes(directory)
    status, found = replay(directory, tmp_path)
    assert status == 1 and "recorded" in found["first_difference"], found["first_difference"]
    assert found["checkpoints"][-1]["difference"] > 0


def test_a_chief_that_comes_again_goes_on_recording(make_job, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(task_context, "_current", [])
    directory = tmp_path / "record"
    flags = [f"--record={directory}", "--train_steps=800", "--save_checkpoint_steps=100"]
    job = make_job(num_workers=2, model="noisy.py", params="pause=10", flags=[*flags, "--log_every_secs=0.2"])
    ps, chief, other = job.start_all()
    chief.wait_for_line(r"saved .*model\.ckpt-\d+")
    chief.kill()
    again = job.start("worker:0")
    job.expect_exits(0, [ps, again, other])
    assert "rejoined the living model at step " in again.log
    status, found = replay(directory, tmp_path)
    assert status == 0, capsys.readouterr().out
    assert found["losses_compared"] == found["losses_equal"] > 700
    assert len(found["checkpoints"]) > 2 and all(one["difference"] == 0 for one in found["checkpoints"])


def test_workers_report_the_staleness_that_the_record_has(make_job, tmp_path, monkeypatch):
    monkeypatch.setattr(task_context, "_current", [])
    directory = tmp_path / "record"
    flags = [f"--record={directory}", "--train_steps=120"]
    (tmp_path / "begun").mkdir()  # nobody ends its first step before all have begun theirs
    params = f"pause=10,slow=2:3,gather=3:{tmp_path / 'begun'}"
    job = make_job(num_workers=3, model="slope.py", params=params, flags=flags)
    _, *workers = job.start_all()
    job.expect_exits(0)
    pushes = list(read(str(directory)).pushes())
    for number, worker in enumerate(workers):
        own = [push for push in pushes if push.worker == number]
        recorded = collections.Counter(push.staleness for push in own)
        reported = {int(value): count for value, count in worker.report["staleness_counts"].items()}
        assert reported == recorded, worker.tail()
    assert sum(push.staleness for push in pushes) > 60, "most came after others'"


def swap_two_pushes(directory):
    """Of two workers, on one ps, both of which had pulled before either pushed: what is recorded could have been so."""
    record = read(str(directory))
    section, ps = min(record.push_sections.items())
    events = record.orders[ps]
    pushes = [
        n for n, event in enumerate(events) if isinstance(event, StepEvent) and event.section == section
    ]
    for first, second in itertools.pairwise(pushes):
        pulled = [
            n
            for n in range(first)
            if isinstance(events[n], StepEvent) and events[n].step == events[second].step
        ]
        if pulled and events[first].worker != events[second].worker:
            path = directory / f"ps{ps}.order"
            lines = path.read_text().splitlines(keepends=True)
            lines[first], lines[second] = lines[second], lines[first]
            path.write_text("".join(lines))
            return
    raise AssertionError("no push was stale")
