"""The log writer and its throttle."""

import io
import logging
import re

import pytest

from ps_train import logs
from ps_train.logs import Throttle


@pytest.fixture
def stream():
    """What the writer of task worker:1 writes to; the logger is put back as it was."""
    before = logs.log.handlers[:], logs.log.level, logs.log.propagate
    stream = io.StringIO()
    logs.start("worker:1", stream)
    yield stream
    logs.log.handlers[:], logs.log.level, logs.log.propagate = before[0], before[1], before[2]


def test_each_line_is_led_by_time_and_task(stream):
    logs.log.info("step %d", 20)
    assert re.fullmatch(r"\d\d:\d\d:\d\d worker:1 step 20\n", stream.getvalue())


def test_level_is_said_from_warning_on(stream):
    logs.log.debug("not shown")
    logs.log.warning("odd")
    logs.log.error("bad")
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["worker:1 warning: odd", "worker:1 error: bad"]


def test_every_line_of_a_long_message_is_led(stream):
    logs.log.error("one\ntwo\n\nfour")
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == [f"worker:1 error: {text}" for text in ("one", "two", "", "four")]


def test_an_empty_message_is_a_line(stream):
    logs.log.info("")
    assert stream.getvalue().count("\n") == 1


def test_a_second_start_replaces_the_first(stream):
    other = io.StringIO()
    logs.start("worker:2", other)
    logs.log.info("x")
    assert stream.getvalue() == ""
    assert other.getvalue().endswith("worker:2 x\n")


def test_other_loggers_are_left_alone(stream):
    root = io.StringIO()
    handler = logging.StreamHandler(root)
    logging.getLogger().addHandler(handler)
    try:
        logs.log.info("ours, once")
        logging.getLogger("theirs").warning("theirs")
    finally:
        logging.getLogger().removeHandler(handler)
    assert root.getvalue() == "theirs\n"
    assert stream.getvalue().count("ours, once") == 1


def due(throttle, *times):
    return [throttle.is_due(now) for now in times]


def test_throttle_is_due_at_once_and_then_once_an_interval():
    assert due(Throttle(10), 0, 5, 9.9, 10, 19, 20, 45) == [True, False, False, True, False, True, True]


def test_throttle_that_waits_first():
    assert due(Throttle(10, wait_first=True, now=100), 100, 109, 110, 111) == [False, False, True, False]


def test_a_late_call_does_not_make_the_next_ones_early():
    assert due(Throttle(10), 0, 18, 20, 27, 28) == [True, True, False, False, True]
