"""`ps_train bench`: its flags, when it has measured enough, and what it writes."""

import json

import pytest
from test_verdict import worker

from ps_train import bench, flags
from ps_train.commands.bench import make_config
from ps_train.errors import UsageError
from ps_train.profile import Evenly


def plan(*args):
    return make_config(flags.parse(["bench", *args])[0])


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
            "--json is a flag of the command status or bench. Write python -m ps_train status, or leave it out.",
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


@pytest.mark.parametrize("flag", ["--autotune", "--local_steps=4", "--accumulate_steps=4"])
def test_what_cannot_be_traced(flag):
    (line,) = problems(flag)
    assert line.startswith(flag) and "bench" in line
