"""The raw session: what its errors are."""

import re

import pytest

from ps_train.bounded_session import BoundedSession
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
