"""SIGINT and SIGTERM to a task in each of its states: it ends within ten seconds, the chief after saving."""

import re
import signal
import time

import pytest
from harness import checkpoint_of

pytestmark = pytest.mark.cluster
IS_FRESH = True
ENDLESS = ["--train_steps=1000000", "--log_every_secs=0.2", "--save_checkpoint_steps=1000000"]


@pytest.fixture(params=["SIGINT", "SIGTERM"])
def end(request):
    """Sends the signal to a task and checks its end."""
    number = signal.Signals[request.param]

    def send(task, secs=10):
        started = time.monotonic()
        task.send(number)
        status = task.wait(secs + 5)
        took = time.monotonic() - started
        assert status == 128 + number, task.tail()
        assert took < secs, f"{task.name} took {took:.1f} s\n{task.tail()}"
        assert "Traceback" not in task.log, task.tail(60)
        assert task.report["outcome"] == "stopped", task.report

    return send


def test_waiting_for_a_ps(make_job, end):
    job = make_job(1, 1)
    chief = job.start("worker:0")
    chief.wait_for_line("waiting for ps:0")
    end(chief, 5)


def test_while_tensorflow_is_imported(make_job):
    """Nobody answers yet, and the status is that of later all the same."""
    job = make_job(1, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        task = job.start("worker:0")
        time.sleep(1.0)
        task.send(number)
        assert task.wait(20) == 128 + number, task.tail()
        assert "Traceback" not in task.log, task.tail(60)


def test_waiting_for_the_chief_and_an_idle_ps(make_job, end):
    job = make_job(1, 2)
    ps, other = job.start_all(["ps:0", "worker:1"])
    other.wait_for_line("waiting for worker:0")
    end(other, 5)
    end(ps, 5)


def test_between_the_batches_of_a_step(make_job, end):
    """A step takes a minute, and is not waited for."""
    job = make_job(1, 2, flags=[*ENDLESS, "--local_steps=300"], params="slow=all:200")
    ps, chief, other = job.start_all()
    chief.wait_for_line("variables are initialized")
    time.sleep(2.0)
    end(other, 5)
    end(chief, 5)


def test_blocked_in_sync(make_job, end):
    """Each waits for a worker that stands still; the chief saves."""
    job = make_job(1, 3, flags=[*ENDLESS, "--update=sync"])
    ps, chief, other, stopped = job.start_all()
    for task in (chief, other, stopped):
        task.wait_for_line(r"step [1-9]\d+/")
    stopped.send(signal.SIGSTOP)
    time.sleep(2)
    end(other)
    end(chief)
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"] > 10


STUCK = """
import time
import tensorflow as tf
from line import input_fn as line_input_fn, model_fn as line_model_fn

def input_fn(context):
    data = line_input_fn(context)
    def stuck(x, y):
        return tf.numpy_function(lambda x: (time.sleep(60), x)[1], [x], tf.float64), y
    stuck_data = data.skip(20).map(stuck).map(lambda x, y: (tf.ensure_shape(x, [4, 2]), y))
    return data.take(20).concatenate(stuck_data) if context.shard_index == 0 else data

def model_fn(features, labels, mode, params):
    if params.get("slow_build"):
        time.sleep(60)
    return line_model_fn(features, labels, mode, params)
"""


@pytest.fixture
def stuck_model(tmp_path, monkeypatch):
    from harness import MODELS

    path = tmp_path / "stuck.py"
    path.write_text(f"import sys; sys.path.append({str(MODELS)!r})\n{STUCK}")
    return path


def test_stuck_in_its_input(make_job, end, stuck_model):
    """No step ends any more on the chief, and what the other worker has done meanwhile is saved all the same."""
    job = make_job(1, 2, flags=ENDLESS, params="slow=1:10")
    job.model = stuck_model
    ps, chief, other = job.start_all()
    other.wait_for_line(r"step [1-9]\d\d+/")
    end(chief)
    assert checkpoint_of(job.train_dir)["global_step"] > 100


def test_while_the_graph_is_built(make_job, end, stuck_model):
    job = make_job(1, 1, params="slow_build=1")
    job.model = stuck_model
    ps, chief = job.start_all()
    chief.wait_for_line("listening")
    time.sleep(1)
    end(chief)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_to_every_task_at_once(make_job, update):
    """As a scheduler sends it: the ps tasks serve until the chief has saved the last step."""
    job = make_job(2, 2, flags=[*ENDLESS, f"--update={update}"], params="slow=all:10")
    tasks = job.start_all()
    for task in tasks[2:]:
        task.wait_for_line(r"step [1-9]\d+/")
    for task in tasks:
        task.send(signal.SIGTERM)
    job.expect_exits(143, secs=10)
    assert checkpoint_of(job.train_dir)["global_step"] == tasks[2].report["global_step"] >= 10
    assert "lost" not in tasks[2].log, tasks[2].tail()


@pytest.mark.parametrize("update", ["async", "sync"])
def test_to_a_ps_alone(make_job, update):
    """The chief saves what the ps is about to lose; a new ps goes on from there."""
    job = make_job(2, 2, flags=[*ENDLESS, f"--update={update}"], params="slow=all:10")
    _, ps, chief, _ = job.start_all()
    chief.wait_for_line(r"step [1-9]\d+/")
    ps.send(signal.SIGINT)
    assert ps.wait(10) == 130, ps.tail()
    saved = int(chief.wait_for_line(r"saved \S+ckpt-([1-9]\d*)", 1)[1])
    steps_before = [int(step) for step in re.findall(r"step (\d+)/", chief.log)]
    job.start("ps:1")
    restored = int(chief.wait_for_line(r"restored \S+ckpt-(\d+)")[1])
    assert restored == saved
    assert max(steps_before) - saved < 200, "a second's steps"


def test_to_the_chief_while_it_saves_for_a_ps(make_job):
    """A scheduler's signals take a second from one task to the next: that is no lost ps."""
    job = make_job(1, 2, "wide.py", ["--train_steps=1000000", "--save_checkpoint_steps=1000000"], "mb=200")
    ps, chief, other = job.start_all()
    chief.wait_for_line(r"step \d+/")
    ps.send(signal.SIGTERM)
    chief.wait_for_line("ps:0 is about to end")
    for task in (chief, other):
        task.send(signal.SIGTERM)
    job.expect_exits(143, secs=20)
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"], chief.tail()
