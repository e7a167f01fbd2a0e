"""The raw session: what its errors are."""

import re
import threading
import time

import pytest

from ps_train.bounded_session import BoundedSession, await_closing
from ps_train.compat import tf, tf1
from ps_train.explain import as_model_error

pytestmark = pytest.mark.graph
LATIN = "Zürich 5".encode("latin-1")


@pytest.mark.parametrize("way", ["run", "callable", "substitute"])
def test_an_error_with_a_users_bytes_names_the_op(way):
    """TensorFlow's binding raises UnicodeDecodeError there, without the place and without a text."""
    line = tf1.placeholder(tf.string, [], "line")
    number = tf.strings.to_number(line, name="number")
    with BoundedSession("") as session:
        if way == "substitute":
            session.substitute(BoundedSession("", graph=session.graph))
        run = session.make_callable(number, [line]) if way == "callable" else None
        with pytest.raises(tf.errors.UnknownError) as caught:
            run(LATIN) if run else session.run(number, {line: LATIN})
    assert caught.value.op is number.op
    said = str(as_model_error(caught.value, session.graph))
    assert re.fullmatch(
        r"UnknownError in op number \(made at \S*test_bounded_session.py:\d+\): StringToNumberOp could not correctly convert "
        r"string: Z\\xfcrich 5",
        said,
    ), said


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RecvFromRemoteAsync is cancelled.", tf.errors.AbortedError),
        ("by its user", tf.errors.CancelledError),
    ],
)
def test_a_transfer_that_was_cancelled_is_a_lost_session(monkeypatch, text, kind):
    """MonitoredSession makes a new session after an AbortedError, and gives up after a CancelledError."""

    def fails(*_):
        raise tf.errors.CancelledError(None, None, text)

    monkeypatch.setattr(tf1.Session, "run", fails)
    session = BoundedSession("")
    with pytest.raises(kind, match=text) as caught:
        session.run("x")
    assert session.lost_by is caught.value


def test_a_text_of_another_tasks_that_is_no_utf8_is_a_lost_session(monkeypatch):
    def fails(*_):
        text = b"RecvTensor failed\nAdditional GRPC error information from remote target /job:ps/task:0: \xb0"
        raise UnicodeDecodeError("utf-8", text, len(text) - 1, len(text), "invalid start byte")

    monkeypatch.setattr(tf1.Session, "run", fails)
    session = BoundedSession("")
    with pytest.raises(tf.errors.AbortedError, match="RecvTensor failed") as caught:
        session.run("x")
    assert session.lost_by is caught.value


def test_a_close_that_takes_longer_than_its_bound_is_waited_for_at_the_end_of_the_process(monkeypatch):
    may_end, has_ended = threading.Event(), threading.Event()

    def close(_):
        may_end.wait(30)
        has_ended.set()

    monkeypatch.setattr(tf1.Session, "close", close)
    monkeypatch.setattr(BoundedSession, "CLOSE_SECS", 0.01)
    session = BoundedSession("")
    session.close()
    assert not has_ended.is_set()
    started = time.monotonic()
    await_closing(0.2)
    assert 0.2 <= time.monotonic() - started < 10, "a ps that is frozen may keep it for ever"
    threading.Timer(0.2, may_end.set).start()
    await_closing()
    assert has_ended.is_set()
