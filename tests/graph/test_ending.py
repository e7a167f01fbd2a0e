"""The end of a job: for whom the chief waits, and what a hook's request to stop means for the others."""

import logging
from types import SimpleNamespace

import pytest
from fakes import FakeGuard, FakeMonitor, FakeRuntime, FakeView

from ps_train.cluster import TaskId
from ps_train.compat import tf
from ps_train.ending import StopNoticeHook, StoppingPsWatch, WaitForSave, WaitForWorkersHook
from ps_train.errors import PeerLostError, StoppedError
from ps_train.logs import log

pytestmark = pytest.mark.graph


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.INFO, logger="ps_train")
    return lambda: [record.getMessage() for record in caplog.records]


WORKERS = [TaskId("worker", 1), TaskId("worker", 2)]
TRAINING = {"state": "training", "step": 9}


def pending(records, ages=None, waited=0.0, is_reached=False):
    hook = make_wait(records, ages)
    hook._is_reached = is_reached
    return hook.pending(waited)


def make_wait(records, ages=None, guard=None, **options):
    step_hook = SimpleNamespace(
        is_reached=False, session="s1", look=lambda session: None, end=lambda session: None
    )
    return WaitForWorkersHook(
        FakeMonitor(FakeView(records, ages)), WORKERS, guard or FakeGuard(), step_hook,
        on_idle=lambda session: None, stop_secs=30, peer_timeout_secs=60, **options,
    )  # fmt: skip


def test_workers_that_train_are_waited_for():
    records = {"worker:1": TRAINING, "worker:2": {"state": "ending", "step": 12}}
    assert pending(records, waited=1000) == ["worker:1 (training at step 9)", "worker:2 (ending at step 12)"]


@pytest.mark.parametrize("state", ["left", "failed", "stopped", "at target", "serving"])
def test_workers_that_have_ended_are_not(state):
    assert pending({"worker:1": {"state": state}, "worker:2": TRAINING}) == ["worker:2 (training at step 9)"]


def test_one_that_is_silent_counts_as_gone():
    records = {"worker:1": TRAINING, "worker:2": TRAINING}
    assert pending(records, {"worker:1": 59, "worker:2": 61}) == ["worker:1 (training at step 9)"]


def test_one_that_never_came_may_have_data():
    records = {"worker:1": {"state": "left"}}
    assert pending(records, waited=59) == ["worker:2 (has not joined)"]
    assert pending(records, waited=61) == []
    assert pending(records, is_reached=True) == [], "there is nothing left to do for it"


def test_at_the_target_a_worker_has_time_for_its_last_step(lines):
    records = {"worker:1": TRAINING, "worker:2": {"state": "left"}}
    assert pending(records, waited=29, is_reached=True) == ["worker:1 (training at step 9)"]
    assert pending(records, waited=31, is_reached=True) == []
    assert lines() == ["worker:1 did not leave within 30 s of the target; its last step is lost"]


STOPPED = {"state": "stopped"}


def stopping(waited, **records):
    hook = make_wait({f"worker:{name[1]}": record for name, record in records.items()})
    return hook.stopping(waited)


def test_after_a_signal_the_others_may_be_about_to_stop():
    assert stopping(1.4, w1=TRAINING, w2=TRAINING) == ["worker:1", "worker:2"]
    assert stopping(1.6, w1=TRAINING, w2=TRAINING) == [], "the signal was for the chief alone"
    assert stopping(2.9, w1=TRAINING, w2=STOPPED) == ["worker:1"]
    assert stopping(3.1, w1=TRAINING, w2=STOPPED) == []
    assert stopping(0.0, w1=STOPPED, w2={"state": "left"}) == []
    assert stopping(0.0, w1={"state": "serving"}, w2=STOPPED) == [], "it has no steps to save"


def test_a_signal_and_a_failure_end_the_wait():
    make_wait({"worker:1": STOPPED}, guard=FakeGuard(stop_signal=15)).end(None)
    guard = FakeGuard()
    guard.failure = PeerLostError("gone")
    make_wait({"worker:1": TRAINING}, guard=guard).end(None)


def test_a_ps_lost_during_the_wait_means_more_training():
    """The step function runs again on a new session: it is not over, and waits anew when it is called the next time."""
    hook = make_wait({"worker:1": STOPPED, "worker:2": STOPPED}, is_ps_lost=lambda error: True)

    def lost(session):
        raise tf.errors.CancelledError(None, None, "the session was lost")

    hook._step_hook.look = lost
    with pytest.raises(tf.errors.AbortedError, match="the session was lost"):
        hook.run(None)
    hook._step_hook.session, hook._step_hook.look = "s2", lambda session: None
    hook.run(None)
    assert not hook.is_over
    hook.run(None)
    assert hook.is_over


def test_members_leave_their_rounds_before_the_wait():
    left = []
    hook = make_wait({"worker:1": STOPPED, "worker:2": STOPPED}, members=[SimpleNamespace(leave=left.append)])
    hook.run(None)
    assert hook.is_over and left == ["s1"]


def test_a_chief_saves_before_it_is_over_and_goes_back_if_a_ps_is_lost_just_then():
    saved = []

    def save(session):
        if session == "s1":
            raise tf.errors.CancelledError(None, None, "lost while saving")
        saved.append(session)

    records = {"worker:1": {"state": "at target", "step": 12}, "worker:2": {"state": "left"}}
    hook = make_wait(records, finals=[SimpleNamespace(end=save)], is_ps_lost=lambda error: True)
    with pytest.raises(tf.errors.AbortedError, match="lost while saving"):
        hook.run(None)
    hook._step_hook.session = "s2"
    hook.run(None)
    assert not hook.is_over and not saved
    hook.run(None)
    assert hook.is_over and saved == ["s2"]


# A worker at the target stays until the chief has saved.


def wait_for_save(views, is_reached=True, guard=None, **options):
    """(hook, monitor): one look at each of these views."""
    monitor = FakeMonitor(views[0])
    pending = iter(views)

    def look(session):
        monitor.shown = next(pending)

    step_hook = SimpleNamespace(is_reached=is_reached, session="s1", look=look, end=lambda session: None)
    return WaitForSave("worker:0 at w0:1", monitor, guard or FakeGuard(), step_hook, **options), monitor


def test_a_worker_at_the_target_waits_for_the_end_of_the_job():
    """Not for the chief's own end: one that was stopped before had not saved this step."""
    views = [
        FakeView({"worker:0": {"state": state}}) for state in ("training", "at target", "stopped", "training")
    ]
    views.append(FakeView({"job": {"is_over": True}}))
    hook, monitor = wait_for_save(views)
    hook.run(None)
    assert hook.is_over and monitor.fields["state"] == "at target" and monitor.shown is views[-1]


def test_a_worker_without_data_does_not():
    hook, monitor = wait_for_save([FakeView({"worker:0": TRAINING})], is_reached=False)
    hook.run(None)
    assert hook.is_over and "state" not in monitor.fields


def test_nor_does_one_that_is_to_stop():
    guard = FakeGuard(StoppedError("stopped by SIGTERM", 143))
    hook, _ = wait_for_save([FakeView({"worker:0": TRAINING})], guard=guard)
    hook.run(None)
    assert hook.is_over


def test_a_worker_at_the_target_trains_on_after_a_roll_back():
    hook, monitor = wait_for_save([FakeView({"worker:0": TRAINING})] * 9, is_ps_lost=lambda error: True)

    def lost(session):
        raise tf.errors.FailedPreconditionError(None, None, "w is uninitialized")

    hook._step_hook.look = lost
    with pytest.raises(tf.errors.AbortedError, match="uninitialized"):
        hook.run(None)
    hook._step_hook.session = "s2"
    hook.run(None)
    assert not hook.is_over, "the loop goes on"


# A hook of the user's asks to stop.


class Asked:
    """A StepHook's side of it."""

    is_last = False
    reason = ""

    def ask_to_stop(self, reason):
        self.is_last, self.reason = True, reason


def make_notice(task, records=()):
    runtime = FakeRuntime(task, monitor=FakeMonitor(FakeView(dict(records))))
    runtime.monitor.run_id = "r1"
    runtime.monitor.published = {}
    runtime.monitor.publish = lambda key, **fields: runtime.monitor.published.update({key: fields})
    released = []
    runtime.guard = SimpleNamespace(release=lambda: released.append(1))
    member = SimpleNamespace(stays=False)
    return StopNoticeHook(runtime, Asked(), [member]), runtime, member, released


STOP_REQUEST = SimpleNamespace(stop_requested=True)


def test_a_request_on_the_chief_is_told_to_all():
    notice, runtime, member, _ = make_notice("worker:0")
    runtime.report.global_step = 15
    notice.after_run(SimpleNamespace(stop_requested=False), None)
    assert not notice._step_hook.is_last
    notice.after_run(STOP_REQUEST, None)
    assert notice._step_hook.reason == "a hook asked to stop"
    assert member.stays, "the others' gradients alone would make an update"
    assert runtime.monitor.published == {"stop": {"run": "r1", "step": 15}}
    notice.after_create_session(None, None)
    assert runtime.monitor.published == {"stop": {"run": "r1", "step": None}}, "the model may have gone back"


def test_a_request_on_another_worker_is_its_own():
    notice, runtime, member, _ = make_notice("worker:1")
    notice.after_run(STOP_REQUEST, None)
    assert notice._step_hook.is_last and not member.stays and not runtime.monitor.published


def test_the_step_hook_s_own_request_is_none():
    notice, runtime, *_ = make_notice("worker:0")
    notice._step_hook.is_last = True
    notice.after_run(STOP_REQUEST, None)
    assert not runtime.monitor.published


@pytest.mark.parametrize(
    ("chief", "job", "reason"),
    [
        ("left", {"is_over": True}, "worker:0 has ended the job"),
        ("training", {"is_over": True}, ""),
        ("left", {}, ""),
        ("failed", {}, ""),
    ],
)
def test_who_comes_back_to_a_job_that_the_chief_has_ended_ends(chief, job, reason):
    """In sync nobody makes the update that it waits for. A chief that is there again has another job."""
    notice, _, _, released = make_notice("worker:1", {"worker:0": {"run": "r1", "state": chief}, "job": job})
    notice.look()
    assert (notice._step_hook.reason, len(released)) == (reason, bool(reason))


@pytest.mark.parametrize("vacant", [{"ps:1"}, set()])
def test_a_ps_that_comes_back_is_a_lost_one_if_it_held_something(vacant):
    wait = make_wait(
        {"model": {"ps_runs": {"ps:0": "a", "ps:1": "b"}}}, is_vacant=lambda names: names <= vacant
    )
    wait._monitor.ps_runs = lambda: {"ps:0": "a", "ps:1": "new"}
    if vacant:
        wait.look(None)
    else:
        with pytest.raises(tf.errors.AbortedError, match="a ps was restarted"):
            wait.look(None)


def test_the_others_end_for_the_chief_s_and_are_let_out_of_their_wait():
    told = {"stop": {"run": "r1", "step": 15}, "worker:0": {"run": "r1"}}
    notice, _, _, released = make_notice("worker:1", told)
    notice.look()
    notice.look()
    assert notice._step_hook.reason == "a hook of the chief's, worker:0, asked to stop"
    assert len(released) == 2


@pytest.mark.parametrize(
    "told",
    [
        {"worker:0": {"run": "r1"}},
        {"stop": {"run": "r1", "step": None}, "worker:0": {"run": "r1"}},
        {"stop": {"run": "r0", "step": 15}, "worker:0": {"run": "r1"}},
    ],
    ids=["no request", "taken back", "of an earlier chief"],
)
def test_no_request_is_none(told):
    notice, _, _, released = make_notice("worker:1", told)
    notice.look()
    assert not notice._step_hook.is_last and not released


# A ps is about to end.


def test_the_model_is_saved_once_for_a_ps_that_is_about_to_end(lines):
    calls = []
    runtime = FakeRuntime(
        "worker:0", monitor=FakeMonitor(FakeView({"ps:0": {"state": "serving", "run": "p0"}}))
    )
    runtime.rescue, runtime.monitor.flush = lambda: calls.append("saved"), lambda: calls.append("told")
    runtime.guard = FakeGuard()
    watch = StoppingPsWatch(runtime, start=lambda function: function())
    watch.look()
    assert not calls
    runtime.monitor.shown = FakeView({"ps:1": {"state": "stopping", "run": "p1"}})
    watch.look()
    watch.look()
    assert calls == ["saved", "told"] and runtime.monitor.fields["saved_for"] == ["p1"]
    assert lines() == ["ps:1 is about to end"]


def test_a_ps_is_not_kept_waiting_by_a_save_that_fails(lines):
    runtime = FakeRuntime(
        "worker:0", monitor=FakeMonitor(FakeView({"ps:1": {"state": "stopping", "run": "p1"}}))
    )

    def fail():
        raise OSError("No space left on device")

    runtime.guard, runtime.rescue, runtime.monitor.flush = FakeGuard(), fail, lambda: True
    StoppingPsWatch(runtime, start=lambda function: function()).look()
    assert runtime.monitor.fields["saved_for"] == ["p1"]
    assert lines()[1] == "the model is not saved: No space left on device"


def test_a_chief_that_ends_itself_lets_the_ps_go_when_it_has_saved_its_last_step():
    runtime = FakeRuntime(
        "worker:0", monitor=FakeMonitor(FakeView({"ps:1": {"state": "stopping", "run": "p1"}}))
    )
    runtime.guard, runtime.rescue = (
        FakeGuard(StoppedError("stopped by SIGTERM", 143), stop_signal=15),
        lambda: None,
    )
    StoppingPsWatch(runtime, start=lambda function: function()).look()
    assert "saved_for" not in runtime.monitor.fields
