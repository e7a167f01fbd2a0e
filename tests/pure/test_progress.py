"""What the launcher shows, exactly."""

import io
import re

import pytest
from rich.console import Console

from ps_train.progress import (
    LiveDisplay,
    PlainDisplay,
    Rate,
    Row,
    Screen,
    Snapshot,
    as_text,
    draw,
    make_display,
)

STARTING = Snapshot((Row("ps:0", "starting"), Row("worker:0", "starting")), message="starting the tasks")
TRAINING = Snapshot(
    (Row("ps:0", "serving"), Row("worker:0", "training", 412, 98.04), Row("worker:1", "status 1", 9)),
    step=421, target=1000, rate=193.0, loss=0.123456,
)  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_lines():
    assert as_text(Snapshot(message="importing TensorFlow")) == "importing TensorFlow"
    assert as_text(STARTING) == "starting the tasks; ps:0 starting, worker:0 starting"
    assert as_text(TRAINING).splitlines() == [
        "step 421/1000, 193.0 steps/s, loss 0.1235, 0:03 left",
        "  ps:0 serving, worker:0 training, worker:1 status 1",
    ]
    assert as_text(TRAINING, has_states=False) == "step 421/1000, 193.0 steps/s, loss 0.1235, 0:03 left"
    assert as_text(Snapshot(step=5, is_ended=True)) == "step 5"
    assert as_text(Snapshot(step=0, target=7200, rate=0.5)) == "step 0/7200, 0.5 steps/s, 4:00:00 left"
    assert as_text(Snapshot(step=8, target=8, rate=2.0)) == "step 8/8, 2.0 steps/s"


def test_without_a_target_it_is_said_that_it_goes_on_for_ever():
    endless = Snapshot(TRAINING.rows, step=412, rate=193.0, loss=0.123456)
    assert as_text(endless, has_states=False) == (
        "step 412, 193.0 steps/s, loss 0.1235 (no target: Ctrl-C ends and saves)"
    )
    assert picture(endless, width=80)[0] == (
        "step 412  193.0 steps/s  loss 0.1235  (no target: Ctrl-C ends and saves)"
    )
    assert as_text(endless._replace(is_ended=True, rate=None), has_states=False) == "step 412, loss 0.1235"


def test_lines_are_no_wider_than_a_terminal():
    states = ["training"] * 30 + ["ended by SIGKILL"] + ["training", "starting"] * 8 + ["training"] * 20
    rows = [Row("ps:0", "serving"), *(Row(f"worker:{index}", state) for index, state in enumerate(states))]
    head, *lines = as_text(TRAINING._replace(rows=tuple(rows))).splitlines()
    assert max(map(len, [head, *lines])) < 80 and len(lines) < 8
    told = " ".join(line.strip() for line in lines)
    assert told.startswith(
        "ps:0 serving, worker:0-29 training, worker:30 ended by SIGKILL, worker:31 training"
    )
    assert told.endswith("worker:46 starting, worker:47-66 training")


def test_plain_lines_come_at_most_once_a_second_and_at_least_every_five():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    seen = []
    for step in range(120):
        clock.now = 100.0 + step / 10
        state = "training" if step < 3 else "ending"
        before = stream.getvalue()
        display.show(Snapshot((Row("worker:0", state),), step=step, is_ended=True))
        if stream.getvalue() != before:
            seen.append(step)
    assert seen == [0, 10, 60, 110]
    assert stream.getvalue().splitlines()[1:3] == ["step 10; worker:0 ending", "step 60"], (
        "states when they change"
    )


def test_an_urgent_line_comes_at_once_but_none_comes_twice():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    for _ in range(3):
        display.show(STARTING, is_urgent=True)
    rows = (Row("ps:0", "serving"), Row("worker:0", "starting"))
    display.show(STARTING._replace(rows=rows), is_urgent=True)
    display.show(TRAINING, is_urgent=True)
    clock.now += 100
    display.show(TRAINING)
    assert stream.getvalue() == (
        f"{as_text(STARTING)}\n  ps:0 serving, worker:0 starting\n{as_text(TRAINING)}\n"
    )


def picture(snapshot, width=100, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    console.print(draw(snapshot, width, **options))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_picture():
    assert picture(Snapshot(message="importing TensorFlow")) == ["importing TensorFlow"]
    assert picture(STARTING) == ["starting the tasks", "  ps:0       starting", "  worker:0   starting"]
    head, *rows = picture(TRAINING)
    assert head.startswith("step 421/1000  ████") and head.endswith("  193.0 steps/s  loss 0.1235  0:03 left")
    assert rows == [
        "  ps:0       serving",
        "  worker:0   training      412 steps     98.0 steps/s",
        "  worker:1   status 1        9 steps",
    ]
    assert max(map(len, picture(TRAINING, width=60))) <= 60
    assert picture(Snapshot((Row("worker:0", "training", 1),), step=1, target=2))[1].endswith(" 1 step")
    assert picture(STARTING, message_secs=75.2)[0] == "starting the tasks  1:15"


def bar(step, **options):
    """The bar at this step, and how much of it is full."""
    line = picture(Snapshot(step=step, target=1000), width=80, **options)[0]
    found = re.fullmatch(r"step \d+/1000  (\S{40})", line)[1]
    return found, len(found) - len(found.lstrip("█"))


def test_the_bar_is_told_apart_without_colours():
    assert [bar(step)[1] for step in (1, 499, 500, 999, 1000, 1001)] == [0, 19, 20, 39, 40, 40]
    assert bar(500)[0] == "█" * 20 + "░" * 20
    assert bar(500, is_ascii=True)[0] == "#" * 20 + "." * 20


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_complaint_takes_the_place_of_the_picture_that_goes_on_below_it(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout", terminal)
    screen = Screen()
    screen.show(TRAINING)
    drawn = terminal.getvalue()
    screen.complain("worker:1 failed", goes_on=True)
    erased = terminal.getvalue()[len(drawn) :]
    assert erased.endswith("\r" + "\x1b[1A\x1b[2K" * 4), "a line for the bar and for each task"
    assert capsys.readouterr().err == "ps_train: worker:1 failed\n"
    screen.show(TRAINING, is_urgent=True)
    screen.complain("No checkpoint was saved.")
    assert terminal.getvalue().endswith("\n\x1b[?25h"), "this one stays"


def test_the_rate_forgets_and_begins_anew_after_a_step_back():
    rate = Rate()
    assert [rate.update(step, now) for step, now in ((0, 0.0), (300, 3.0), (300, 9.0), (10, 10.0), (20, 11.0))] == [
        None, 100.0, 0.0, None, 10.0,
    ]  # fmt: skip


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveDisplay), ("dumb", PlainDisplay)])
def test_a_terminal_gets_the_picture_if_it_can_redraw(monkeypatch, term, kind):
    monkeypatch.setenv("TERM", term)
    display = make_display(Terminal())
    display.show(TRAINING)
    display.close()
    assert type(display) is kind
    assert type(make_display(io.StringIO())) is PlainDisplay
