"""What the making of a session does when a ps goes away under it."""

import pytest
from fakes import FakeRuntime

from ps_train import bring_up
from ps_train.board import BoardError
from ps_train.compat import tf, tf1
from ps_train.guard import Guard
from ps_train.relapse import Relapse

pytestmark = pytest.mark.graph


@pytest.mark.parametrize(
    "error", [BoardError("no answer in 2 s"), tf.errors.UnavailableError(None, None, "gone")]
)
def test_a_ps_that_is_lost_meanwhile_is_waited_for(monkeypatch, error):
    """As by a cable pulled between the last variable and the word on the board that the model is valid."""
    creator = object.__new__(bring_up.SessionCreator)
    creator._runtime, creator._is_first = FakeRuntime("worker:0"), True
    creator._session, creator._relapse = None, Relapse(None, "")
    creator._runtime.guard = Guard(lambda: None, None)
    waits, outcomes = [], [error, None]

    def create(runs, deadline):
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return "session"

    monkeypatch.setattr(creator, "_wait_for_ps", lambda deadline, since: waits.append(since), raising=False)
    monkeypatch.setattr(creator, "_create", create, raising=False)
    monkeypatch.setattr(bring_up.time, "sleep", lambda secs: None)
    with tf1.Graph().as_default():
        assert creator.create_session() == "session"
    assert waits[0] is None and waits[1] is not None, "the second time the boards are asked anew"
