"""The command experiment up to its runs, and the runs themselves with processes that only pretend: what is run, told, recorded."""

import json
import os
import pathlib
import signal

import pytest

from ps_train import flags
from ps_train.commands import experiment as command
from ps_train.errors import UsageError
from ps_train.experiment import machine, results
from ps_train.experiment.run import Experiment, describe, locked
from ps_train.experiment.runs import conflicts
from ps_train.params import Params


def plan(*args):
    return command.make_plan(flags.parse(["experiment", *args])[0])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


# The plan.


def test_seeds_are_outermost_and_each_run_has_a_place_of_its_own(tmp_path):
    found = plan(
        f"--out={tmp_path}", "--grid=update=async,sync", "--seeds=2", "--batch_size=8", "--num_workers=3"
    )
    assert [run.text for run in found.runs] == [
        "update=async seed=1", "update=sync seed=1", "update=async seed=2", "update=sync seed=2",
    ]  # fmt: skip
    run = found.runs[3]
    assert run.folder == str(tmp_path / "runs" / "update=sync-2") and run.name == "update=sync-2"
    assert run.args == [
        "train", "--cluster_resolver=flags", "--num_ps=1", "--num_workers=3", "--batch_size=8", "--train_steps=1000",
        "--update=sync", f"--train_dir={run.folder}", "--save_checkpoint_steps=100", "--keep_checkpoint_max=0", "--seed=2", f"--report_file={run.folder}/report.json",
        f"--log_dir={run.folder}/logs", "--evaluate=true", "--eval_checkpoints=all",
    ]  # fmt: skip
    assert flags.config_from_flags(flags.parse(run.args)[0]) == run.config
    assert run.args_elsewhere == [arg for arg in run.args if str(tmp_path) not in arg]


def test_an_axis_wins_over_the_command_line_and_three_seeds_follow_the_first(tmp_path):
    found = plan(
        f"--out={tmp_path}", "--grid=num_workers=1,2 model_params.hidden=16", "--num_workers=4", "--seed=7",
        "--model_params=learning_rate=0.1,hidden=3", "--noevaluate",
    )  # fmt: skip
    assert [run.config.seed for run in found.runs] == [7, 7, 8, 8, 9, 9]
    assert [run.num_workers for run in found.runs[:2]] == [1, 2]
    assert found.runs[0].config.model_params == Params(learning_rate=0.1, hidden=16)
    assert found.runs[0].config.evaluate is False


def test_checkpoints_for_evaluations_are_at_even_distances_of_each_points_target(tmp_path):
    out = f"--out={tmp_path}"
    found = plan(out, "--grid=train_steps=7,40", "--evaluations=8").runs
    assert [(run.config.save_checkpoint_steps, run.config.keep_checkpoint_max) for run in found[:2]] == [
        (1, 0),
        (5, 0),
    ]
    assert {run.config.eval_checkpoints for run in found} == {"all"}
    (own,) = plan(out, "--save_checkpoint_steps=3", "--seeds=1").runs
    kept = (own.config.save_checkpoint_steps, own.config.keep_checkpoint_max, own.config.eval_checkpoints)
    assert kept == (3, 5, "all")
    (last,) = plan(out, "--evaluations=1", "--seeds=1").runs
    assert (last.config.save_checkpoint_steps, last.config.eval_checkpoints, last.config.evaluate) == (
        None,
        "newest",
        True,
    )
    (none,) = plan(out, "--noevaluate", "--seeds=1").runs
    assert (none.config.save_checkpoint_steps, none.config.eval_checkpoints) == (None, "newest")
    assert problems(out, "--evaluations=0") == [
        "--evaluations=0 is out of range. Expected a whole number from 1."
    ]


def test_runs_on_hosts_take_the_first_slots(tmp_path):
    out = f"--out={tmp_path}"
    grid = "--grid=num_workers=1,3 colocate_ps=false,true"
    found = plan(out, grid, "--hosts=a:2,u@b:2", "--ssh=ssh -p 22", "--port_base=4000", "--seeds=1").runs
    assert [run.args[:5] for run in found] == [
        ["launch", f"--hosts={hosts}", "--ssh=ssh -p 22", "--port_base=4000", size]
        for hosts, size in (
            ("a:2", "--num_ps=1"), ("a:1", "--num_workers=1"), ("a:2,u@b:2", "--num_ps=1"), ("a:2,u@b:1", "--num_workers=3"),
        )
    ]  # fmt: skip
    assert problems(out, "--grid=num_workers=1,4", "--hosts=a:2,b:2") == [
        "At num_workers=4: The hosts have 4 slots, and 5 tasks need 5. Change --hosts or the grid."
    ]
    assert problems(out, "--remote_dir=x") == [
        "--remote_dir is for other hosts, and none are given. Add --hosts or leave it out."
    ]
    assert problems(out, "--hosts=a:3", "--private_network") == [
        "--private_network is for local clusters, and hosts are given. Leave out one of the two."
    ]


def test_contradictions_of_all_points_are_told_before_anything_starts(tmp_path):
    out = f"--out={tmp_path / 'out'}"
    assert problems(
        out, "--grid=update=async,sync num_workers=1,2 replicas_to_aggregate=2", "--batch_size=0"
    ) == [
        "--batch_size=0 is out of range. Expected a whole number from 1.",
        "At update=async num_workers=1 replicas_to_aggregate=2 and 1 more point: --replicas_to_aggregate=2 has no meaning in async, "
        "where each gradient is applied by itself. Add --update=sync or leave it out.",
        "At update=sync num_workers=1 replicas_to_aggregate=2: --replicas_to_aggregate=2 is more than the 1 worker: an update would "
        "wait for gradients that no worker computes. Expected 1 to 1.",
    ]
    assert problems(out, "--grid=num_workers=1,x") == [
        "At num_workers=x: --num_workers=x is not a whole number. Expected digits."
    ]
    assert problems(out, "--grid=colocate_ps=true,false", "--num_ps=2") == [
        "At colocate_ps=true: --num_ps=2 beside --colocate_ps or --update=allreduce: there the workers hold the variables. Leave "
        "out one of the two."
    ]
    assert problems(out, "--model=tests/cluster/models/line.py") == [
        "The command experiment compares runs of the same target, but no --train_steps is given. Add it."
    ]
    assert os.listdir(tmp_path) == []


def test_flags_that_are_no_settings_of_a_run(tmp_path):
    expected = "Expected a flag of train but --seed and the places of files, such as update or num_workers, or model_params.KEY."
    assert problems("--grid=seed=1 num_workerz=2 hosts=a", "--train_dir=x", "--seeds=0") == [
        "--train_dir=x is each run's own with the command experiment, below --out. Leave it out.",
        "--seeds=0 is out of range. Expected a whole number from 1.",
        "The command experiment needs a directory for its results, and none is given. Add --out=DIR.",
        f"--grid has the axis 'seed', which is no setting of a run. {expected}",
        f"--grid has the axis 'num_workerz', which is no setting of a run. Did you mean num_workers? {expected}",
        f"--grid has the axis 'hosts', which is no setting of a run. {expected}",
    ]
    assert problems(f"--out={tmp_path / 'a[1]'}") == [
        f"--out={tmp_path}/a[1] has [ ] in its name: TensorFlow would save there and not restore from it. Expected a name without "
        "[ ] * ? and backslash."
    ]
    assert problems(f"--out={tmp_path}", "--job_name=ps", "--task_index=0") == [
        "The command experiment starts a local cluster. Leave out --job_name, --task_index and the lists of hosts."
    ]
    with pytest.raises(UsageError, match="--grid is a flag of the command experiment. "):
        flags.parse(["--grid=a=1"])


# The runs.


class Pretended:
    """A run's process: it looks `secs` times, writes the chief's report, and ends with `status`."""

    def __init__(self, run, status=0, looks=1, ended_by=None, step=20):
        self.run, self._status, self._looks, self.ended_by, self._step = run, status, looks, ended_by, step
        self.status, self.sent, self.is_killed = None, [], False
        self.log_path = os.path.join(run.folder, "output.txt")

    def poll(self):
        self._looks -= 1
        if self._looks < 0 and self.status is None:
            self._report()
            self.status = 128 + self.sent[0] if self.sent else self._status
        return self.status

    def _report(self):
        report = {
            "global_step": self._step, "examples": 320, "train_secs": 2.0, "loss": 0.5, "cpu_secs": 1.5,
            "curve": [[0.1, 1, 2.0], [2.0, self._step, 0.5]],
        }  # fmt: skip
        write_reports(self.run, worker0=report, ps0={"cpu_secs": 0.5})

    def send(self, number):
        self.sent.append(number)

    def kill(self):
        self.is_killed = True

    def last_line(self):
        return "the last line"


class Inbox:
    """Signals that come at the given looks."""

    def __init__(self, at=()):
        self._at, self._looks = dict(at), 0

    def wait(self, _):
        self._looks += 1
        number = self._at.get(self._looks)
        return [number] if number else []


class Said:
    def __init__(self):
        self.lines = []

    say = complain = lambda self, text: self.lines.append(text)


@pytest.fixture
def runs(tmp_path):
    return plan(
        f"--out={tmp_path}", "--grid=update=async,sync", "--seeds=2", "--num_workers=1", "--train_steps=20"
    ).runs


@pytest.fixture
def go(runs):
    """Runs with pretended processes: (outcome, what was said, the names of what was started)."""

    def run(inbox=None, make=Pretended):
        said, started = Said(), []

        def start(one):
            started.append(one.name)
            return make(one)

        outcome = Experiment(runs, start, said).run(inbox or Inbox())
        return outcome, said.lines, started

    return run


def test_all_runs_and_then_none(go, runs):
    outcome, said, started = go()
    assert started == [run.name for run in runs] and outcome.signal is None
    assert said[0] == "run 1 of 4: update=async seed=1"
    assert said[1].startswith("run 1 of 4: done in 0.0 s, step 20, 10.0 steps/s, 160.0 examples/s, loss 0.5")
    assert [record["outcome"] for record in outcome.records] == ["done"] * 4
    assert json.loads((results_file(runs[0])).read_text()) == outcome.records[0]

    again, said, started = go()
    assert started == [] and again.records == outcome.records
    assert said[3] == "run 4 of 4: update=sync seed=2: done before"


def results_file(run):
    return pathlib.Path(run.folder, results.RECORD_FILE)


def test_a_run_that_fails_is_recorded_and_the_others_go_on(go, runs):
    def make(run):
        if run is not runs[1]:
            return Pretended(run)
        with open(os.path.join(run.folder, "output.txt"), "w") as file:
            file.write(
                "ps_train: worker:0 warning: x\nps_train: worker:0 failed (status 1): no loss\nps_train: Its log: y\n"
            )
        return Pretended(run, status=1)

    outcome, said, started = go(make=make)
    assert [record["outcome"] for record in outcome.records] == ["done", "failed", "done", "done"]
    assert said[3] == "run 2 of 4: failed: worker:0 failed (status 1): no loss"
    outcome, _, started = go()
    assert started == [runs[1].name] and {record["outcome"] for record in outcome.records} == {"done"}


def test_a_run_that_ended_too_soon_says_so(go):
    outcome, said, _ = go(make=lambda run: Pretended(run, step=19))
    assert outcome.records[0]["outcome"] == "done" and said[1].endswith(" (it ended before step 20)")


def test_a_run_that_was_killed_says_so(go):
    outcome, said, _ = go(make=lambda run: Pretended(run, status=137, ended_by=signal.SIGKILL))
    assert said[1].endswith("ended by SIGKILL, which may be the system's, for want of memory")
    assert outcome.records[0]["exit_status"] == 137


@pytest.mark.parametrize("at", [3, 4])
def test_a_signal_ends_the_run_and_leaves_no_result(go, runs, at):
    made = []

    def make(run):
        made.append(Pretended(run, looks=3))
        return made[-1]

    # Of each run, the first look is before its start.
    outcome, said, _ = go(Inbox({at: signal.SIGINT}), make)
    assert (outcome.signal, outcome.records) == (signal.SIGINT, [])
    assert made[0].sent == [signal.SIGINT] and len(made) == 1
    assert said[-1] == "run 1 of 4: stopped by SIGINT; it has no result"
    assert results.read_record(runs[0].folder)["outcome"] == "running"
    outcome, _, started = go()
    assert len(started) == 4 and len(outcome.records) == 4


def test_a_signal_that_comes_too_late_for_the_run_keeps_its_result(go):
    outcome, said, started = go(Inbox({2: signal.SIGTERM}), lambda run: Ended(run, looks=1))
    assert (outcome.signal, len(outcome.records), len(started)) == (signal.SIGTERM, 1, 1)
    assert said[-1].startswith("run 1 of 4: done")


class Ended(Pretended):
    def send(self, number):
        """It has reached its end already."""


def test_what_is_half_done_is_removed(go, runs):
    folder = results_file(runs[0]).parent
    folder.mkdir(parents=True)
    results_file(runs[0]).write_text('{"outcome": "running", "digest": "x"}')
    (folder / "model.ckpt-7.index").write_text("")
    assert conflicts(runs) == []
    go()
    assert not (folder / "model.ckpt-7.index").exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted(run.name for run in runs)


def test_other_settings_under_the_same_name_are_refused(go, tmp_path):
    go()
    again = plan(
        f"--out={tmp_path}",
        "--grid=update=async,sync",
        "--num_workers=1",
        "--train_steps=20",
        "--batch_size=5",
    ).runs
    assert conflicts(again) == [
        f"{tmp_path}/runs/update=async-1 (and 3 more folders) has the result of other settings: nothing where there is now "
        "--batch_size=5. Choose another --out, or remove what is to be run again."
    ], "the third seed is new"


def test_a_model_that_was_edited_is_another_one(tmp_path):
    model = tmp_path / "mine.py"
    model.write_text("one")
    args = (f"--out={tmp_path / 'o'}", f"--model={model}", "--train_steps=2", "--seeds=1")
    (run,) = plan(*args).runs
    Experiment([run], Pretended, Said()).run(Inbox())
    assert conflicts([run]) == []
    model.write_text("two")
    assert "has the result of another text of the model's file, or " in conflicts([run])[0]


def test_a_folder_of_somebody_else_is_left_alone(runs, tmp_path):
    folder = tmp_path / "runs" / runs[0].name
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    assert conflicts(runs) == [
        f"{folder} is there, and not of an experiment. Choose another --out, or remove it."
    ]


def test_the_lock_keeps_others_out(tmp_path):
    said = []
    with locked(str(tmp_path), 1.0, said.append):
        with pytest.raises(UsageError, match="is in use: processes of another experiment run there"):
            with locked(str(tmp_path), 0.1, said.append):
                pass
    assert said == [f"waiting up to 0 s for what still runs in {tmp_path}"]
    with locked(str(tmp_path), 0.0, said.append):
        pass


# What the reports say together.


def write_reports(run, **reports):
    os.makedirs(run.folder, exist_ok=True)
    for task, content in reports.items():
        name = "report.json" if task == "worker0" else f"report.{task}.json"
        with open(os.path.join(run.folder, name), "w") as file:
            json.dump(content, file)


@pytest.fixture
def two_workers(tmp_path):
    return plan(f"--out={tmp_path}", "--seeds=1").runs[0]


def test_the_reports_of_all_tasks_make_one_record(two_workers):
    write_reports(
        two_workers,
        worker0={
            "global_step": 40, "examples": 640, "train_secs": 4.0, "loss": 0.25, "cpu_secs": 2.0, "local_steps": 40,
            "dropped_gradients": 10,
            "staleness_counts": {"0": 10, "2": 10}, "curve": [[1.0, 10, 2.0], [4.0, 40, 1.0]],
        },
        worker1={"examples": 560, "train_secs": 9.0, "loss": 9.0, "cpu_secs": 1.5, "local_steps": 35,
                 "dropped_gradients": 5, "staleness_counts": {"0": 10, "10": 2}},
        ps0={"cpu_secs": 0.5},
        evaluator0={
            "metrics": {"accuracy": 0.75}, "global_step": 40, "examples": 600,
            "evaluations": [
                {"global_step": step, "examples": 300, "metrics": {"accuracy": value}}
                for step, value in ((5, 0.25), (20, 0.5), (40, 0.75))
            ],
        },
    )  # fmt: skip
    found = results.gather(two_workers.config, 1, 2)
    assert found["figures"] == {
        "global_step": 40, "examples": 480 + 480, "train_secs": 4.0, "steps_per_sec": 10.0, "examples_per_sec": 240.0,
        "loss": 0.25, "staleness": (2 * 10 + 10 * 2) / 32, "dropped": 15, "cpu_secs": 4.0,
    }  # fmt: skip
    assert found["staleness_counts"] == {"0": 20, "2": 10, "10": 2}
    assert found["curve"] == [[1.0, 10, 240, 2.0], [4.0, 40, 960, 1.0]]
    assert found["metrics"] == {"accuracy": 0.75}
    places = [[one[key] for key in results.OF_EVALUATIONS] for one in found["evaluations"]]
    assert places == [[5, 120, 0.5, 300], [20, 480, 2.0, 300], [40, 960, 4.0, 300]]
    assert [one["metrics"]["accuracy"] for one in found["evaluations"]] == [0.25, 0.5, 0.75]
    assert found["missing"] == []


@pytest.mark.parametrize(
    "curve, others_first, secs_begun",
    [
        # The synchronous chief's first step waits for the other worker, for 9 s.
        ([[9.0, 1, 3.0], [10.0, 21, 2.0], [14.0, 101, 1.0]], [0.2, 1, 3.0], 9.0),
        # In async it trains alone at first, slowly: the other's first step is the job's 11th, between two points.
        ([[2.0, 1, 3.0], [10.0, 21, 2.0], [14.0, 101, 1.0]], [0.3, 11, 3.0], 6.0),
        # The other is there before the chief's second point.
        ([[9.0, 1, 3.0], [10.0, 6, 2.0], [19.0, 101, 1.0]], [0.2, 6, 3.0], 10.0),
    ],
)
def test_speeds_are_of_the_time_in_which_all_workers_train(two_workers, curve, others_first, secs_begun):
    end, last, begun = curve[-1][0], 101, others_first[1]
    write_reports(
        two_workers,
        worker0={"global_step": 103, "examples": 1030, "train_secs": end, "curve": curve},
        worker1={"global_step": 103, "examples": 1030, "train_secs": 1.0, "curve": [others_first]},
        evaluator0={
            "evaluations": [{"global_step": step, "examples": 9, "metrics": {}} for step in (0, begun, 103)]
        },
    )  # fmt: skip
    found = results.gather(two_workers.config, 1, 2)
    figures, rate = found["figures"], (last - begun) / (end - secs_begun)
    assert figures["steps_per_sec"] == pytest.approx(rate)
    assert figures["train_secs"] == pytest.approx(103 / rate, abs=0.001)
    assert figures["examples_per_sec"] == pytest.approx(20 * rate, rel=0.001)
    seconds = {step: secs for secs, step, _, _ in found["curve"]}
    assert seconds[last] == pytest.approx(last / rate, abs=0.001)
    assert seconds[1] == pytest.approx(1 / rate, abs=0.001), "no wait is in it"
    assert seconds[last] - seconds[curve[1][1]] == pytest.approx(
        end - max(curve[1][0], secs_begun), abs=0.001
    )
    places = [one["train_secs"] for one in found["evaluations"]]
    assert places == pytest.approx([0.0, begun / rate, 103 / rate], abs=0.001)


def test_there_is_no_speed_where_the_workers_never_trained_at_once(two_workers):
    write_reports(
        two_workers,
        worker0={"global_step": 21, "examples": 160, "train_secs": 4.0, "curve": [[1.0, 1, 2.0], [4.0, 20, 1.0]]},
        worker1={"global_step": 21, "examples": 8, "train_secs": 0.1, "curve": [[0.1, 21, 2.0]]},
    )  # fmt: skip
    found = results.gather(two_workers.config, 1, 2)
    names = ("steps_per_sec", "examples_per_sec", "train_secs")
    assert [found["figures"][name] for name in names] == [None] * 3
    assert [point[0] for point in found["curve"]] == [None] * 2


def test_the_parts_of_a_step_are_means_over_the_profiled_workers(two_workers):
    parts = ({"input": 0.25, "wait": 0.5}, {"input": 0.75, "wait": 0.0})
    write_reports(
        two_workers, worker0={"profile": {"parts": parts[0]}}, worker1={"profile": {"parts": parts[1]}}
    )
    assert results.gather(two_workers.config, 1, 2)["step_parts"] == {"input": 0.5, "wait": 0.25}
    write_reports(two_workers, worker0={"profile": None}, worker1={})
    assert results.gather(two_workers.config, 1, 2)["step_parts"] == {}


def test_reports_that_are_missing(two_workers):
    write_reports(two_workers, worker0={"global_step": 4, "examples": 8, "train_secs": 0.0, "loss": None})
    found = results.gather(two_workers.config, 1, 2)
    assert found["missing"] == ["ps:0", "worker:1"]
    assert found["figures"]["steps_per_sec"] is None and found["figures"]["staleness"] is None
    assert (found["curve"], found["metrics"], found["evaluations"]) == ([], {}, [])


def test_nobody_holds_a_report_of_nothing(tmp_path, two_workers):
    found = results.gather(two_workers.config, 1, 2)
    assert found["missing"] == ["ps:0", "worker:0", "worker:1"] and set(found["figures"].values()) == {None}


def test_a_run_is_described_with_what_there_is():
    figures = dict.fromkeys(results.FIGURES) | {"wall_secs": 2.0}
    record = {
        "outcome": "done",
        "reason": "no report of worker:0: its part is not counted",
        "figures": figures,
        "metrics": {},
    }
    assert describe(record) == "done in 2.0 s (no report of worker:0: its part is not counted)"


def test_the_machine_is_described_and_others_work_is_told_apart(tmp_path):
    found = machine.describe()
    assert found["cores"] >= 1 and found["ps_train"] and set(machine.load()) == {"load", "free_bytes"}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("cpu  100 50 200 9999 77 10 40 5\ncpu0 1\n")
    use = machine.Use.now(tmp_path)
    assert use.all_secs == pytest.approx(400 / os.sysconf("SC_CLK_TCK"))
    assert machine.Use.now(tmp_path / "none").others_since(use, 1.0) is None
