"""What the launcher shows, exactly."""

import io
import math
import os
import re
import signal

import pytest
from rich.console import Console

from ps_train.picture import Rate, Row, Snapshot, as_text, draw
from ps_train.progress import LiveDisplay, PlainDisplay, Screen, make_display

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


def on_a_terminal(monkeypatch, width=100, height=24, **env):
    variables = {"NO_COLOR": "", "CI": "", "TERM": "xterm", "COLUMNS": str(width), "LINES": str(height)}
    for name, value in {**variables, **env}.items():
        monkeypatch.setenv(name, value)


def test_a_complaint_takes_the_place_of_the_picture_that_goes_on_below_it(monkeypatch, capsys):
    terminal = Terminal()
    on_a_terminal(monkeypatch)
    monkeypatch.setattr("sys.stdout", terminal)
    screen = Screen()
    screen.show(TRAINING)
    drawn = terminal.getvalue()
    screen.complain("worker:1 failed", goes_on=True)
    erased = terminal.getvalue()[len(drawn) :]
    assert erased == "\r\x1b[4A\x1b[J", "a line for the bar and for each task"
    assert capsys.readouterr().err == "ps_train: worker:1 failed\n"
    screen.show(TRAINING, is_urgent=True)
    again = terminal.getvalue()[len(drawn + erased) :]
    assert again == drawn
    screen.say("a line of a task", goes_on=True)
    assert terminal.getvalue().endswith("\r\x1b[4A\x1b[Ja line of a task\n")
    screen.show(TRAINING, is_urgent=True)
    screen.complain("No checkpoint was saved.")
    assert terminal.getvalue().endswith(drawn), "this one stays"
    assert "\x1b[?" not in terminal.getvalue(), "nothing that would have to be taken back"


def rates(*points):
    rate = Rate()
    return [rate.update(step, now) for step, now in points]


def test_there_is_no_rate_before_two_steps_and_it_begins_anew_after_a_step_back():
    assert rates((500, 0.0), (500, 9.0)) == [None, None], "a restored model without a step"
    assert rates((0, 0.0), (300, 3.0), (10, 4.0), (20, 5.0)) == [None, 100.0, None, 10.0]


def test_a_new_rate_is_seen_within_seconds():
    points = [(10 * now, float(now)) for now in range(20)] + [
        (190 + 40 * now, 19.0 + now) for now in range(1, 6)
    ]
    assert rates(*points)[19] == 10.0 and rates(*points)[24] == 40.0


def test_a_step_that_does_not_come_lowers_the_rate_to_nothing_and_the_pause_does_not_count():
    points = [(10 * now, float(now)) for now in range(6)]
    assert rates(*points, (50, 7.0))[-1] == 40 / 5
    assert rates(*points, (50, 10.0))[-1] == 40 / 8
    assert rates(*points, (50, 10.5))[-1] == 0.0
    assert rates(*points, (50, 40.0), (60, 41.0), (70, 42.0))[-3:] == [0.0, None, 10.0]


def test_steps_that_take_long_by_nature_have_a_rate_too():
    rate, found = Rate(), {}
    for half in range(241):  # a step takes 20 s
        found[half / 2] = rate.update(half // 40, half / 2), rate.idle_secs(half / 2)
    assert found[40.0] == found[119.5] == (0.05, None)
    assert [rate.idle_secs(secs) for secs in (180.0, 180.5)] == [None, 60.5]


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, LiveDisplay),
        ({"TERM": "dumb"}, PlainDisplay),
        ({"TERM": ""}, PlainDisplay),
        ({"NO_COLOR": "1"}, PlainDisplay),
        ({"CI": "true"}, PlainDisplay),
    ],
)
def test_a_terminal_gets_the_picture_if_it_can_redraw_and_nobody_wants_lines(monkeypatch, env, kind):
    on_a_terminal(monkeypatch, **env)
    terminal = Terminal()
    display = make_display(terminal)
    display.show(TRAINING)
    display.close()
    assert type(display) is kind
    assert ("\x1b" in terminal.getvalue()) == (kind is LiveDisplay)
    assert type(make_display(io.StringIO())) is PlainDisplay


MARKED = Snapshot(
    (
        Row("ps:0", "no answer", secs=12.0),
        Row("worker:0", "waiting for ps:0", 412, secs=75.0, remark="ps:0 at a:1 does not answer"),
        Row("worker:1", "slow", 9, 0.054),
    ),
    step=421, target=1000, rate=0.0, loss=0.5, idle_secs=75.0, restarts="restart 1 of 3",
    evaluation="evaluation of step 400: accuracy 0.9700",
)  # fmt: skip


def test_the_picture_of_trouble():
    assert picture(MARKED, width=90) == [
        "step 421/1000  ███████░░░░░░░░░░░  0.0 steps/s  loss 0.5  no step for 1:15  restart 1 of 3",
        "  evaluation of step 400: accuracy 0.9700",
        "  worker:0: ps:0 at a:1 does not answer",
        "  ps:0       no answer for 0:12",
        "  worker:0   waiting for ps:0 for 1:15      412 steps",
        "  worker:1   slow                             9 steps    0.054 steps/s",
    ]


def test_a_narrow_terminal_shows_the_step_whole():
    """And what has room of the rest; no bar where the figures would lose by it."""
    late = TRAINING._replace(step=421123, target=1000000)
    assert picture(late, width=60)[0] == "step 421123/1000000  193.0 steps/s  loss 0.1235  49:59 left"
    assert picture(late, width=20) == [
        "step 421123/1000000",
        "193.0 steps/s  loss…",
        "  ps:0 serving,",
        "  worker:0 training,",
        "  worker:1 status 1",
    ]
    assert [picture(late, width=width)[0] for width in (40, 18, 9)] == [
        "step 421123/1000000  193.0 steps/s  loss",
        "step 421123",
        "421123",
    ]


def test_trouble_in_lines_is_told_once():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    for secs in range(60):
        clock.now = 100.0 + secs
        rows = tuple(row._replace(secs=row.secs and row.secs + secs) for row in MARKED.rows)
        display.show(MARKED._replace(rows=rows, idle_secs=75.0 + secs))
    assert stream.getvalue() == (
        "step 421/1000, 0.0 steps/s, loss 0.5\n"
        "  ps:0 no answer, worker:0 waiting for ps:0, worker:1 slow\n"
        "  evaluation of step 400: accuracy 0.9700\n"
        "  worker:0: ps:0 at a:1 does not answer\n"
    )


@pytest.mark.parametrize("width", [1, 2, 9, 20, 40, 79])
@pytest.mark.parametrize("snapshot", [STARTING, TRAINING, MARKED])
def test_no_line_is_wider_than_the_terminal_and_no_picture_higher(monkeypatch, width, snapshot):
    on_a_terminal(monkeypatch, width, height=5)
    terminal = Terminal()
    LiveDisplay(terminal).show(snapshot)
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= max(width - 1, 1) and len(lines) <= 4


def test_many_tasks_are_told_of_together_where_there_is_no_room_for_a_row_each():
    rows = [Row("ps:0", "serving"), *(Row(f"worker:{index}", "training", 7, 1.0) for index in range(40))]
    rows[7] = Row("worker:6", "silent", 7, secs=4.0)
    lines = picture(TRAINING._replace(rows=tuple(rows)), width=60, height=24)
    assert lines[1:] == [
        "  ps:0 serving, worker:0-5 training, worker:6 silent,",
        "  worker:7-39 training",
    ]


def test_a_terminal_that_became_narrower_has_broken_the_lines_that_are_taken_away(monkeypatch):
    on_a_terminal(monkeypatch, width=80)
    terminal = Terminal()
    display = LiveDisplay(terminal)
    display.show(TRAINING)
    drawn = terminal.getvalue()
    widths = [len(line) for line in picture(TRAINING, width=79)]
    monkeypatch.setenv("COLUMNS", "30")
    display.show(TRAINING, is_urgent=True)
    rows = sum(math.ceil(width / 30) for width in widths)
    assert rows > 4 and terminal.getvalue()[len(drawn) :].startswith(f"\r\x1b[{rows}A\x1b[J")


def test_after_a_stop_the_picture_begins_anew_below_what_the_shell_has_written(monkeypatch):
    on_a_terminal(monkeypatch)
    terminal, clock = Terminal(), Clock()
    display = LiveDisplay(terminal, clock, sleep=lambda secs: None)
    before = signal.getsignal(signal.SIGCONT)
    display.show(TRAINING)
    drawn = terminal.getvalue()
    os.kill(os.getpid(), signal.SIGCONT)
    clock.now += 60
    display.show(TRAINING)
    assert terminal.getvalue() == drawn * 2, "nothing is taken away"
    display.close()
    assert signal.getsignal(signal.SIGCONT) is before


def test_in_the_background_nothing_is_drawn(monkeypatch):
    on_a_terminal(monkeypatch)
    terminal, clock = Terminal(), Clock()
    is_away = [False]
    monkeypatch.setattr("ps_train.progress._is_in_background", lambda stream: is_away[0])
    display = LiveDisplay(terminal, clock, sleep=lambda secs: None)
    display.show(TRAINING)
    drawn = terminal.getvalue()
    is_away[0] = True
    for _ in range(3):
        clock.now += 1
        display.show(TRAINING)
    display.erase()
    display.close()
    assert terminal.getvalue() == drawn
    is_away[0] = False
    display.show(TRAINING)
    assert terminal.getvalue() == drawn * 2
