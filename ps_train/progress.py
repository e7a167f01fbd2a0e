"""Where a job's progress is shown: a live picture on a terminal, plain lines elsewhere. Draws values (`picture`), asks nobody.

    screen = Screen()
    screen.show(Snapshot(step=412, target=1000, ...))     # as often as you like
    screen.complain("worker:1 is lost", goes_on=True)     # above the picture, which is drawn anew
    screen.say("Trained 1000 steps.")                     # below the last picture, which stays

No thread draws: the tasks are forked from this process while it is on the screen already. The cursor is never hidden, nor any
mode of the terminal changed, and it stands on the line below the picture: whatever ends or stops this process, a shell goes on there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from ps_train.picture import Snapshot, as_text, draw, head, remarks, states

REDRAW_SECS = 0.2
GAP_SECS = 0.5  # between two pictures: this process may have been stopped
LINE_SECS = 5.0
CHANGE_SECS = 1.0
PLAIN = ("NO_COLOR", "CI")  # variables of those who want lines though there is a terminal


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

    @property
    def is_live(self) -> bool:
        """Whether `show` draws a picture, and not lines."""
        return is_drawable(sys.stdout)

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Shows progress on stdout."""
        with _lasting(sys.stdout):
            self._display = self._display or make_display(sys.stdout)
            self._display.show(snapshot, is_urgent)

    def say(self, text: str = "", goes_on: bool = False) -> None:
        """Prints to stdout; `goes_on`: the progress will be shown below it."""
        self._make_room(goes_on)
        with _lasting(sys.stdout):
            print(text, flush=True)

    def complain(self, text: str, goes_on: bool = False) -> None:
        """Prints to stderr, each line led by the program's name; `goes_on`: the progress will be shown below it."""
        self._make_room(goes_on)
        with _lasting(sys.stderr):
            for line in text.splitlines():
                print(f"ps_train: {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the progress; a later `show` begins a new picture."""
        self._make_room(goes_on=False)

    def _make_room(self, goes_on: bool) -> None:
        if self._display is not None:
            with _lasting(sys.stdout):
                self._display.erase() if goes_on else self._display.close()


@contextlib.contextmanager
def _lasting(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_drawable(stream: TextIO) -> bool:
    """Whether it is a terminal that can redraw, and nobody asks for lines."""
    is_wanted = not any(os.environ.get(name) for name in PLAIN)
    return stream.isatty() and is_wanted and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def make_display(stream: TextIO) -> Display:
    """A live display if `stream` is drawable, else plain lines."""
    return LiveDisplay(stream) if is_drawable(stream) else PlainDisplay(stream)


class PlainDisplay:
    """A line every five seconds, and when a task's state changes; never more than one a second.

    What is the same as in the last one is left out.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._last_at = float("-inf")
        self._last_head = self._last_states = self._last_message = ""
        self._told: list[str] = []

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Writes a line if one is due."""
        now, first, told = self._clock(), head(snapshot), states(snapshot)
        news = [line for line in remarks(snapshot) if line not in self._told]
        has_changed = bool(news) or (snapshot.message, told) != (self._last_message, self._last_states)
        pause = CHANGE_SECS if has_changed else LINE_SECS
        if (first, told) == (self._last_head, self._last_states) and not news:
            return
        if now - self._last_at < pause and not is_urgent:
            return
        lines = [as_text(snapshot, first != self._last_head, told != self._last_states), *news]
        self._stream.write("".join(f"{line}\n" for line in lines if line))
        self._stream.flush()
        self._last_at, self._last_head = now, first
        self._last_message, self._last_states, self._told = snapshot.message, told, remarks(snapshot)

    def close(self) -> None:
        """Lines need no end."""

    def erase(self) -> None:
        """Lines stay."""


class LiveDisplay:
    """A bar for the global steps and a row for each task, redrawn in place; nothing while this process is in the background."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ):  # fmt: skip
        from rich.console import Console

        self._stream, self._clock, self._sleep, self._last_at = stream, clock, sleep, float("-inf")
        self._message, self._message_since = "", 0.0
        self._console = Console(file=stream)  # its size is set for each picture
        self._widths: list[int] = []  # of the picture's lines
        self._was_stopped = False
        self._handler: Any = None

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Redraws, at most five times a second."""
        now = self._clock()
        if now - self._last_at < REDRAW_SECS and not is_urgent:
            return
        if now - self._last_at > GAP_SECS:
            self._sleep(0.02)  # for a SIGCONT that has come to another thread
        self._last_at = now
        is_away = _is_in_background(self._stream)
        if self._was_stopped or is_away:  # the shell has written below the picture
            self._was_stopped, self._widths = False, []
        if is_away:
            return
        if self._handler is None:
            with contextlib.suppress(ValueError):  # no main thread
                self._handler = signal.signal(signal.SIGCONT, self._note_stop)
        lines, widths = self._render(snapshot, now)
        self._stream.write(self._up() + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._widths = widths

    def close(self) -> None:
        """Goes on below the last picture."""
        self._forget()

    def erase(self) -> None:
        """Goes on where the picture was."""
        if self._widths and not self._was_stopped and not _is_in_background(self._stream):
            self._stream.write(self._up())
            self._stream.flush()
        self._forget()

    def _forget(self) -> None:
        self._widths, self._was_stopped, self._last_at = [], False, float("-inf")
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)
            self._handler = None

    def _note_stop(self, *_: object) -> None:
        self._was_stopped = True

    def _up(self) -> str:
        """What takes the picture away: terminals break its lines anew when they become narrower."""
        width, _ = terminal_size(self._stream)
        rows = sum(max(1, -(-each // width)) for each in self._widths)
        return f"\r\x1b[{rows}A\x1b[J" if rows else ""

    def _render(self, snapshot: Snapshot, now: float) -> tuple[list[str], list[int]]:
        """The picture's lines and their widths, all that have room."""
        from rich.cells import cell_len
        from rich.console import ConsoleDimensions
        from rich.text import Text

        console, (columns, rows) = self._console, terminal_size(self._stream)
        width, height = max(columns - 1, 1), max(rows - 1, 1)
        console.size = ConsoleDimensions(width, height)
        is_ascii = not console.encoding.startswith("utf")
        picture = draw(snapshot, width, self._message_secs(snapshot, now), is_ascii, height)
        with console.capture() as captured:
            console.print(picture)
        lines = [line.rstrip() for line in captured.get().splitlines()[:height]]
        return lines, [cell_len(Text.from_ansi(line).plain) for line in lines]

    def _message_secs(self, snapshot: Snapshot, now: float) -> float:
        """Since when the message has been the same."""
        if snapshot.message != self._message:
            self._message, self._message_since = snapshot.message, now
        return now - self._message_since


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines as they are now; where the terminal does not say, by the environment."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    known = shutil.get_terminal_size()  # COLUMNS and LINES, or 80 and 24
    return columns or known.columns, lines or known.lines


def _is_in_background(stream: TextIO) -> bool:
    """Whether the terminal belongs to another of the shell's jobs."""
    try:
        return os.tcgetpgrp(stream.fileno()) != os.getpgrp()
    except (OSError, ValueError):  # not this process's own terminal, or none
        return False
