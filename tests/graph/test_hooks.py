"""Session hooks: what a step's figures become, and when a checkpoint is due."""

import contextlib
import fcntl
import logging
import os
from types import SimpleNamespace

import pytest
from fakes import Clock, FakeGuard, FakeMonitor

from ps_train import hooks
from ps_train.checkpoint_hook import CheckpointHook
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.errors import PeerLostError, StoppedError, UsageError
from ps_train.hooks import RateMeter, StepHook, StepRunner
from ps_train.reports import Report

pytestmark = pytest.mark.graph


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(hooks.log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    shown = lambda: [record.getMessage() for record in caplog.records]  # noqa: E731
    shown.clear = caplog.clear
    return shown


@pytest.fixture
def graph():
    with tf1.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        yield graph


# The rate.


def test_rate_is_of_the_time_since_the_last_look(clock):
    meter = RateMeter(clock)
    meter.start(100)
    assert meter.update(150, 10, clock.now + 5) == (10, 2)
    assert meter.update(160, 15, clock.now + 10) == (2, 1)


def test_rate_after_a_roll_back_is_zero(clock):
    meter = RateMeter(clock)
    meter.start(100)
    assert meter.update(40, 3, clock.now + 1) == (0, 3)


def test_rate_of_no_time(clock):
    meter = RateMeter(clock)
    assert meter.update(0, 0, clock.now) == (0, 0)


# Steps.


class Run:
    """A run context and a coordinator in one: notes that a stop was asked for."""

    stop_requested = False

    def request_stop(self):
        self.stop_requested = True


def make_step_hook(clock, guard=None, train_steps=None, **options):
    report, monitor = Report(TaskId("worker", 0)), FakeMonitor()
    step_hook = StepHook(
        report, monitor, guard or FakeGuard(), tf1.train.get_global_step(), {"loss": None, "examples": None},
        train_steps, clock=clock, **options,
    )  # fmt: skip
    step_hook.begin()
    return step_hook, report, monitor


def bring_up(step_hook, step=0):
    """As a new session at this step does."""
    run = Run()
    step_hook.after_create_session(SimpleNamespace(run=lambda tensor: step), run)
    return run


def do_step(step_hook, step, loss=0.5, examples=32):
    run = Run()
    results = {"global_step": step, "loss": loss, "examples": examples, "begun": step - 1}
    step_hook.after_run(run, SimpleNamespace(results=results))
    return run


def test_steps_are_counted(graph, clock):
    step_hook, report, monitor = make_step_hook(clock)
    bring_up(step_hook, 5)
    assert monitor.fields == {"state": "training", "step": 5}
    assert step_hook.step == 5, (
        "what looks at it before the first step, as the trace's window does, is not to take it for 0"
    )
    for step in (7, 8):
        clock.now += 2
        assert not do_step(step_hook, step).stop_requested
    assert (report.global_step, report.local_steps, report.examples, report.train_secs) == (8, 2, 64, 4)
    assert monitor.fields == {
        "state": "training", "step": 8, "local_steps": 2, "loss": 0.5, "rate": 0.5, "local_rate": 0.5, "examples": 64,
        "secs": 4,
    }  # fmt: skip
    step_hook.end(None)
    assert monitor.fields["state"] == "ending"


def test_the_report_has_the_mean_loss_since_each_look(graph, clock):
    step_hook, report, _ = make_step_hook(clock)
    bring_up(step_hook)
    for step, loss in enumerate((8.0, 4.0, 2.0, 1.0), 1):
        clock.now += 0.3
        do_step(step_hook, step, loss=loss)
    assert report.curve == [[0.3, 1, 8.0], [0.9, 3, 3.0]], "the boards are told twice a second"
    for _ in range(2):  # the second session's end adds nothing
        step_hook.end(None)
        assert report.curve == [[0.3, 1, 8.0], [0.9, 3, 3.0], [1.2, 4, 1.0]]


def test_the_report_has_the_last_step_of_a_loop_that_failed(graph, clock):
    """The boards are told twice a second: of a job that diverges within that only the first step was in it."""
    step_hook, report, _ = make_step_hook(clock, pulls_ahead=0)
    bring_up(step_hook)
    for step, loss in enumerate((2.0, 50.0, 3e4), 1):
        clock.now += 0.1
        do_step(step_hook, step, loss=loss)
    assert report.loss == 2.0
    step_hook.note_last()
    assert (report.loss, report.global_step, report.local_steps) == (3e4, 3, 3)
    assert report.curve == [[0.1, 1, 2.0], [0.3, 3, 15025.0]]
    assert report.staleness_counts == {0: 3}


@pytest.mark.parametrize("skips", [False, True])
def test_a_step_that_fails_its_check_is_noted(graph, clock, skips):
    found = []
    step_hook, report, _ = make_step_hook(clock, note_bad=lambda *bad: found.append(bad))
    bring_up(step_hook, 15)
    step_hook.session = object()

    class Failing(StepRunner):
        def _prepare(self):
            pass

        def _run_one(self, step_context):
            step_hook.ask_to_stop("enough")
            text = "ps_train found the loss : Tensor had Inf values"
            raise tf.errors.InvalidArgumentError(None, None, text)

    runner = Failing(SimpleNamespace(step=None), step_hook, {}, skips_bad_numbers=skips)
    with contextlib.nullcontext() if skips else pytest.raises(tf.errors.InvalidArgumentError):
        runner.run(None)
    assert found == [("Inf in the loss", 15)] and report.skipped_steps == int(skips)


def test_without_a_loss_there_is_no_curve(graph, clock):
    step_hook, report, _ = make_step_hook(clock)
    bring_up(step_hook)
    clock.now += 1
    do_step(step_hook, 1, loss=None)
    step_hook.end(None)
    assert (report.loss, report.curve) == (None, [])


def test_time_of_training_goes_on_over_a_recovery(graph, clock):
    step_hook, report, _ = make_step_hook(clock)
    bring_up(step_hook)
    clock.now += 3
    do_step(step_hook, 1)
    clock.now += 10
    bring_up(step_hook, 0)
    clock.now += 1
    do_step(step_hook, 1)
    assert (report.train_secs, report.local_steps, report.global_step) == (14, 2, 1)


def test_progress_lines(graph, clock, lines):
    step_hook, *_ = make_step_hook(clock, train_steps=200, log_every_secs=10)
    bring_up(step_hook)
    for step in range(1, 43, 2):  # every half second a step of its own and one of another worker
        clock.now += 0.5
        do_step(step_hook, step, loss=1 / step)
    assert lines() == [
        "step 1/200, loss 1",
        "step 41/200, loss 0.02439, 4.0 steps/s (2.0 of them here)",
    ]


def test_a_slow_models_rate_is_not_rounded_to_nothing(graph, clock, lines):
    step_hook, _, monitor = make_step_hook(clock, log_every_secs=10)
    bring_up(step_hook)
    for step in (2, 4, 6):
        clock.now += 400
        do_step(step_hook, step, loss=0.5)
    assert (monitor.fields["rate"], monitor.fields["local_rate"]) == (0.005, 0.0025)
    assert lines()[-1] == "step 6, loss 0.5, 0.005 steps/s (0.0025 of them here)"


@pytest.mark.parametrize(("last_step", "told"), [(1, []), (43, ["step 43/200, loss 0.125"])])
def test_the_last_step_has_a_progress_line(graph, clock, lines, last_step, told):
    step_hook, *_ = make_step_hook(clock, train_steps=200, log_every_secs=10)
    bring_up(step_hook)
    do_step(step_hook, 1, loss=1.0)
    if last_step > 1:
        do_step(step_hook, last_step, loss=0.125)
    for _ in range(2):
        step_hook.end(None)
    assert lines() == ["step 1/200, loss 1", *told]


def test_target(graph, clock):
    step_hook, report, _ = make_step_hook(clock, train_steps=50)
    bring_up(step_hook, 48)
    assert not do_step(step_hook, 49).stop_requested
    assert do_step(step_hook, 51).stop_requested
    assert step_hook.describe_end() == "global step 51: target of 50 reached"


def test_target_that_is_reached_already(graph, clock):
    step_hook, report, _ = make_step_hook(clock, train_steps=50)
    assert bring_up(step_hook, 50).stop_requested
    assert step_hook.describe_end() == "global step 50: target of 50 reached already"
    assert report.local_steps == 0


def test_a_stop_signal_ends_the_loop_after_the_step(graph, clock):
    guard = FakeGuard(StoppedError("stopped by SIGTERM", 143), stop_signal=15)
    step_hook, *_ = make_step_hook(clock, guard)
    bring_up(step_hook)
    assert do_step(step_hook, 1).stop_requested


def test_a_decision_of_the_guard_ends_the_loop_before_the_step(graph, clock):
    guard = FakeGuard()
    step_hook, *_ = make_step_hook(clock, guard)
    assert step_hook.before_run(None) is not None
    guard.failure = PeerLostError("ps:0 is gone")
    with pytest.raises(PeerLostError, match="ps:0 is gone"):
        step_hook.before_run(None)


# Checkpoints.


@pytest.fixture
def saving(graph, clock, tmp_path):
    """Makes a CheckpointHook and its raw session; `set_step` changes the variable."""
    sessions = []

    def make(**options):
        step = tf1.train.get_global_step()
        report = Report(TaskId("worker", 0))
        saver = tf1.train.Saver(max_to_keep=None)
        hook = CheckpointHook(saver, str(tmp_path), step, report, clock=clock, **options)
        hook.begin()
        number = tf1.placeholder(tf.int64, [])
        assign = step.assign(number)
        session = tf1.Session()
        sessions.append(session)
        session.run(tf1.global_variables_initializer())
        return hook, report, session, lambda value: session.run(assign, {number: value})

    yield make
    for session in sessions:
        session.close()


def saved_steps(folder):
    return sorted(
        int(name.split("-")[1].split(".")[0]) for name in os.listdir(folder) if name.endswith(".index")
    )


def test_the_first_session_saves_at_once(saving, tmp_path):
    hook, report, session, _ = saving(save_secs=600)
    hook.after_create_session(session, None)
    assert saved_steps(tmp_path) == [0]
    assert report.checkpoint == str(tmp_path / "model.ckpt-0")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint", "model.ckpt-0.data-00000-of-00001", "model.ckpt-0.index", "model.ckpt-0.meta",
    ]  # fmt: skip


def test_a_restored_session_does_not(saving, tmp_path):
    hook, report, session, _ = saving(save_steps=10)
    report.checkpoint = str(tmp_path / "model.ckpt-40")
    hook.after_create_session(session, None)
    assert saved_steps(tmp_path) == []
    assert not hook.is_due(49) and hook.is_due(50)


def test_period_in_steps(saving, tmp_path):
    hook, _, session, set_step = saving(save_steps=10)
    hook.after_create_session(session, None)
    due = [
        step for step in range(35) if hook.is_due(step) and not [set_step(step), hook.save_if_due(session)][1]
    ]
    assert due == [10, 20, 30]
    assert saved_steps(tmp_path) == [0, 10, 20, 30]


def test_period_in_seconds(saving, clock):
    hook, _, session, _ = saving(save_secs=60)
    hook.after_create_session(session, None)
    clock.now += 59
    assert not hook.is_due(7)
    clock.now += 1
    assert hook.is_due(7)
    assert not hook.is_due(0), "nothing is new"


def test_both_periods(saving, clock):
    hook, _, session, _ = saving(save_steps=10, save_secs=60)
    hook.after_create_session(session, None)
    assert hook.is_due(10)
    clock.now += 60
    assert hook.is_due(1)


def test_a_model_that_was_rolled_back_is_saved(saving):
    hook, report, session, _ = saving(save_steps=10)
    report.checkpoint = "model.ckpt-40"
    hook.after_create_session(session, None)
    assert hook.is_due(35)


def test_the_step_is_read_anew_before_saving(saving, tmp_path):
    """Others have trained on since the step that this worker knows of."""
    hook, report, session, set_step = saving(save_steps=10)
    hook.after_create_session(session, None)
    set_step(13)
    hook.after_run(SimpleNamespace(session=session), SimpleNamespace(results=10))
    assert saved_steps(tmp_path) == [0, 13]
    assert report.checkpoint.endswith("model.ckpt-13")


def test_a_directory_that_cannot_be_written_does_not_end_the_training(saving, clock, tmp_path, lines):
    """It is said, tried again later, and the checkpoint before stands."""
    hook, report, session, set_step = saving(save_steps=10)
    hook.after_create_session(session, None)
    (tmp_path / "away").mkdir()
    for path in [*tmp_path.glob("model*"), tmp_path / "checkpoint"]:
        path.rename(tmp_path / "away" / path.name)
    (tmp_path / "away").rename(away := tmp_path.with_name("away"))
    tmp_path.rmdir()
    tmp_path.write_text("a file in the directory's place")
    set_step(10)
    hook.save_if_due(session)
    (line,) = lines()
    assert line.startswith("step 10 is not saved: ") and str(tmp_path) in line
    assert line.endswith("; training goes on, next try in 10 s")
    assert report.checkpoint.endswith("model.ckpt-0")
    assert not hook.is_due(30)
    clock.now += 10
    assert hook.is_due(30)
    tmp_path.unlink()
    away.rename(tmp_path)
    hook.save_if_due(session)
    assert saved_steps(tmp_path) == [0, 10] and not hook.is_due(12) and hook.is_due(20)


def test_a_last_step_that_cannot_be_saved_is_an_error(saving, tmp_path):
    hook, _, session, set_step = saving(save_steps=10)
    hook.after_create_session(session, None)
    set_step(7)
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    tmp_path.write_text("a file in the directory's place")
    with pytest.raises(UsageError, match=r"Step 7 cannot be saved: .* newest checkpoint is .*model.ckpt-0"):
        hook.end(session)


def test_an_error_that_is_not_the_directory_s_stays_what_it_is(saving):
    hook, _, session, _ = saving(save_steps=10)
    hook.after_create_session(session, None)
    session.close()
    with pytest.raises(RuntimeError):
        hook.save(session, 10)
    for error in (
        tf.errors.UnavailableError(None, None, "gone"),
        tf.errors.FailedPreconditionError(None, None, "no w"),
    ):
        with pytest.raises(type(error)):
            hook._why_unwritable(error)


def test_another_job_in_the_same_directory_is_named(saving, tmp_path, lines):
    """Not those that were there before, nor one's own; once."""
    for step in (3, 5):
        before, _, session, set_step = saving(save_steps=1)
        set_step(step)
        before.after_create_session(session, None)
        before.end(session)
    lines.clear()
    hook, _, session, set_step = saving(save_steps=10)
    hook.after_create_session(session, None)
    for step in (10, 20):
        set_step(step)
        hook.save(session, step)
    assert lines() == []
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"\n')
    (tmp_path / "model.ckpt-99.index").touch()
    hook.save(session, 20)
    hook.save(session, 20)
    (line,) = lines()
    assert line.startswith(f"{tmp_path / 'model.ckpt-99'} is not of this job: another one is saving there.")


def test_what_a_save_that_was_cut_off_has_left_is_removed(saving, tmp_path, lines):
    """Not while another job is saving there, whose files they may be."""
    torn = tmp_path / "model.ckpt-9.data-00000-of-00001.tempstate14409882315215214105"
    kept = tmp_path / "model.ckpt-9.mine.tempstate"
    torn.touch(), kept.touch()
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    hook, _, session, _ = saving(save_steps=10)
    hook.after_create_session(session, None)
    assert torn.exists()
    hook.end(session)
    os.close(other)
    hook.after_create_session(session, None)
    assert not torn.exists() and kept.exists()
    assert f"removed what a save that was cut off had left in {tmp_path}" in lines()


def test_another_job_that_saves_there_at_the_same_time_is_named_at_once(saving, tmp_path, lines):
    """Not another session of this process; and no more once the other has ended."""
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    first, _, session, _ = saving(save_steps=10)
    first.after_create_session(session, None)
    first.after_create_session(session, None)
    (line,) = lines()
    assert line.startswith(
        f"another job is saving in {tmp_path}, too: each overwrites the other's checkpoints."
    )
    first.end(session)
    os.close(other)
    lines.clear()
    for _ in range(2):
        again, _, session, _ = saving(save_steps=10)
        again.after_create_session(session, None)
    assert lines() == []
    again.end(session)


def test_a_rescue_saves_a_whole_model_only(saving, tmp_path, lines):
    hook, _, session, set_step = saving(save_steps=10)

    def rescue(is_whole=True):
        hook.rescue(lambda: contextlib.nullcontext(session), lambda: is_whole)

    with pytest.raises(RuntimeError, match="just being brought up"):
        rescue()
    hook.after_create_session(session, None)
    set_step(4)
    with pytest.raises(RuntimeError, match="just being brought up"):
        rescue(is_whole=False)
    assert saved_steps(tmp_path) == [0]
    rescue()
    assert saved_steps(tmp_path) == [0, 4] and lines() == [f"saved {tmp_path / 'model.ckpt-4'}"]
    hook._optimizers = [SimpleNamespace(is_torn=lambda session: True)]
    set_step(5)
    with pytest.raises(RuntimeError, match="cut off halfway"):
        rescue()
    assert saved_steps(tmp_path) == [0, 4]


def test_the_last_step_of_a_session_is_saved_once(saving, tmp_path, lines):
    hook, _, session, set_step = saving(save_secs=600)
    for step in (5, 6):
        hook.after_create_session(session, None)
        set_step(step)
        hook.end(session)
        hook.end(session)
    assert saved_steps(tmp_path) == [0, 5, 6]
    assert lines() == [f"saved {tmp_path / 'model.ckpt-5'}", f"saved {tmp_path / 'model.ckpt-6'}"]
