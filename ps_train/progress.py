"""How a local cluster's progress looks: a live table on a terminal, plain lines elsewhere. Draws values, asks nobody.

    screen = Screen()
    screen.show(Snapshot(step=412, target=1000, ...))     # as often as you like
    screen.say("Trained 1000 steps.")                     # below the last picture, which stays

No thread draws: the tasks are forked from this process while it is on the screen already.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.live import Live

REDRAW_SECS = 0.2
LINE_SECS = 5.0
CHANGE_SECS = 1.0
RATE_WINDOW_SECS = 3.0


class Row(NamedTuple):
    """A task: `local_steps` and `rate` (local steps per second) are None for a ps."""

    name: str
    state: str
    local_steps: int | None = None
    rate: float | None = None


class Snapshot(NamedTuple):
    """The cluster at a moment: `message` where there are no steps yet; `rate` is global steps per second."""

    rows: tuple[Row, ...] = ()
    step: int | None = None
    target: int | None = None
    rate: float | None = None
    loss: float | None = None
    message: str = ""

    @property
    def eta_secs(self) -> float | None:
        """Seconds to the target at the present rate, or None."""
        if not self.rate or self.target is None or self.step is None or self.step >= self.target:
            return None
        return (self.target - self.step) / self.rate

    @property
    def figures(self) -> list[str]:
        """Rate, loss and time left, as far as known."""
        found = []
        if self.rate is not None:
            found.append(f"{self.rate:.1f} steps/s")
        if self.loss is not None:
            found.append(f"loss {self.loss:.4g}")
        if self.eta_secs is not None:
            found.append(f"{_duration(self.eta_secs)} left")
        return found


class Rate:
    """Steps per second over the last few seconds.

    >>> rate = Rate()
    >>> [rate.update(step, now) for step, now in ((0, 0.0), (10, 1.0), (30, 2.0), (30, 4.5))]
    [None, 10.0, 15.0, 0.0]
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def update(self, step: int, now: float) -> float | None:
        """Adds a point, `now` in seconds; None until there are two. A step back, after a restart, begins anew."""
        if self._points and step < self._points[-1][1]:
            self._points.clear()
        self._points.append((now, step))
        while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_SECS:
            self._points.popleft()
        then, first = self._points[0]
        return (step - first) / (now - then) if now > then else None


class Display(Protocol):
    """What shows snapshots."""

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Shows it, unless the last one was shown a moment ago; an urgent one always."""

    def close(self) -> None:
        """Ends the picture, which stays; a later `show` begins another."""


class Screen:
    """Standard output and error of the launcher. A reader that has gone, such as `head`, does not end the job."""

    def __init__(self) -> None:
        self._display: Display | None = None

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Shows progress on stdout."""
        with _lasting(sys.stdout):
            self._display = self._display or make_display(sys.stdout)
            self._display.show(snapshot, is_urgent)

    def say(self, text: str = "") -> None:
        """Prints to stdout."""
        self.close()
        with _lasting(sys.stdout):
            print(text, flush=True)

    def complain(self, text: str) -> None:
        """Prints to stderr, each line led by the program's name."""
        self.close()
        with _lasting(sys.stderr):
            for line in text.splitlines():
                print(f"ps_train: {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the progress; a later `show` begins a new picture."""
        if self._display is not None:
            with _lasting(sys.stdout):
                self._display.close()


@contextlib.contextmanager
def _lasting(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def make_display(stream: TextIO) -> Display:
    """A live display if `stream` is a terminal that can redraw, else plain lines."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveDisplay(stream)
    return PlainDisplay(stream)


def as_line(snapshot: Snapshot) -> str:
    """A snapshot on one line.

    >>> rows = (Row("ps:0", "serving"), Row("worker:0", "training", 52, 98.0), Row("worker:1", "starting"))
    >>> as_line(Snapshot(rows, step=60, target=200, rate=100.0, loss=0.25))
    'step 60/200, 100.0 steps/s, loss 0.25, 0:01 left; ps:0 serving, worker:0 training, worker:1 starting'
    """
    return "; ".join(part for part in (_head(snapshot), _states(snapshot)) if part)


def _head(snapshot: Snapshot) -> str:
    if snapshot.step is None:
        return snapshot.message
    return ", ".join([f"step {_of_target(snapshot)}", *snapshot.figures])


def _states(snapshot: Snapshot) -> str:
    return ", ".join(f"{row.name} {row.state}" for row in snapshot.rows)


def _of_target(snapshot: Snapshot) -> str:
    return f"{snapshot.step}" if snapshot.target is None else f"{snapshot.step}/{snapshot.target}"


def _duration(secs: float) -> str:
    minutes, secs = divmod(int(secs + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


class PlainDisplay:
    """A line every five seconds, and when a task's state changes; never more than one a second."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._last_at, self._last_states, self._last_line = float("-inf"), "", ""

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Writes a line if one is due."""
        now, states = self._clock(), f"{snapshot.message} {_states(snapshot)}"
        pause = LINE_SECS if states == self._last_states else CHANGE_SECS
        line = as_line(snapshot)
        if line == self._last_line or now - self._last_at < pause and not is_urgent:
            return
        self._last_at, self._last_states, self._last_line = now, states, line
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Lines need no end."""


class LiveDisplay:
    """A bar for the global steps and a row for each task, redrawn in place."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console

        self._clock, self._last_at = clock, float("-inf")
        self._console = Console(file=stream)
        self._live: Live | None = None

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Redraws, at most five times a second."""
        now = self._clock()
        if now - self._last_at < REDRAW_SECS and not is_urgent:
            return
        self._last_at = now
        if self._live is None:
            self._live = self._make_live()
            self._live.start()
        self._live.update(draw(snapshot, self._console.width), refresh=True)

    def close(self) -> None:
        """Gives the cursor back below the last picture."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _make_live(self) -> Live:
        from rich.live import Live

        return Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def draw(snapshot: Snapshot, width: int) -> ConsoleRenderable:
    """What rich prints for a snapshot, in `width` columns."""
    from rich.console import Group

    head = _draw_head(snapshot, width)
    return Group(head, _draw_rows(snapshot.rows)) if snapshot.rows else head


def _draw_head(snapshot: Snapshot, width: int) -> ConsoleRenderable:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if snapshot.step is None:
        return Text(snapshot.message, style="cyan")
    label, figures = f"step {_of_target(snapshot)}", "  ".join(snapshot.figures)
    is_endless = snapshot.target is None
    bar = ProgressBar(
        total=snapshot.target, completed=min(snapshot.step, snapshot.target or 0), pulse=is_endless,
        width=max(10, min(40, width - len(label) - len(figures) - 4)),
    )  # fmt: skip
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_row(Text(label, style="bold"), bar, Text(figures, no_wrap=True, overflow="ellipsis"))
    return head


def _draw_rows(rows: Sequence[Row]) -> ConsoleRenderable:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3, 0, 0))
    for width in (10, 8, 12, 14):  # so that the columns stay where they are
        table.add_column(min_width=width, no_wrap=True)
    for row in rows:
        steps = "" if row.local_steps is None else f"{row.local_steps} steps"
        rate = "" if row.rate is None else f"{row.rate:.1f} steps/s"
        table.add_row(
            Text(f"  {row.name}"), Text(row.state, style=_style(row.state)), Text(steps, justify="right"),
            Text(rate, justify="right"),
        )  # fmt: skip
    return table


def _style(state: str) -> str:
    if state in ("training", "serving"):
        return "green"
    return "red" if state.startswith(("status", "failed")) else "dim"
