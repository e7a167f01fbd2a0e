"""`python -m ps_train experiment` with real runs: its files, a kill in the middle, a run that fails, Ctrl-C, the example."""

import csv
import html.parser
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from test_examples import needs_fashion_mnist
from test_local_cluster import Launcher, expect_no_task_left

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not pathlib.Path("/proc/self/environ").exists(), reason="finds the tasks in /proc"),
]

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN_SECS = 60  # a start, some steps, an evaluation, with other work there
END_SECS = 25  # from a signal to the last task's end
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
# Slow enough to be stopped in the middle of its second run.
SLOW_MODEL = """\
import time
from ps_train import builtin_model
from ps_train.compat import tf

def input_fn(context):
    def wait(image, label):
        time.sleep(context.params.get("secs", 0.02))
        return image, label
    data = builtin_model.input_fn(context)
    slow = lambda image, label: tf.numpy_function(wait, [image, label], [tf.float32, tf.int64])
    shaped = lambda image, label: (tf.ensure_shape(image, [None, 64]), tf.ensure_shape(label, [None]))
    return data.map(slow).map(shaped)

def model_fn(features, labels, mode, params):
    if params.get("is_broken", False):
        raise ValueError("it is broken")
    return builtin_model.model_fn(features, labels, mode, params)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_MODEL)
    return tmp_path


def experiment(folder, *flags):
    return Launcher(folder, "experiment", "--model=slow.py", "--out=out", "--batch_size=16", *flags)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Page(html.parser.HTMLParser):
    """Its text, and the addresses that it would load or lead to."""

    def __init__(self, path):
        super().__init__()
        self.text, self.addresses = "", []
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag, attrs):
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]

    def handle_data(self, data):
        self.text += data


def speed_while_both_trained(own, others):
    """Global steps a second of the chief's curve from the step on at which both workers have made one; None: never."""
    secs, steps = [[point[i] for point in own] for i in (0, 1)]
    begun = max(steps[0], others[0][1])
    if begun >= steps[-1]:
        return None
    return (steps[-1] - begun) / (secs[-1] - float(np.interp(begun, steps, secs)))


def check_row(row, folder):
    """A row of runs.csv is what the reports of its tasks say."""
    chief, other, ps = (
        json.loads((folder / name).read_text())
        for name in ("report.json", "report.worker1.json", "report.ps0.json")
    )
    evaluator = json.loads((folder / "report.evaluator0.json").read_text())
    examples, steps = chief["examples"] + other["examples"], chief["global_step"]
    assert (int(row["global_step"]), int(row["examples"])) == (steps, examples)
    assert float(row["loss"]) == chief["loss"]
    rate = speed_while_both_trained(chief["curve"], other["curve"])
    if rate is None:
        assert row["steps_per_sec"] == row["examples_per_sec"] == row["train_secs"] == ""
    else:
        assert float(row["steps_per_sec"]) == pytest.approx(rate), (chief["curve"], other["curve"])
        assert float(row["train_secs"]) == pytest.approx(steps / rate, abs=0.001)
        assert float(row["examples_per_sec"]) == pytest.approx(examples * rate / steps, rel=0.01)
    assert float(row["cpu_secs"]) == pytest.approx(
        chief["cpu_secs"] + other["cpu_secs"] + ps["cpu_secs"], abs=0.01
    )
    assert float(row["eval_accuracy"]) == evaluator["metrics"]["accuracy"]
    assert float(row["wall_secs"]) > chief["train_secs"] and float(row["load_before"]) >= 0
    return chief


def test_a_kill_in_the_middle_and_the_same_again(folder):
    flags = ("--grid=update=async,sync", "--seeds=2", "--train_steps=40")
    with experiment(folder, *flags) as launcher:
        launcher.wait_for(
            lambda: "run 2 of 4: update=sync seed=1" in launcher.out, "second run", 2 * RUN_SECS
        )
        log = folder / "out" / "runs" / "update=sync-1" / "logs" / "worker0.log"
        launcher.wait_for(lambda: log.exists() and " step " in log.read_text(), "step", RUN_SECS)
        launcher.process.kill()
        launcher.process.wait(10)
        assert json.loads((log.parents[1] / "run.json").read_text())["outcome"] == "running"
        first = json.loads((folder / "out" / "runs" / "update=async-1" / "run.json").read_text())
        assert first["outcome"] == "done" and not (folder / "out" / "runs.csv").exists()
        again = go_on_at_once(folder, launcher, flags)
    assert again.endswith("4 of 4 runs done. Report: out/report.html\n")
    check_files(folder / "out", first)

    before = (folder / "out" / "runs.csv").read_text()
    with experiment(folder, *flags) as launcher:
        assert launcher.wait(RUN_SECS) == 0, launcher.tails()
        assert launcher.out.count(": done before\n") == 4
    assert (folder / "out" / "runs.csv").read_text() == before

    with experiment(folder, *flags, "--batch_size=8") as launcher:
        assert launcher.wait(RUN_SECS) == 1, launcher.tails()
        difference = "other settings: --batch_size=16 where there is now --batch_size=8."
        assert f"out/runs/update=async-1 (and 3 more folders) has the result of {difference}" in launcher.err


def go_on_at_once(folder, killed, flags):
    """Output of the same command, which starts no run before the tasks of the killed one have ended."""
    with experiment(folder, *flags) as launcher:
        launcher.wait_for(lambda: "run 2 of 4: update=sync seed=1" in launcher.out, "second run", END_SECS)
        assert killed.pids() == []
        assert launcher.wait(5 * RUN_SECS) == 0, launcher.tails()
        expect_no_task_left(launcher)
        assert (
            "run 1 of 4: update=async seed=1: done before\nrun 2 of 4: update=sync seed=1\nrun 2 of 4: done in "
            in launcher.out
        )
        return launcher.out


def check_files(out, first):
    found = rows(out / "runs.csv")
    assert [row["run"] for row in found] == [
        "update=async-1",
        "update=sync-1",
        "update=async-2",
        "update=sync-2",
    ]
    assert {(row["outcome"], row["exit_status"]) for row in found} == {("done", "0")}
    for row in found:
        chief = check_row(row, out / "runs" / row["run"])
        assert (row["staleness"] != "") == (row["update"] == "async")
        # In async, the other worker may make the last step of all.
        assert 0 <= chief["global_step"] - chief["curve"][-1][1] <= (row["update"] == "async")
    assert float(found[0]["wall_secs"]) == first["figures"]["wall_secs"], (
        "the first run is that before the kill"
    )
    assert int(found[1]["global_step"]) == 40, "the run that was cut off began anew"
    assert float(found[1]["examples"]) == 2 * 16 * 40
    evaluations = rows(out / "evaluations.csv")
    check_evaluations(evaluations, found, out)
    curves = rows(out / "curves.csv")
    assert {row["run"] for row in curves} == {row["run"] for row in found}
    page = Page(out / "report.html")
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "What the figures support" in page.text and "of 2 seeds" in page.text
    assert "tasks shared" in page.text or "processors" in page.text
    assert re.search(
        r"-m ps_train train --cluster_resolver=flags .*--update=sync --save_checkpoint_steps=4 --keep_checkpoint_max=0 --seed=1 --evaluate=true",
        page.text,
    )
    if HAS_MATPLOTLIB:
        names = {path.name for path in (out / "plots").iterdir()}
        assert {"held_out_accuracy.png", "held_out_accuracy.svg", "examples_per_sec.png"} <= names
        assert len(page.addresses) == len(names) / 2
    else:
        assert "No plots: matplotlib is not installed." in page.text


def check_evaluations(evaluations, runs, out):
    """Some of each run, in order, the last one that of its end; and what is left of the checkpoints."""
    for run in runs:
        own = [row for row in evaluations if row["run"] == run["run"]]
        steps = [int(row["global_step"]) for row in own]
        secs = [float(row["train_secs"]) for row in own if row["train_secs"]]
        assert steps == sorted(set(steps)) and secs == sorted(secs)
        if run["update"] == "sync":
            assert steps == list(range(0, 41, 4))
        else:  # the chief saves when a step of its own is over, and it may make few of them
            assert len(steps) >= 2 and steps[0] == 0
        assert own[-1]["eval_accuracy"] == run["eval_accuracy"] and str(steps[-1]) == run["global_step"]
        if run["train_secs"]:
            assert (secs[0], secs[-1]) == pytest.approx((0.0, float(run["train_secs"])), abs=0.001)
        for row in own:
            share = int(row["global_step"]) / int(run["global_step"])
            assert int(row["examples"]) == pytest.approx(share * int(run["examples"]), abs=1)
        left = {path.name for path in (out / "runs" / run["run"]).glob("*.index")}
        assert left == {f"model.ckpt-{steps[-1]}.index"}


def test_a_run_that_fails_is_recorded_and_the_next_one_runs(folder):
    flags = ("--grid=model_params.is_broken=true,false", "--seeds=1", "--train_steps=10", "--num_workers=1")
    with experiment(folder, *flags) as launcher:
        assert launcher.wait(3 * RUN_SECS) == 1, launcher.tails()
        out = launcher.out
    assert re.search(r"^run 1 of 2: failed: worker:0 failed \(status 1\): .*it is broken", out, re.MULTILINE)
    assert re.search(r"^run 2 of 2: done in [\d.]+ s, step 10, ", out, re.MULTILINE)
    assert "1 of 2 runs done, 1 failed; the same command again runs what is missing." in out
    failed, done = rows(folder / "out" / "runs.csv")
    assert (failed["outcome"], failed["exit_status"], done["outcome"]) == ("failed", "1", "done")
    assert (
        "it is broken" in failed["reason"]
        and "1 of 2 runs failed" in Page(folder / "out" / "report.html").text
    )


def test_ctrl_c_ends_the_run_in_order_and_leaves_no_result(folder):
    flags = ("--grid=update=async,sync", "--train_steps=100000", "--num_workers=1")
    with experiment(folder, *flags) as launcher:
        log = folder / "out" / "runs" / "update=async-1" / "logs" / "worker0.log"
        launcher.wait_for(lambda: log.exists() and " step " in log.read_text(), "step", RUN_SECS)
        os.kill(launcher.process.pid, signal.SIGINT)
        assert launcher.wait(END_SECS + 10) == 130, launcher.tails()
        assert launcher.pids() == [] and "Traceback" not in launcher.err
        assert "run 1 of 6: stopped by SIGINT; it has no result" in launcher.err
        assert "0 of 6 runs done; the same command again runs what is missing." in launcher.out
    assert rows(folder / "out" / "runs.csv") == []
    assert "6 of 6 runs have no result yet" in Page(folder / "out" / "report.html").text


@needs_fashion_mnist
def test_the_example_of_a_straggler(tmp_path):
    script = [
        str(ROOT / "examples" / "straggler_experiment.sh"),
        str(tmp_path / "out"),
        "60",
        "--seeds=1",
        "--noevaluate",
    ]
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # `python` is this one
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PATH": path}
    done = subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=6 * RUN_SECS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = rows(tmp_path / "out" / "runs.csv")
    assert [int(row["train_steps"]) for row in found] == [60, 60, 20, 20, 30, 30]
    by_point = {(row["train_steps"], row["model_params.slow"]): row["steps_per_sec"] for row in found}
    # In sync all wait for it, 50 ms a step, but for the first step and what its input had ready by then: four batches at most.
    assert float(by_point["20", "2:50"]) < 19 / (15 * 0.05)
