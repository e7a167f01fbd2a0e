"""What the launcher shows, exactly."""

import io

import pytest
from rich.console import Console

from ps_train.progress import LiveDisplay, PlainDisplay, Rate, Row, Snapshot, as_line, draw, make_display

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
    assert as_line(Snapshot(message="importing TensorFlow")) == "importing TensorFlow"
    assert as_line(STARTING) == "starting the tasks; ps:0 starting, worker:0 starting"
    assert as_line(TRAINING) == (
        "step 421/1000, 193.0 steps/s, loss 0.1235, 0:03 left; ps:0 serving, worker:0 training, worker:1 status 1"
    )
    assert as_line(Snapshot(step=5)) == "step 5"
    assert as_line(Snapshot(step=0, target=7200, rate=0.5)) == "step 0/7200, 0.5 steps/s, 4:00:00 left"
    assert as_line(Snapshot(step=8, target=8, rate=2.0)) == "step 8/8, 2.0 steps/s"


def test_plain_lines_come_at_most_once_a_second_and_at_least_every_five():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    seen = []
    for step in range(120):
        clock.now = 100.0 + step / 10
        state = "training" if step < 3 else "ending"
        before = stream.getvalue()
        display.show(Snapshot((Row("worker:0", state),), step=step))
        if stream.getvalue() != before:
            seen.append(step)
    assert seen == [0, 10, 60, 110]
    assert stream.getvalue().splitlines()[1] == "step 10; worker:0 ending"


def test_an_urgent_line_comes_at_once_but_none_comes_twice():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    for _ in range(3):
        display.show(STARTING, is_urgent=True)
    display.show(TRAINING, is_urgent=True)
    clock.now += 100
    display.show(TRAINING)
    assert stream.getvalue().splitlines() == [as_line(STARTING), as_line(TRAINING)]


def picture(snapshot, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    console.print(draw(snapshot, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_picture():
    assert picture(Snapshot(message="importing TensorFlow")) == ["importing TensorFlow"]
    assert picture(STARTING) == ["starting the tasks", "  ps:0       starting", "  worker:0   starting"]
    head, *rows = picture(TRAINING)
    assert head.startswith("step 421/1000  ━") and head.endswith("  193.0 steps/s  loss 0.1235  0:03 left")
    assert rows == [
        "  ps:0       serving",
        "  worker:0   training      412 steps     98.0 steps/s",
        "  worker:1   status 1        9 steps",
    ]
    assert max(map(len, picture(TRAINING, width=60))) <= 60
    assert picture(Snapshot(step=3, rate=2.0))[0].startswith("step 3  ━")


def test_the_rate_forgets_and_begins_anew_after_a_step_back():
    rate = Rate()
    assert [rate.update(step, now) for step, now in ((0, 0.0), (300, 3.0), (300, 9.0), (10, 10.0), (20, 11.0))] == [
        None, 100.0, 0.0, None, 10.0,
    ]  # fmt: skip


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveDisplay), ("dumb", PlainDisplay)])
def test_a_terminal_gets_the_picture_if_it_can_redraw(monkeypatch, term, kind):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", term)
    display = make_display(Terminal())
    display.show(TRAINING)
    display.close()
    assert type(display) is kind
    assert type(make_display(io.StringIO())) is PlainDisplay
