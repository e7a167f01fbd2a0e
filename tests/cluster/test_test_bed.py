"""The script of several hosts on one machine: a job on slow links, and an end that leaves nothing behind."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from harness import START_SECS, checkpoint_of
from launchers import PATH, ROOT, Launched
from namespaces import why_not

pytestmark = pytest.mark.cluster
BUILTIN_BYTES = 108_000  # of variables and slots; what a step pulls is a third of it


@pytest.fixture
def bed(tmp_path):
    """Starts the script with these arguments."""
    if why_not():
        pytest.skip(why_not())
    if not shutil.which("tc", path=PATH):
        pytest.skip("slows links down, which needs the command tc (iproute2)")
    started = []

    def start(*args, path=PATH):
        env = {**os.environ, "PATH": path}
        script = ROOT / "examples" / "hosts_on_one_machine.sh"
        started.append(Launched(["bash", script, *args], tmp_path / "log", env, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.end(20)  # it takes its namespaces away


def left_of(process):
    """Namespaces of a run."""
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\bbed{process.pid}\b\S*|\bbed{process.pid}h\d+", names)


def test_a_job_on_slow_links(bed, tmp_path):
    run = bed("1", "2", "2", "--train_steps=12", "--train_dir=train", "--report_file=report.json")
    assert run.wait(START_SECS) == 0, run.tail()
    assert checkpoint_of(tmp_path / "train")["global_step"] >= 12
    began, ended = (
        run.log.find(text) for text in ("worker:0 listening at 10.78.0.2:2222", "target of 12 reached")
    )
    assert 0 <= began < ended, run.tail()
    assert not left_of(run)


def test_the_links_are_as_slow_as_asked_for(bed):
    run = bed("1", "1", "2", "--train_steps=100000", "--log_every_secs=1")
    run.wait_for_line(r"(?s)(worker:0 step .* steps/s.*){3}", START_SECS)
    rates = re.findall(r"worker:0 step .* ([\d.]+) steps/s", run.log)
    assert float(rates[-1]) < 2 * 250_000 / (BUILTIN_BYTES / 3), "2 Mbit/s are 250 kB/s each way"
    assert left_of(run)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait(30) == 143, run.tail()
    assert not left_of(run)


def test_its_status_is_that_of_the_task_that_failed_first(bed, tmp_path):
    """A worker that fails takes the ps along, which is earlier in the list."""
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\ncase "$*" in *--job_name=ps*) sleep 1; exit 138;; *) exit 1;; esac\n')
    fake.chmod(0o755)
    run = bed("1", "1", "2", path=f"{fake.parent}:{PATH}")
    assert run.wait(30) == 1, run.tail()
    assert not left_of(run)


def test_its_use_is_told(bed):
    run = bed("1")
    assert run.wait(10) == 1
    assert "hosts_on_one_machine.sh NUM_PS NUM_WORKERS MBIT [train flags]" in run.log
