"""`ps_train plan`: its flags, what it reads of a bench's report, its table and its advice."""

import dataclasses
import json
import math

import pytest
from test_verdict import MB, ps, worker

from ps_train import bench, flags
from ps_train.commands import plan as command
from ps_train.errors import UsageError
from ps_train.plan import inputs, sizes, table
from ps_train.plan.setup import Setup
from ps_train.plan.simulate import simulate

STEP = ("--compute_ms=500", "--megabytes=1", "--link_mbit=100")


def plan(*args):
    return command.make_plan(flags.parse(["plan", *args])[0])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


def profile(name, **more):
    two = {"ps:0": ps(mb=30, link=1000, used=0.2), "ps:1": ps(mb=10, link=800, used=0.1)}
    return dataclasses.replace(
        worker(name, two, compute=40, input=10, pull=15, push=15, update=5, settings={"num_ps": 2}, **more),
        rates={"worker:0": 10.0, "worker:1": 10.0}, step_cv=0.1,
    )  # fmt: skip


@pytest.fixture
def report(tmp_path):
    """Writes a bench's report, whose workers have these settings; its path."""

    def write(**settings):
        profiles = [profile(f"worker:{index}") for index in range(2)]
        profiles = [
            dataclasses.replace(each, settings=dataclasses.replace(each.settings, **settings))
            for each in profiles
        ]
        path = tmp_path / "bench.json"
        path.write_text(json.dumps(bench.conclude({each.worker: each for each in profiles}, {})))
        return str(path)

    return write


def test_what_a_report_says_of_a_step(report):
    found = inputs.measured(report())
    setup = found.setup
    assert setup.compute_secs == pytest.approx(0.065)  # input, compute, and 15 ms of others
    assert setup.compute_cv == pytest.approx(0.01 / 0.065)
    assert (setup.pull_bytes, setup.push_bytes) == (40 * MB, 40 * MB)
    assert setup.shares == pytest.approx((0.75, 0.25))
    assert setup.update_secs == pytest.approx(0.005)
    assert setup.carry_secs == pytest.approx(0.3 / 20 - 0.005)
    assert (setup.ps_out_rate, setup.worker_out_rate, setup.ps_cores) == (800 * MB, 800 * MB, 4)
    assert (setup.num_workers, setup.num_ps, setup.is_sync, setup.prefetch) == (2, 2, False, False)
    assert (found.wire_dtype, found.is_local, found.steps_per_sec) == ("float32", False, 20.0)


def test_small_messages_are_delays(report):
    assert inputs.measured(report()).setup.latency_secs == 0
    small = [
        dataclasses.replace(profile("worker:0"), ps={"ps:0": ps(mb=0.01, messages=8, used=0.2)}, step_cv=None)
    ]
    setup = inputs.from_profiles(small).setup
    assert setup.latency_secs == pytest.approx((0.03 - 0.005 - 2e-5) / 4) and setup.compute_cv == 0
    assert 1 / simulate(dataclasses.replace(setup, num_workers=1)).steps_per_sec == pytest.approx(
        0.1, abs=1e-4
    )


def test_what_a_report_says_of_the_scheme(report):
    setup = inputs.measured(report(update="sync", num_workers=4, quorum=3, prefetch=True)).setup
    assert (setup.is_sync, setup.num_backups, setup.num_workers) == (True, 1, 4)
    setup = inputs.measured(report(is_colocated=True)).setup
    assert setup.is_colocated and setup.shares is None and setup.carry_secs == 0
    assert setup.pull_bytes == pytest.approx(80 * MB)  # of two halves the worker's own does not travel


def test_a_workers_own_report_will_do(tmp_path):
    path = tmp_path / "worker0.json"
    path.write_text(json.dumps({"job": "worker", "profile": profile("worker:0").as_dict()}))
    assert inputs.measured(str(path)).setup.pull_bytes == 40 * MB


def test_reports_that_are_none(tmp_path):
    path = tmp_path / "r.json"
    expected = "Expected what python -m ps_train bench --report_file=FILE writes, or a worker's report with --profile_steps."
    assert problems(f"--bench_report={path}") == [
        f"--bench_report={path} cannot be read: No such file or directory. Check its path."
    ]
    path.write_text("no")
    assert problems(f"--bench_report={path}") == [f"--bench_report={path} is not JSON. {expected}"]
    for text in (
        "[]",
        "{}",
        '{"workers": {}}',
        '{"profile": null}',
        '{"workers": {"worker:0": {"worker": 1}}}',
    ):
        path.write_text(text)
        assert problems(f"--bench_report={path}") == [
            f"--bench_report={path} holds no measured steps. {expected}"
        ]


def test_figures_by_flags():
    made = plan(
        *STEP, "--compute_cv=0.2", "--update_ms=3", "--latency_ms=0.1", "--ps_link_mbit=1000", "--seed=7"
    )
    setup = made.setup
    assert (setup.compute_secs, setup.compute_cv, setup.pull_bytes, setup.push_bytes) == (0.5, 0.2, 1e6, 1e6)
    assert (setup.update_secs, setup.latency_secs, setup.seed) == (0.003, 0.0001, 7)
    assert setup.worker_out_rate == pytest.approx(100e6 / 8 * 1448 / 1514)
    assert setup.ps_in_rate == pytest.approx(10 * setup.worker_in_rate)
    assert (setup.num_workers, made.num_ps, made.notes, made.is_json) == (64, None, [], False)


def test_schemes_by_flags():
    made = plan(
        *STEP,
        "--update=sync",
        "--num_workers=20",
        "--replicas_to_aggregate=18",
        "--slow_workers=2",
        "--num_ps=3",
    )
    assert (made.setup.is_sync, made.setup.num_backups, made.setup.num_slow, made.num_ps) == (True, 2, 2, 3)
    made = plan(*STEP, "--max_lead=3", "--prefetch", "--slow_factor=4", "--colocate_ps", "--overlap")
    setup = made.setup
    assert setup.overlap and not plan(*STEP).setup.overlap
    assert (setup.max_lead, setup.prefetch, setup.slow_factor, setup.is_colocated) == (3, True, 4.0, True)
    assert problems(*STEP, "--compute_cv=11") == [
        "--compute_cv=11 is out of range. Expected a number from 0 to 10."
    ]
    assert plan(*STEP, "--wire_dtype=int8").setup.pull_bytes == 0.25e6


def test_flags_go_before_what_was_measured(report):
    path = report(update="sync", wire_dtype="bfloat16")
    made = plan(f"--bench_report={path}", "--compute_ms=7", "--link_mbit=1000", "--wire_dtype=float32")
    assert made.setup.is_sync and made.setup.compute_secs == pytest.approx(0.007)
    assert made.setup.pull_bytes == 80 * MB and made.wire_dtype == "float32"
    assert made.setup.ps_out_rate == pytest.approx(1e9 / 8 * 1448 / 1514)
    made = plan(f"--bench_report={path}", "--update=async", "--megabytes=5", "--wire_dtype=bfloat16")
    assert not made.setup.is_sync and made.setup.pull_bytes == 2.5e6
    assert plan(f"--bench_report={report(is_colocated=True)}").setup.is_colocated
    assert not plan(f"--bench_report={report(is_colocated=True)}", "--num_ps=2").setup.is_colocated


def test_the_bench_is_simulated_too(report):
    notes = plan(f"--bench_report={report()}").notes
    assert notes[0].startswith("The bench itself, 2 workers and 2 ps: 20 steps/s measured, ")


@pytest.mark.parametrize(
    ("measured", "remark"),
    [(0.8, "That is 25% more: the machine was busy"), (0.9, None), (1.25, "That is 20% less: parts")],
)
def test_a_bench_that_its_own_plan_does_not_meet_is_told(report, measured, remark):
    path = report()
    was = inputs.measured(path)
    was = was._replace(steps_per_sec=measured * simulate(was.setup).steps_per_sec)
    notes = command._notes(flags.parse(["plan", f"--bench_report={path}"])[0], was)
    told = [note for note in notes if note.startswith("That is")]
    assert [note.startswith(remark) for note in told] == ([True] if remark else [])


def test_what_bench_calls_overhead_is_no_arithmetic_in_the_plan(tmp_path):
    """Parts of 8, 2 and 60 ms of 100: bench judges by the 60, plan has all 70 as one figure and says what is in it."""
    known = worker("worker:0", {"ps:0": ps()}, compute=8, input=2, pull=15, push=15, other=60)
    found = bench.conclude({"worker:0": known}, {})
    assert found["verdict"] == "overhead-bound"
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(found))
    made = plan(f"--bench_report={path}", "--num_workers=1")
    assert made.setup.compute_secs == pytest.approx(0.07)
    assert made.notes[2] == (
        "A worker's own time is what needs neither link nor ps: of 70 ms measured, compute 8 ms, input 2 ms, and 60 ms of other, "
        "which bench calls overhead."
    )
    row = sizes.with_speed_up(simulate(made.setup), {})
    assert row.bottleneck == "worker's own time" and "arithmetic" not in table.advice([row], [])
    assert plan(*STEP).notes == []


def test_all_problems_at_once():
    assert problems() == [
        "The command plan does not know what a step takes. Add --bench_report=FILE, which bench --report_file=FILE wrote, or "
        "--compute_ms and --megabytes and --link_mbit."
    ]
    found = problems(
        *STEP, "--link_mbit=0", "--compute_cv=-1", "--slow_workers=65", "--job_name=ps", "--num_ps=10001", "--slow_factor=inf",
        "--replicas_to_aggregate=70", "--update=sync",
    )  # fmt: skip
    text = "\n".join(found)
    assert "--link_mbit=0 is out of range. Expected a number above 0." in found
    assert "--compute_cv=-1 is out of range. Expected a number from 0 to 10." in found
    assert "--slow_factor=inf is out of range. Expected a number above 0." in found
    assert "--slow_workers=65 is out of range. Expected a number from 0 to the 64 workers." in found
    assert "--num_ps=10001 is more than can be simulated. Expected 10000 at most." in found
    assert "The command plan starts no task." in text and "--replicas_to_aggregate=70" in text
    assert problems(*STEP, "--update=allreduce")[-1].startswith("--update=allreduce has no ps to plan for.")
    assert problems(*STEP, "--colocate_ps", "--ps_link_mbit=5") == [
        "--ps_link_mbit beside --colocate_ps: each host has one link there. Give --link_mbit alone."
    ]


def test_its_flags_are_of_no_other_command():
    with pytest.raises(UsageError) as caught:
        flags.parse(["bench", "--compute_ms=3"])
    assert str(caught.value) == (
        "--compute_ms is a flag of the command plan. Write python -m ps_train plan, or leave it out."
    )


def test_the_table(capsys):
    assert command.run(flags.parse(["plan", *STEP, "--num_workers=16", "--num_ps=1"])[0]) == 0
    head, names, *rows, advice = capsys.readouterr().out.splitlines()
    assert (
        head
        == "async: a step takes the worker 500 ms (varying by 0%), pulls 1 MB, pushes 1 MB; 12 MB/s out of a ps, 12 MB/s into it"
    )
    assert names.split()[:5] == ["workers", "ps", "steps/s", "speed-up", "efficiency"]
    assert [row.split()[:2] for row in rows] == [["1", "1"], ["2", "1"], ["4", "1"], ["8", "1"], ["16", "1"]]
    assert (
        "link" in rows[-1]
        and advice.startswith("16 workers make 7.")
        and "1 ps task, one for 16 workers." in advice
    )
    assert "--num_ps=2 (" in advice and "--wire_dtype=int8" in advice


def test_json(capsys):
    assert command.run(flags.parse(["plan", *STEP, "--num_workers=4", "--json"])[0]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in found["rows"]] == [1, 2, 4]
    assert found["rows"][0]["speed_up"] == pytest.approx(1.0) and found["setup"]["compute_secs"] == 0.5
    assert math.isclose(sum(found["rows"][-1]["shares"].values()), 1.0)
    assert "give 95% of what more would." in found["advice"]


def test_advice_where_nothing_helps():
    row = sizes.with_speed_up(simulate(Setup(0.5, num_workers=8)), {})
    assert table.advice([row], [("--prefetch", 1.01)]) == (
        "8 workers make 8 times the steps of one; 100% of a step: worker's own time. 1 ps task, one for 8 workers. "
        "No single flag would give 5% more."
    )
