"""`--trace_steps` with real processes: one file of all tasks, and in it the op that held all of them up."""

import json
import sys
from pathlib import Path

import pytest
from harness import START_SECS

sys.path.insert(0, str(Path(__file__).parents[1]))
from traces import check_chrome

from ps_train.trace import chrome, summary

pytestmark = pytest.mark.cluster
NAP_MS = 150  # much more than what tracing takes on a busy machine
WEIGHT_BYTES = 200 * 100 * 4


def trace_of(chief):
    """(events by phase, summary) of the file that the chief's report names."""
    path = chief.report["trace"]
    assert f"python -m ps_train trace {path} --summary" in chief.log
    events = check_chrome(json.loads(Path(path).read_text()))
    return events, summary.summarize(*chrome.read(path))


def test_all_wait_for_an_op_of_one_worker(make_job):
    job = make_job(1, 2, "nap.py", ["--update=sync", "--train_steps=14", "--trace_steps=8:10"],
                   f"napping=worker:1,millis={NAP_MS}")  # fmt: skip
    _, chief, worker = job.start_all()
    job.expect_exits(0, secs=START_SECS)
    assert Path(chief.report["trace"]) == Path(job.train_dir) / "trace-8-10.json"
    assert worker.report["trace"] is None
    events, found = trace_of(chief)
    assert sorted((step["worker"], step["step"]) for step in found["steps"]) == [
        (worker, step) for worker in ("worker:0", "worker:1") for step in (8, 9, 10)
    ]
    assert found["missing"] == found["cut"] == {} and found["last"] == {"worker:1": [8, 9, 10]}
    processes = sorted(e["args"]["name"] for e in events["M"] if e["name"] == "process_name")
    addresses = [*job.ps_hosts, *job.worker_hosts]
    assert processes == [
        f"ps:0 at {addresses[0]}", f"worker:0 (chief) at {addresses[1]}", f"worker:1 at {addresses[2]}"
    ]  # fmt: skip
    for way in "pull", "push":  # of each worker in each step the one variable, and its gradient
        sizes = [e["args"]["bytes"] for e in events["s"] if e["name"] == way]
        assert sum(size is None or size == WEIGHT_BYTES for size in sizes) >= 6
    for task, clock in found["clocks"].items():  # the clock of this host is one
        assert clock["ahead_ms"] == 0 and clock["error_ms"] < 5, task
    for step in found["steps"]:
        links = [link for link in step["path"] if (link["name"], link["of"]) == ("nap", "worker:1")]
        assert step["ms"] > 0.9 * NAP_MS and sum(link["ms"] for link in links) > 0.8 * NAP_MS, step
        assert sum(link["ms"] for link in step["path"]) == pytest.approx(step["ms"])
        assert sum(step["parts_ms"].values()) == pytest.approx(step["ms"])
        mine = "wait" if step["worker"] == "worker:0" else "compute"
        assert step["parts_ms"][mine] > 0.7 * NAP_MS


def test_steps_of_several_batches_while_a_worker_is_missing(make_job):
    job = make_job(1, 2, "nap.py", ["--local_steps=2", "--train_steps=20", "--trace_steps=12:15"],
                   f"napping=worker:0,millis={NAP_MS / 4}")  # fmt: skip
    _, chief = job.start_all(["ps:0", "worker:0"])
    job.expect_exits(0, secs=START_SECS)
    _, found = trace_of(chief)
    assert [(step["worker"], step["step"]) for step in found["steps"]] == [
        ("worker:0", number) for number in range(12, 16)
    ]
    for step in found["steps"]:
        naps = [link for link in step["path"] if link["name"] == "nap" and link["kind"] == "compute"]
        assert len(naps) == 2 and all(link["ms"] > 0.8 * NAP_MS / 4 for link in naps)
    assert found["missing"] == {"worker:1": "it has not joined"}
    assert "warning: trace: worker:1 is missing: it has not joined" in chief.log


def test_workers_that_hold_the_variables(make_job):
    job = make_job(0, 2, "nap.py", ["--colocate_ps", "--update=sync", "--train_steps=12", "--trace_steps=8"],
                   f"napping=worker:1,millis={NAP_MS}")  # fmt: skip
    chief, _ = (job.start(name, ps_hosts=None) for name in job.names)
    job.expect_exits(0, secs=START_SECS)
    events, found = trace_of(chief)
    assert sorted((step["worker"], step["step"]) for step in found["steps"]) == [
        ("worker:0", 8),
        ("worker:1", 8),
    ]
    processes = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    assert {name.partition(" at ")[0] for name in processes.values()} == {
        "ps:0 (worker:0, chief)",
        "ps:1 (worker:1)",
    }
    # The variable is in the chief's process.
    pulls = [
        processes[e["pid"]][:4]
        for e in events["f"]
        if e["name"] == "pull" and e["args"]["bytes"] == WEIGHT_BYTES
    ]
    assert set(pulls) <= {"ps:1"}
    for step in found["steps"]:
        naps = [link for link in step["path"] if (link["name"], link["of"]) == ("nap", "worker:1")]
        assert sum(link["ms"] for link in naps) > 0.8 * NAP_MS
