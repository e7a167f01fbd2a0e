"""How a local cluster's progress looks: a live table on a terminal, plain lines elsewhere. Draws values, asks nobody.

    screen = Screen()
    screen.show(Snapshot(step=412, target=1000, ...))     # as often as you like
    screen.complain("worker:1 is lost", goes_on=True)     # above the picture, which is drawn anew
    screen.say("Trained 1000 steps.")                     # below the last picture, which stays

No thread draws: the tasks are forked from this process while it is on the screen already.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from ps_train.wording import counted

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.live import Live
    from rich.text import Text

REDRAW_SECS = 0.2
LINE_SECS = 5.0
CHANGE_SECS = 1.0
RATE_WINDOW_SECS = 3.0
LINE_WIDTH = 79
NO_TARGET = "(no target: Ctrl-C ends and saves)"


class Row(NamedTuple):
    """A task: `local_steps` and `rate` (local steps per second) are None for a ps."""

    name: str
    state: str
    local_steps: int | None = None
    rate: float | None = None


class Snapshot(NamedTuple):
    """The cluster at a moment: `message` where there are no steps yet; `rate` is global steps per second.

    `is_ended`: no worker runs any more.
    """

    rows: tuple[Row, ...] = ()
    step: int | None = None
    target: int | None = None
    rate: float | None = None
    loss: float | None = None
    message: str = ""
    is_ended: bool = False

    @property
    def is_endless(self) -> bool:
        """Whether it trains without a target."""
        return self.step is not None and self.target is None and not self.is_ended

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

    def erase(self) -> None:
        """Takes the picture away; a later `show` draws it again."""


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

    def complain(self, text: str, goes_on: bool = False) -> None:
        """Prints to stderr, each line led by the program's name; `goes_on`: the progress will be shown below it."""
        if goes_on and self._display is not None:
            with _lasting(sys.stdout):
                self._display.erase()
        else:
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


def as_text(snapshot: Snapshot, has_head: bool = True, has_states: bool = True) -> str:
    """A snapshot on one line, or with the tasks' states below it if it would be too long.

    >>> rows = (Row("ps:0", "serving"), Row("worker:0", "training", 52, 98.0), Row("worker:1", "training"))
    >>> print(as_text(Snapshot(rows, step=60, target=200, loss=0.25)))
    step 60/200, loss 0.25; ps:0 serving, worker:0-1 training
    """
    head = _head(snapshot) if has_head else ""
    states = _states(snapshot) if has_states else ""
    line = "; ".join(part for part in (head, states) if part)
    if has_head and (len(line) <= LINE_WIDTH or not states):
        return line
    wrapped = textwrap.wrap(
        states, LINE_WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return "\n".join([*([head] if has_head else []), *wrapped])


def _head(snapshot: Snapshot) -> str:
    if snapshot.step is None:
        return snapshot.message
    head = ", ".join([f"step {_of_target(snapshot)}", *snapshot.figures])
    return f"{head} {NO_TARGET}" if snapshot.is_endless else head


def _states(snapshot: Snapshot) -> str:
    """Each task's state; neighbours in the same one are named together."""
    found = []
    for (job, state), rows in itertools.groupby(
        snapshot.rows, lambda row: (row.name.partition(":")[0], row.state)
    ):
        indices = [row.name.partition(":")[2] for row in rows]
        found.append(f"{job}:{'-'.join(dict.fromkeys([indices[0], indices[-1]]))} {state}")
    return ", ".join(found)


def _of_target(snapshot: Snapshot) -> str:
    return f"{snapshot.step}" if snapshot.target is None else f"{snapshot.step}/{snapshot.target}"


def _duration(secs: float) -> str:
    minutes, secs = divmod(int(secs + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


class PlainDisplay:
    """A line every five seconds, and when a task's state changes; never more than one a second.

    What is the same as in the last one is left out.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._last_at = float("-inf")
        self._last_head = self._last_states = self._last_message = ""

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Writes a line if one is due."""
        now, head, states = self._clock(), _head(snapshot), _states(snapshot)
        has_changed = (snapshot.message, states) != (self._last_message, self._last_states)
        pause = CHANGE_SECS if has_changed else LINE_SECS
        if (head, states) == (self._last_head, self._last_states):
            return
        if now - self._last_at < pause and not is_urgent:
            return
        self._stream.write(as_text(snapshot, head != self._last_head, states != self._last_states) + "\n")
        self._stream.flush()
        self._last_at, self._last_head = now, head
        self._last_message, self._last_states = snapshot.message, states

    def close(self) -> None:
        """Lines need no end."""

    def erase(self) -> None:
        """Lines stay."""


class LiveDisplay:
    """A bar for the global steps and a row for each task, redrawn in place."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console

        self._clock, self._last_at = clock, float("-inf")
        self._message, self._message_since = "", 0.0
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
        is_ascii = not self._console.encoding.startswith("utf")
        picture = draw(snapshot, self._console.width, self._message_secs(snapshot, now), is_ascii)
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        """Gives the cursor back below the last picture."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def erase(self) -> None:
        """Gives the cursor back where the picture was."""
        if self._live is not None:
            self._live.transient = True
        self.close()

    def _message_secs(self, snapshot: Snapshot, now: float) -> float:
        """Since when the message has been the same."""
        if snapshot.message != self._message:
            self._message, self._message_since = snapshot.message, now
        return now - self._message_since

    def _make_live(self) -> Live:
        from rich.live import Live

        return Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def draw(
    snapshot: Snapshot, width: int, message_secs: float = 0.0, is_ascii: bool = False
) -> ConsoleRenderable:
    """What rich prints for a snapshot, in `width` columns.

    Args:
      snapshot: what to draw.
      width: columns of the terminal.
      message_secs: how long its message has been true.
      is_ascii: the terminal has no other characters.
    """
    from rich.console import Group
    from rich.text import Text

    if snapshot.step is None:
        secs = f"  {_duration(message_secs)}" if message_secs >= 1 else ""
        head: ConsoleRenderable = Text(snapshot.message + secs, style="cyan")
    else:
        head = _draw_head(snapshot, width, is_ascii)
    return Group(head, _draw_rows(snapshot.rows)) if snapshot.rows else head


def _draw_head(snapshot: Snapshot, width: int, is_ascii: bool) -> ConsoleRenderable:
    from rich.table import Table
    from rich.text import Text

    label = f"step {_of_target(snapshot)}"
    figures = "  ".join([*snapshot.figures, *([NO_TARGET] if snapshot.is_endless else [])])
    head = Table.grid(padding=(0, 2, 0, 0))
    cells = [Text(label, style="bold"), Text(figures, no_wrap=True, overflow="ellipsis")]
    if snapshot.target is not None:
        cells.insert(
            1, _draw_bar(snapshot, max(10, min(40, width - len(label) - len(figures) - 4)), is_ascii)
        )
    head.add_row(*cells)
    return head


def _draw_bar(snapshot: Snapshot, width: int, is_ascii: bool) -> Text:
    """Told apart by the characters, too, as there are terminals without colours."""
    from rich.text import Text

    full, empty = ("#", ".") if is_ascii else ("█", "░")
    count = min(width, width * (snapshot.step or 0) // (snapshot.target or 1))
    return Text.assemble((full * count, "green"), (empty * (width - count), "dim"), no_wrap=True)


def _draw_rows(rows: Sequence[Row]) -> ConsoleRenderable:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3, 0, 0))
    for width in (10, 8, 12, 14):  # so that the columns stay where they are
        table.add_column(min_width=width, no_wrap=True)
    for row in rows:
        steps = "" if row.local_steps is None else counted(row.local_steps, "step")
        rate = "" if row.rate is None else f"{row.rate:.1f} steps/s"
        table.add_row(
            Text(f"  {row.name}"), Text(row.state, style=_style(row.state)), Text(steps, justify="right"),
            Text(rate, justify="right"),
        )  # fmt: skip
    return table


def _style(state: str) -> str:
    if state in ("training", "serving"):
        return "green"
    return "red" if state.startswith(("status", "failed", "ended by")) else "dim"
