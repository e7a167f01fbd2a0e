"""Tasks that die, are stopped, or were given something else than their peers."""

import re
import signal
import socket

import numpy as np
import pytest
from harness import START_SECS, checkpoint_of

pytestmark = pytest.mark.cluster
ENDLESS = ["--train_steps=1000000", "--log_every_secs=0.2"]


def wait_for_step(task, step):
    """Waits until the task's log shows this step or a later one; the step shown."""
    shown = 0
    while shown < step:
        shown = int(task.wait_for_line(rf"step ((?!{shown}\b)\d+)/[^\n]*\n\Z")[1])
    return shown


def test_backup_worker_is_killed(make_job):
    """The two that are needed go on, with the mean of two gradients each time, to the exact target."""
    flags = ["--update=sync", "--replicas_to_aggregate=2", "--train_steps=300", "--log_every_secs=0.2"]
    job = make_job(1, 3, flags=flags, params="slow=0:10", timeout_secs=8)
    ps, chief, other, backup = job.start_all()
    wait_for_step(backup, 10)
    backup.kill()
    job.expect_exits(0, [ps, chief, other])
    assert checkpoint_of(job.train_dir)["global_step"] == 300


def test_late_gradients_of_a_backup_worker_are_counted(make_job):
    """The slow one mostly comes third of two: it goes on with fresh variables, and that gradient is dropped."""
    flags = ["--update=sync", "--replicas_to_aggregate=2", "--train_steps=60"]
    job = make_job(1, 3, flags=flags, params="slow=2:100")
    job.start_all()
    job.expect_exits(0)
    slow = job.tasks[3]
    assert slow.report["dropped_gradients"] > 0, slow.tail()
    assert re.search(r"\d+ of \d+ gradients? were dropped: the update was made without them", slow.log), (
        slow.tail()
    )
    given = sum(task.report["local_steps"] - task.report["dropped_gradients"] for task in job.tasks[1:])
    assert given == 2 * 60


def test_chief_is_killed_while_a_slow_worker_computes(make_job):
    """Nearly always it has given its gradient by then; it comes back and updates in lock-step go on, to the same end."""
    job = make_job(
        1, 2, flags=["--update=sync", "--train_steps=60", "--log_every_secs=0.2"], params="slow=1:150"
    )
    job.start_all()
    ps, chief, other = job.tasks
    wait_for_step(chief, 10)
    chief.kill()
    again = job.start("worker:0")
    job.expect_exits(0, [ps, other, again])
    again.wait_for_line(r"rejoined the living model at step \d+", 1)
    assert again.report["restored_from"] == "living ps"
    assert checkpoint_of(job.train_dir)["global_step"] == 60


def test_sync_worker_is_killed_and_comes_back(make_job):
    flags = ["--update=sync", "--train_steps=100", "--log_every_secs=0.2"]
    job = make_job(2, 2, flags=flags, params="slow=0:30")
    job.start_all()
    other = job.tasks[3]
    wait_for_step(other, 10)
    other.kill()
    again = job.start("worker:1")
    job.expect_exits(0, [*job.tasks[:3], again])
    assert checkpoint_of(job.train_dir)["global_step"] == 100


def test_sigterm_of_the_chief(make_job):
    """It saves where it was and ends with 143; started again it goes on from there."""
    flags = [*ENDLESS, "--save_checkpoint_steps=1000000"]
    job = make_job(1, 1, flags=flags, params="slow=0:10")
    ps, chief = job.start_all()
    step = wait_for_step(chief, 20)
    chief.send(signal.SIGTERM)
    job.expect_exits(143, [chief], secs=10)
    saved = int(checkpoint_of(job.train_dir)["global_step"])
    assert saved >= step
    report = chief.report
    assert (report["outcome"], report["reason"]) == ("stopped", "stopped by SIGTERM")
    assert report["checkpoint"].endswith(f"model.ckpt-{saved}") and report["global_step"] == saved
    ps.send(signal.SIGTERM)
    job.expect_exits(143, [ps], secs=10)
    assert ps.report["outcome"] == "stopped"


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_signal_to_the_whole_job_loses_no_step(make_job, update):
    """Whoever gets it first: the last step that any worker has done is in the checkpoint."""
    flags = [*ENDLESS, f"--update={update}", "--save_checkpoint_steps=1000000"]
    job = make_job(1, 3, flags=flags, params="slow=2:100")
    ps, *workers = job.start_all()
    for worker in workers:
        wait_for_step(worker, 20)
    for worker in workers:
        worker.send(signal.SIGINT)
    job.expect_exits(130, workers, secs=15)
    saved = int(checkpoint_of(job.train_dir)["global_step"])
    assert saved >= max(worker.report["global_step"] for worker in workers)
    if update == "async":
        assert saved == sum(worker.report["local_steps"] for worker in workers)
    assert workers[0].report["global_step"] == saved


def test_ps_is_lost_while_the_chief_waits_for_the_others(make_job):
    """The chief's data is used up; it restores the model on the new ps, trains on and ends with the others."""
    flags = ["--save_checkpoint_steps=20", "--log_every_secs=0.2"]
    job = make_job(2, 2, flags=flags, params="batches=10:120,slow=1:100")
    _, ps, chief, other = job.start_all()
    chief.wait_for_line("waiting for worker:1 .* to finish")
    other.wait_for_line(r"step [6-9]\d, ")
    ps.kill()
    again = job.start("ps:1")
    job.expect_exits(0, [job.tasks[0], again, chief, other])
    assert "restored " in chief.log and "a new one" in chief.log
    assert chief.report["local_steps"] == 20 and other.report["local_steps"] > 120
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"]


def test_ps_is_lost_when_the_target_is_reached_and_not_saved(make_job):
    """The workers stay until the last step is saved; here they go back with the model and reach the target once more."""
    flags = ["--train_steps=150", "--save_checkpoint_steps=1000", "--log_every_secs=0.2"]
    job = make_job(1, 3, flags=flags, params="slow=all:50", timeout_secs=40)
    ps, chief, *others = job.start_all()
    wait_for_step(chief, 10)
    chief.send(signal.SIGSTOP)
    for other in others:
        other.wait_for_line(
            f"at the target: waiting for worker:0 at {job.worker_hosts[0]} to save and to end the job"
        )
    ps.kill()
    again = job.start("ps:0")
    chief.send(signal.SIGCONT)
    job.expect_exits(0, [again, chief, *others])
    assert "restored " in chief.log and checkpoint_of(job.train_dir)["global_step"] >= 150
    assert sum(worker.report["local_steps"] for worker in (chief, *others)) > 250


def test_ps_in_another_order_on_one_worker(make_job):
    job = make_job(2, 2, flags=["--train_steps=20"])
    swapped = ",".join(reversed(job.ps_hosts))
    job.start_all(["ps:0", "ps:1"])
    wrong = job.start("worker:0", ps_hosts=swapped)
    job.expect_exits(1, [wrong])
    said = wrong.report["reason"].splitlines()
    assert re.fullmatch(
        r"This task and ps:[01] at \S+ were given different clusters. Start all tasks with the same lists.",
        said[0],
    )
    assert said[1:] == [
        f"Job 'ps' has the same addresses in another order: {swapped} here, {','.join(job.ps_hosts)} there."
    ]


@pytest.mark.parametrize(
    ("flags", "params", "difference"),
    [
        (
            ["--update=sync"],
            "",
            "The updates are sync with 2 of 2 gradients for worker:1 and async for the others.",
        ),
        ([], "optimizer=adam", "Variable beta1_power (float32 [] on ps:0) is worker:1's alone."),
    ],
)
def test_a_worker_with_another_model_or_rule_is_refused_and_the_rest_go_on(
    make_job, flags, params, difference
):
    job = make_job(1, 2, flags=ENDLESS, params="slow=0:10")
    ps, chief = job.start_all(["ps:0", "worker:0"])
    step = wait_for_step(chief, 10)
    wrong = job.start("worker:1", *flags, model_params=params or job.params)
    job.expect_exits(1, [wrong])
    assert "worker:1 builds another model than the others train." in wrong.report["reason"]
    assert difference in wrong.report["reason"].splitlines(), wrong.report["reason"]
    right = job.start("worker:1")
    wait_for_step(right, wait_for_step(chief, step + 10) + 10)
    for task in (right, chief, ps):
        task.send(signal.SIGTERM)
    job.expect_exits(143, [right, chief, ps])


def test_port_that_is_taken(make_job):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        job = make_job(1, 1)
        ps = job.start("ps:0", ps_hosts=address)
        job.expect_exits(138, [ps])
    assert ps.report["reason"] == (
        f"{address} (ps:0) is in use by another process. End that process or pick another port."
    )
    assert len(ps.log.splitlines()) == 1


def test_port_that_is_taken_among_the_ranks_of_mpirun(make_job, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.setenv(name, "2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = make_job(1, 1)
        given = dict.fromkeys(("job_name", "task_index", "ps_hosts", "worker_hosts"))
        worker = job.start("worker:0", port_base=port - 1, **given)
        job.expect_exits(138, [worker])
    assert worker.report["reason"] == (
        f"127.0.0.1:{port} (worker:0) is in use by another process. End that process or pick another port (--port_base)."
    )


def test_error_in_the_model_ends_every_task(make_job, tmp_path):
    """One line on the task that has it, and its name on all others; nobody waits for a bound."""
    model = tmp_path / "faulty.py"
    model.write_text("from ps_train.builtin_model import input_fn\n\ndef model_fn(features, labels, mode, params):\n"
                     "    return params['unitz']\n")  # fmt: skip
    job = make_job(1, 2)
    ps, other = job.start_all(["ps:0", "worker:1"])
    other.wait_for_line("waiting for worker:0 at .* to initialize or restore the model")
    chief = job.start("worker:0", model=model)
    job.expect_exits(1, secs=START_SECS / 2)
    assert "unitz" in chief.report["reason"] and str(model) in chief.report["reason"]
    assert ps.report["reason"] == other.report["reason"] == f"worker:0 failed: {chief.report['reason']}"


CORRUPT = """
import itertools
import time

import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    def numbers():
        for number in itertools.count():
            if (context.shard_index, number) == (context.params["shard"], context.params["at"]):
                time.sleep(context.params["late_secs"])
                raise ValueError("corrupt record")
            time.sleep(0.01)
            yield float(number), 0

    return tf.data.Dataset.from_generator(numbers, (tf.float32, tf.int64), ([], []))


def model_fn(features, labels):
    w = tf1.get_variable("w", [])
    return ps_train.ModelSpec(loss=(w - 1.0) ** 2 + 0.0 * features, optimizer=tf1.train.GradientDescentOptimizer(0.1))
"""


@pytest.mark.parametrize(
    ("update", "shard", "at"),
    [("async", 0, 40), ("async", 1, 40), ("sync", 0, 40), ("sync", 1, 40), ("async", 0, 0)],
)
def test_the_model_is_saved_when_the_data_of_one_is_corrupt(make_job, tmp_path, update, shard, at):
    """The error says nothing against what was learnt till then, be it the chief's own or another worker's."""
    model = tmp_path / "corrupt.py"
    model.write_text(CORRUPT)
    job = make_job(
        1,
        2,
        str(model),
        [*ENDLESS, f"--update={update}"],
        f"shard={shard},at={at},late_secs={2 if at == 0 else 0}",
    )
    _, *workers = job.start_all()
    job.expect_exits(1)
    assert "corrupt record" in workers[1 - shard].report["reason"], workers[1 - shard].tail()
    assert checkpoint_of(job.train_dir)["global_step"] >= 30, job.tails()
    assert "going on without it" not in workers[0].log


@pytest.mark.parametrize("update", ["async", "sync"])
def test_an_update_that_fails_ends_every_task(make_job, update):
    """In sync it is the chief's thread that meets the error, while all wait for their tokens."""
    job = make_job(1, 2, flags=[*ENDLESS, f"--update={update}"], params="bad_update=20")
    job.start_all()
    job.expect_exits(1)
    for task in job.tasks:
        assert "InvalidArgumentError: assertion failed: [no rate for]" in task.report["reason"], task.tail()


def test_one_with_another_target_is_refused(make_job):
    job = make_job(1, 2, flags=["--update=sync", "--train_steps=300"])
    ps, chief = job.start("ps:0"), job.start("worker:0")
    other = job.start("worker:1", "--train_steps=900")
    job.expect_exits(1, [other])
    assert other.report["reason"] == (
        "worker:1 is to train up to step 900, and the chief up to step 300. Give all tasks the same --train_steps (a script: "
        "the same last_step)."
    )
    job.start("worker:1")
    job.expect_exits(0, [ps, chief, job.tasks[-1]])
    assert chief.report["global_step"] == 300


def test_a_worker_that_sync_needs_never_comes(make_job):
    job = make_job(1, 2, flags=[*ENDLESS, "--update=sync"], timeout_secs=6)
    ps, chief = job.start("ps:0", startup_timeout_secs=8), job.start("worker:0", startup_timeout_secs=8)
    job.expect_exits(138, [chief], secs=START_SECS)
    job.expect_exits(138, [ps], secs=6 + 15)
    assert f"waiting for worker:1 at {job.worker_hosts[1]} to start: " in chief.log
    assert chief.report["reason"] == (
        f"not there for 8 s: worker:1 at {job.worker_hosts[1]}. An update takes 2 gradients. Start it, or give it longer by "
        "--startup_timeout_secs."
    )


def test_chief_is_gone_for_good(make_job):
    """Everyone ends with 138 within the bound and names it."""
    job = make_job(1, 2, flags=ENDLESS, params="slow=0:10", timeout_secs=6)
    ps, chief, other = job.start_all()
    wait_for_step(other, 10)
    chief.kill()
    job.expect_exits(138, [other], secs=6 + 15)
    job.expect_exits(138, [ps], secs=6 + 15)
    assert re.fullmatch(
        rf"gone for 6 s: worker:0 at {job.worker_hosts[0]} "
        r"\((last seen at global step \d+|had not made a step yet when last seen)\)",  # written every half second
        other.report["reason"],
    )
    assert ps.report["reason"] == "every worker has been gone for 6 s and the job is not over"


def test_who_ends_for_a_lost_peer_is_not_trained_without(make_job):
    """In sync: the chief stands still past the bound, the worker ends for that; the chief goes on and must not train alone."""
    flags = [
        "--update=sync",
        "--train_steps=1000000",
        "--log_every_secs=0.2",
        "--save_checkpoint_steps=1000000",
    ]
    job = make_job(1, 2, flags=flags, params="slow=0:10", timeout_secs=6)
    ps, chief, other = job.start_all()
    wait_for_step(other, 10)
    chief.send(signal.SIGSTOP)
    job.expect_exits(138, [other], secs=6 + 15)
    chief.send(signal.SIGCONT)
    job.expect_exits(138, [chief], secs=6 + 20)
    assert chief.report["global_step"] <= other.report["global_step"] + 1, chief.tail()


def test_async_worker_that_comes_late_and_one_that_is_killed(make_job):
    """The others never stop, and the model is not touched by who comes and goes."""
    job = make_job(1, 2, flags=ENDLESS, params="slow=0:10")
    ps, chief = job.start_all(["ps:0", "worker:0"])
    wait_for_step(chief, 10)
    other = job.start("worker:1")
    wait_for_step(other, 10)
    other.kill()
    again = job.start("worker:1")
    wait_for_step(again, wait_for_step(chief, 1) + 10)
    chief.send(signal.SIGTERM)
    job.expect_exits(143, [chief])
    shown = [int(step) for step in re.findall(r"step (\d+)/", chief.log)]
    assert shown == sorted(shown) and shown[-1] > 20
    np.testing.assert_allclose(checkpoint_of(job.train_dir)["w"], [2, -3], atol=0.5)


def test_an_async_worker_that_is_gone_is_named_by_the_chief(make_job):
    job = make_job(1, 2, flags=ENDLESS, params="slow=0:10", timeout_secs=6)
    _, chief, other = job.start_all()
    wait_for_step(other, 10)
    other.kill()
    chief.wait_for_line("warning: worker:1 has been silent for 6 s: going on without it", 6 + 10)
    again = job.start("worker:1")
    chief.wait_for_line("worker:1 is back")
    again.send(signal.SIGTERM)
    job.expect_exits(143, [again])
    chief.wait_for_line(r"warning: worker:1 has ended \(stopped by SIGTERM\): going on without it", 5)
    chief.send(signal.SIGTERM)
    job.expect_exits(143, [chief])


def test_a_worker_that_stood_still_through_the_job_s_end(make_job):
    """It finds the ps gone and the last checkpoint there: that is the end of the job, and no loss."""
    job = make_job(
        1, 2, flags=["--train_steps=300", "--log_every_secs=0.2"], params="slow=all:10", timeout_secs=6
    )
    ps, chief, other = job.start_all()
    wait_for_step(other, 20)
    other.send(signal.SIGSTOP)
    job.expect_exits(0, [ps, chief])
    other.send(signal.SIGCONT)
    job.expect_exits(0, [other])
    assert "has reached the target of 300 steps" in other.report["reason"]


@pytest.mark.parametrize("num_ps", [0, 1])
def test_who_comes_back_while_the_chief_is_ending_ends_with_it(make_job, num_ps):
    """In sync it would wait for an update that nobody makes; its data was used up before. With no ps the chief has the model."""
    flags = ["--update=sync", "--log_every_secs=0.1", *([] if num_ps else ["--colocate_ps"])]
    job = make_job(num_ps, 2, flags=flags, params="slow=all:30,batches=240:10", timeout_secs=6)
    *ps, chief, other = job.start_all()
    chief.wait_for_line(r"step ([2-9]\d|\d{3}),")
    other.kill()
    chief.wait_for_line(r"step ([5-9]\d|\d{3}),")
    job.expect_exits(0, [*ps, chief, job.start("worker:1")], secs=60)
    assert chief.report["local_steps"] == 240, "no more than its data"


def test_one_that_comes_when_a_ps_is_gone_waits_no_longer_than_the_others(make_job):
    flags = ["--train_steps=100000", "--peer_timeout_secs=6", "--startup_timeout_secs=300"]
    job = make_job(2, 2, flags=flags, params="slow=all:5")
    job.start_all(["ps:0", "ps:1"])
    chief = job.start("worker:0")
    chief.wait_for_line(r"step \d+/")
    job.tasks[1].kill()
    late = job.start("worker:1")
    job.expect_exits(138, [chief, late], secs=60)
    assert re.search(
        r"gone for 6 s: ps:1 at \S+ \(connection refused|ps:1 at \S+ has been gone", late.report["reason"]
    ), late.tail()
