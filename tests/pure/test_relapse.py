"""How many times a session may be lost before a step is done; with a clock of the test's own."""

import pytest

from ps_train.cluster import TaskId
from ps_train.errors import PeerLostError
from ps_train.relapse import Relapse, cause_of

REFUSED = Exception(
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.3:2222: Failed to connect to remote host: "
    "Connection refused\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1"
)
SAID = (
    "the session was lost {} times in {} s before a step was done, though every ps answers: 10.0.0.3:2222: Failed to "
    "connect to remote host: Connection refused"
)
ADVICE = (
    "The ps tasks connect to worker:1 at 10.0.0.3:2222, too: check that this leads to this host, and that its port is "
    "open."
)


class Story:
    """Losses at given seconds; `note` gives whether each was the first of a row."""

    def __init__(self):
        self.now = 0.0
        self.relapse = Relapse(TaskId("worker", 1), "10.0.0.3:2222", clock=lambda: self.now)

    def note(self, now, steps=5, runs="a"):
        self.now = now
        return self.relapse.note((steps, {"ps:0": runs}), REFUSED, bound_secs=20)


def test_no_step_between():
    story = Story()
    assert [story.note(now) for now in (0, 1, 20)] == [True, False, False]
    with pytest.raises(PeerLostError) as caught:
        story.note(20.5)
    assert str(caught.value) == f"{SAID.format(4, 20)}. {ADVICE}"
    assert caught.value.exit_status == 138


def test_it_is_told_now_and_then(caplog):
    story = Story()
    for now in range(16):
        story.note(now)
    said = [f"{SAID.format(n, n - 1)}; giving up after 20 s. {ADVICE}" for n in (3, 13)]
    assert [record.message for record in caplog.records] == said


@pytest.mark.parametrize("change", [{"steps": 6}, {"runs": "b"}])
def test_a_step_or_another_ps_process_between(change):
    story = Story()
    story.note(0)
    assert [story.note(30, **change), story.note(31, **change)] == [True, False]


def test_a_ps_that_was_away():
    story = Story()
    story.note(0)
    story.relapse.forget()
    assert story.note(30)


@pytest.mark.parametrize(
    "error, cause",
    [
        (REFUSED, "10.0.0.3:2222: Failed to connect to remote host: Connection refused"),
        (Exception('x "ipv6:[::1]:99: tcp handshaker shutdown"'), "[::1]:99: connection timed out"),
        (Exception("Step was cancelled\nmore"), "Step was cancelled"),
        (None, "no reason is known"),
    ],
)
def test_cause(error, cause):
    assert cause_of(error) == cause
