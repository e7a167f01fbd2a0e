"""`ps_train bench`: its flags, when it has measured enough, and what it writes."""

import json
import signal

import pytest
from test_launcher import FakeScreen, FakeTask
from test_verdict import worker

from ps_train import bench, flags
from ps_train.cluster import Cluster
from ps_train.commands.bench import make_plan
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.profile import Evenly


def plan(*args):
    return make_plan(flags.parse(["bench", *args])[0])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


def test_the_tasks_save_nothing_and_have_no_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan(
        "--train_dir=runs/mine", "--train_steps=9", "--report_file=r.json", "--update=sync", "--num_ps=3"
    )
    config = made.config
    assert (config.train_dir, config.train_steps, config.report_file, config.evaluate) == (
        None,
        None,
        None,
        False,
    )
    assert (config.update, config.profile_steps, made.num_ps, made.num_workers) == ("sync", 20, 3, 2)
    assert (made.bench_secs, made.is_json, made.report_file) == (15.0, False, "r.json")
    assert config.log_dir.startswith("ps_train_runs") and list(tmp_path.iterdir()) == []


def test_what_is_asked_for():
    made = plan("--profile_steps=7", "--bench_secs=3", "--json", "--log_dir=here")
    assert (made.config.profile_steps, made.config.log_dir) == (7, "here")
    assert (made.bench_secs, made.is_json) == (3.0, True)


def test_all_problems_at_once(tmp_path):
    found = problems(
        "--job_name=ps",
        "--bench_secs=0",
        "--profile_steps=-1",
        "--num_ps=0",
        f"--log_dir={__file__}",
        "--model=x.py",
    )
    text = "\n".join(found)
    assert "The command bench starts a local cluster." in text and "--profile_steps=20." in text
    assert "--bench_secs=0 is not a time to measure. Expected a number of seconds above 0." in found
    assert "--profile_steps=-1 is out of range. Expected a whole number from 0." in found
    assert "--num_ps=0 is out of range. Expected a whole number from 1." in found
    assert f"--log_dir={__file__} is a file. Expected a directory." in found and "x.py" in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_steps_to_judge_by(count):
    assert problems(f"--profile_steps={count}") == [
        f"--profile_steps={count} is too few for the command bench. Expected 4 or more, or leave it out for 20."
    ]


@pytest.mark.parametrize("count", [4, 5, 6, 7, 20])
def test_what_it_waits_for_comes_and_stays(count):
    kept = Evenly(plan(f"--profile_steps={count}").config.profile_steps)
    for number in range(1, 100):
        kept.append(number)
        assert len(kept.values) >= min(number, bench.MIN_TRACES)


def test_flags_of_other_commands():
    for args, line in [
        (
            ["--bench_secs=3"],
            "--bench_secs is a flag of the command bench. Write python -m ps_train bench, or leave it out.",
        ),
        (
            ["--json"],
            "--json is a flag of the command status or bench or doctor or plan or trace or replay. Write python -m ps_train status, or leave it out.",
        ),
    ]:
        with pytest.raises(UsageError) as caught:
            flags.parse(args)
        assert str(caught.value) == line


def test_what_is_written():
    profiles = {name: worker(name, compute=60, pull=10) for name in ("worker:0", "worker:1")}
    found = bench.conclude(profiles, {"ps:0": 3.5, "worker:0": 9.0, "worker:1": None})
    assert json.loads(json.dumps(found)) == found
    assert (found["verdict"], found["steps_per_sec"], found["cpu_secs"]["ps:0"]) == (
        "compute-bound",
        20.0,
        3.5,
    )
    assert found["workers"]["worker:1"]["parts"]["compute"] == pytest.approx(0.06)
    assert sum(found["shares"].values()) == pytest.approx(1.0)


MEASURED = {"reason": "stopped by SIGTERM", "cpu_secs": 1.0, "profile": worker(compute=60).as_dict()}
UNTRACED = {"reason": "its data is used up", "cpu_secs": 1.0, "profile": None}


def conclusion(folder, *reports):
    """(status, complaints, what is said) of a bench whose ps and workers gave these reports; None: killed without one."""
    workers = ",".join(f"127.0.0.1:{number}" for number in range(2, 1 + len(reports)))
    cluster, screen = Cluster.from_hosts("127.0.0.1:1", workers), FakeScreen()
    made = bench.Bench(1.0, TrainConfig(log_dir=str(folder)), cluster, None, screen, None)
    for path in folder.iterdir():
        path.unlink()
    for task, report in zip(cluster.tasks, reports, strict=True):
        running = made._tasks[task] = FakeTask(str(task))
        running.status, running.ended_by = (0, None) if report else (137, signal.SIGKILL)
        if report:
            (folder / f"{task.job}{task.index}.json").write_text(json.dumps(report))
        made._policy.note(made._end_of(task), is_ending=True)
    return made._conclude(None), screen.complaints, "".join(screen.said)


KILLED = "ended by SIGKILL, which may be the system's, for want of memory. Its log: logs"


def test_who_gave_no_report_or_no_profile_is_named(tmp_path):
    served = {"reason": "the job is over", "cpu_secs": 2.0, "profile": None}
    assert conclusion(tmp_path, served, MEASURED, MEASURED)[:2] == (0, [])
    status, complaints, said = conclusion(tmp_path, None, MEASURED, None, UNTRACED)
    assert status == 0 and "verdict: compute-bound" in said
    assert complaints == [
        f"ps:0 gave no report: {KILLED}/ps:0.log",
        f"worker:1 gave no report: {KILLED}/worker:1.log",
        "worker:2 traced no step: its data is used up. Its log: logs/worker:2.log",
    ]


def test_nobody_gave_a_profile(tmp_path):
    served = {"reason": "the job is over", "cpu_secs": 2.0, "profile": None}
    status, complaints, said = conclusion(tmp_path, served, UNTRACED)
    assert (status, said) == (1, "") and complaints[0].startswith("No step was traced: the data was used up")
    status, complaints, said = conclusion(tmp_path, served, None)
    assert (status, said, complaints) == (1, "", [f"worker:0 gave no report: {KILLED}/worker:0.log"])


@pytest.mark.parametrize("flag", ["--autotune", "--local_steps=4", "--accumulate_steps=4"])
def test_what_cannot_be_traced(flag):
    (line,) = problems(flag)
    assert line.startswith(flag) and "bench" in line
