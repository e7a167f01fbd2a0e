"""`ps_train status --watch` without a job: how long it looks, and what it shows."""

import io
import json
import re

import pytest

from ps_train import status_watch
from ps_train.board import NO_ANSWER, REFUSED
from ps_train.status import Status, TaskStatus
from ps_train.status_watch import GONE_SECS, Pane, make_pane, watch, why_it_ended

WORKERS = (TaskStatus("worker:0", "training"), TaskStatus("worker:1", "training"))
UP = Status((TaskStatus("ps:0", "serving"), *WORKERS), step=7, train_steps=100)
GONE = Status((TaskStatus("ps:0", NO_ANSWER, remarks=(REFUSED,)),))
STOPPED = Status((TaskStatus("ps:0", NO_ANSWER, remarks=("no answer in 2 s (process stopped)",)),))


class Watcher:
    """Sees one status after the other; an exception is raised, and the last one stays."""

    def __init__(self, *seen):
        self._seen = list(seen)

    def look(self):
        seen = self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]
        if isinstance(seen, type):
            raise seen
        return seen


@pytest.fixture
def run(monkeypatch):
    """Watches; (the last status, those that were shown, the moments of the looks)."""
    monkeypatch.setattr(status_watch, "summarize", lambda look, given: look)

    def watching(*seen, secs=2.0, look_secs=1.0, most=20):
        now, shown, moments = [0.0], [], []

        def show(status):
            moments.append(now[0])
            now[0] += look_secs
            shown.append(status)
            assert len(shown) < most, "it does not end"

        def sleep(secs):
            now[0] += secs

        return watch(Watcher(*seen), None, secs, show, lambda: now[0], sleep), shown, moments

    return watching


def test_it_ends_with_the_job(run):
    over = UP._replace(step=100, job_end="target of 100 reached")
    last, shown, moments = run(UP, UP, over)
    assert last == over and shown == [UP, UP, over] and moments == [0, 2, 4]
    assert last.is_answered


def test_no_job_at_the_first_look(run):
    last, shown, _ = run(GONE)
    assert last == GONE and len(shown) == 1
    assert why_it_ended(last, None).startswith("No ps answers. The job has ended, or was not started yet")


def test_a_ps_that_is_gone_may_come_back(run):
    """Whoever was killed and is started again is there within seconds."""
    over = UP._replace(job_end="data used up")
    last, shown, _ = run(UP, GONE, GONE, UP, GONE, GONE, over)
    assert last == over and len(shown) == 7
    last, shown, moments = run(UP, GONE)
    assert last == GONE and moments[-1] - moments[1] == pytest.approx(GONE_SECS, abs=2) and GONE_SECS >= 30
    assert why_it_ended(last, 7) == "The job is gone: no ps answers any more. It was last seen at step 7."


@pytest.mark.parametrize(
    "end",
    [
        UP._replace(step=100),
        UP._replace(tasks=(UP.tasks[0], *(task._replace(state="left") for task in WORKERS))),
    ],
    ids=["target", "left"],
)
def test_a_job_that_was_at_its_end_is_not_waited_for(run, end):
    last, shown, _ = run(UP, end, GONE)
    assert last == GONE and len(shown) == 3


def test_a_ps_that_is_stopped_is_watched_on(run):
    """For as long as it takes: that is what one looks for."""
    over = UP._replace(job_end="target")
    last, shown, _ = run(UP, *[STOPPED] * 12, over)
    assert last == over and len(shown) == 14


def test_ctrl_c(run):
    assert run(UP, STOPPED, KeyboardInterrupt)[0] == STOPPED
    assert why_it_ended(STOPPED, 7).startswith("No ps answers, and not all of them are gone")
    assert run(STOPPED, UP, KeyboardInterrupt)[0] == UP
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt)


def test_a_slow_look_is_followed_by_the_next(run):
    _, _, moments = run(UP, UP, UP._replace(job_end=""), secs=0.5, look_secs=3.0)
    assert moments == [0, 3, 6]


def test_plain_text_below_one_another():
    stream = io.StringIO()
    with make_pane(stream) as pane:
        pane.show(UP)
        pane.show(STOPPED)
    first, second = stream.getvalue().rstrip().split("\n\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", first.splitlines()[0])
    assert first.splitlines()[-1] == "model: step 7/100" and pane.last_step == 7
    assert second.splitlines()[-1].startswith("No ps answers, and not all of them are gone")


def test_a_job_that_was_seen_is_not_told_to_have_not_begun():
    stream = io.StringIO()
    with make_pane(stream) as pane:
        for status in (GONE, UP, GONE):
            pane.show(status)
    first, _, third = (shown.splitlines()[-1] for shown in stream.getvalue().rstrip().split("\n\n"))
    assert "was not started yet" in first
    assert third == (
        "No ps answers any more; the job was last seen at step 7. Waiting for it to come back, up to 30 s."
    )


def test_a_line_of_json_each():
    stream = io.StringIO()
    with make_pane(stream, is_json=True) as pane:
        pane.show(UP)
        pane.show(GONE)
    assert [json.loads(line)["step"] for line in stream.getvalue().splitlines()] == [7, None]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_terminal_shows_one_in_place_of_the_other(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with make_pane(stream) as pane:
        pane.show(UP)
        before = stream.tell()
        pane.show(UP._replace(step=42))
    second = stream.getvalue()[before:]
    assert isinstance(pane, Pane) and "step 42/100" in second and "step 7" not in second
    assert "\x1b[1A" in second, "the cursor goes up to where the first one began"


def test_a_narrow_terminal_cuts_tables_alone(monkeypatch):
    """The step, and what is the matter with a task, are read whole."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    late = UP.tasks[1]._replace(remarks=("waiting for ps:1, which does not answer",))
    with make_pane(stream) as pane:
        pane.show(UP._replace(tasks=(UP.tasks[0], late), step=421123, train_steps=1000000))
    first = stream.getvalue().partition("\r")[0]
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", first).splitlines()]
    assert max(map(len, lines)) <= 20
    assert " ".join(lines[3:]).startswith(
        "worker:0: waiting for ps:1, which does not answer model: step 421123/1000000 "
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_escapes_where_they_mean_nothing(monkeypatch, is_terminal):
    monkeypatch.setenv("TERM", "dumb" if is_terminal else "xterm")
    stream = Terminal() if is_terminal else io.StringIO()
    with make_pane(stream) as pane:
        pane.show(UP)
    assert "model: step 7/100" in stream.getvalue() and "\x1b" not in stream.getvalue()
