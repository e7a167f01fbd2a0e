"""What is shown of a job: `Snapshot` is its state at a moment, as lines (`as_text`) or drawn for a terminal (`draw`). Pure.

>>> rows = (Row("ps:0", "serving"), Row("worker:0", "training", 52, 98.0), Row("worker:1", "silent", 9, secs=12.0))
>>> print(as_text(Snapshot(rows, step=60, target=200, rate=20.0, loss=0.25)))
step 60/200, 20.0 steps/s, loss 0.25, 0:07 left
  ps:0 serving, worker:0 training, worker:1 silent
"""

from __future__ import annotations

import itertools
import textwrap
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ps_train.board import NO_ANSWER
from ps_train.cluster import AT_TARGET, SERVING
from ps_train.wording import as_rate, counted

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable
    from rich.text import Text

WINDOW_SECS = 5.0  # of a rate, or as long as MIN_CHANGES take
MIN_CHANGES = 5
STALLED_SECS = 5.0  # without a step, or STALLED_INTERVALS of the usual time between two
STALLED_INTERVALS = 3
LINE_WIDTH = 79
MIN_ROW_WIDTH = 40  # of a terminal; in a narrower one tasks are told of as in lines
MIN_FIGURES_WIDTH = 14  # beside the step; where there is less, they are below it
NO_TARGET = "(no target: Ctrl-C ends and saves)"
SILENT, NO_STEP, SLOW, LATE, LOST, WAITING = "silent", "no step", "slow", "late", "lost", "waiting for "


class Row(NamedTuple):
    """A task.

    Attributes:
      state: a word or two.
      local_steps, rate: its steps, and those a second; None for a ps, and where they are not known.
      secs: for how long it has been in that state, where that matters.
      remark: more about it.
    """

    name: str
    state: str
    local_steps: int | None = None
    rate: float | None = None
    secs: float | None = None
    remark: str = ""


class Snapshot(NamedTuple):
    """The cluster at a moment: `message` where there are no steps yet; `rate` is global steps per second.

    Attributes:
      idle_secs: for how long no step has come, if that is longer than usual.
      evaluation: the newest result on held-out data.
      restarts: how often all tasks were started again, in words.
      is_ended: no worker runs any more.
    """

    rows: tuple[Row, ...] = ()
    step: int | None = None
    target: int | None = None
    rate: float | None = None
    loss: float | None = None
    message: str = ""
    is_ended: bool = False
    idle_secs: float | None = None
    evaluation: str = ""
    restarts: str = ""

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
            found.append(f"{as_rate(self.rate)} steps/s")
        if self.loss is not None:
            found.append(f"loss {self.loss:.4g}")
        if self.eta_secs is not None:
            found.append(f"{duration(self.eta_secs)} left")
        return found


class Rate:
    """Steps per second over the last few seconds, or the last few steps where these take longer; 0 if they stay away.

    >>> rate = Rate()
    >>> [rate.update(step, now) for step, now in ((0, 0.0), (10, 1.0), (30, 2.0), (30, 2.5), (30, 9.0), (40, 10.0))]
    [None, 10.0, 15.0, 15.0, 0.0, None]

    What is counted is the time between the moments at which new steps were seen; one that is overdue counts, too.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when the step was first seen, and the step

    def update(self, step: int, now: float) -> float | None:
        """Adds a point, `now` in seconds. None until there are two steps; after a step back or a pause it begins anew."""
        seen = self._seen
        is_new = not seen or step != seen[-1][1]
        is_after_a_pause = is_new and len(seen) > 1 and self.idle_secs(now) is not None
        if seen and (step < seen[-1][1] or is_after_a_pause):
            seen.clear()
        if is_new:
            seen.append((now, step))
        while len(seen) > MIN_CHANGES and now - seen[0][0] > WINDOW_SECS:
            seen.popleft()
        if len(seen) < 2:
            return None
        if self.idle_secs(now) is not None:
            return 0.0
        (then, first), (lately, last) = seen[0], seen[-1]
        return (last - first) / (lately - then + max(now - lately - self._interval, 0.0))

    def idle_secs(self, now: float) -> float | None:
        """Seconds since the last new step, if one is long overdue."""
        if not self._seen:
            return None
        secs = now - self._seen[-1][0]
        return secs if secs > max(STALLED_SECS, STALLED_INTERVALS * self._interval) else None

    @property
    def _interval(self) -> float:
        """The usual time between two moments at which new steps were seen."""
        return (self._seen[-1][0] - self._seen[0][0]) / max(len(self._seen) - 1, 1)


# Lines.


def as_text(snapshot: Snapshot, has_head: bool = True, has_states: bool = True) -> str:
    """A snapshot on one line, or with the tasks' states below it if it would be too long.

    >>> rows = (Row("ps:0", "serving"), Row("worker:0", "training", 52, 98.0), Row("worker:1", "training"))
    >>> print(as_text(Snapshot(rows, step=60, target=200, loss=0.25)))
    step 60/200, loss 0.25; ps:0 serving, worker:0-1 training
    """
    first = head(snapshot) if has_head else ""
    told = states(snapshot) if has_states else ""
    line = "; ".join(part for part in (first, told) if part)
    if has_head and (len(line) <= LINE_WIDTH or not told):
        return line
    return "\n".join([*([first] if has_head else []), *_wrapped(told, LINE_WIDTH)])


def head(snapshot: Snapshot) -> str:
    """The model's figures, on a line."""
    if snapshot.step is None:
        return snapshot.message
    text = ", ".join([f"step {_of_target(snapshot)}", *snapshot.figures])
    return f"{text} {NO_TARGET}" if snapshot.is_endless else text


def states(snapshot: Snapshot) -> str:
    """Each task's state; neighbours in the same one are named together."""
    found = []
    for (job, state), rows in itertools.groupby(
        snapshot.rows, lambda row: (row.name.partition(":")[0], row.state)
    ):
        indices = [row.name.partition(":")[2] for row in rows]
        found.append(f"{job}:{'-'.join(dict.fromkeys([indices[0], indices[-1]]))} {state}")
    return ", ".join(found)


def remarks(snapshot: Snapshot) -> list[str]:
    """The newest evaluation, and what is to be said of single tasks; a line each."""
    evaluation = [f"  {snapshot.evaluation}"] if snapshot.evaluation else []
    return [*evaluation, *(f"  {row.name}: {row.remark}" for row in snapshot.rows if row.remark)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, max(width, 20), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _of_target(snapshot: Snapshot) -> str:
    return f"{snapshot.step}" if snapshot.target is None else f"{snapshot.step}/{snapshot.target}"


def duration(secs: float) -> str:
    """As "1:15", with hours "2:00:00".

    >>> duration(75.2), duration(7200)
    ('1:15', '2:00:00')
    """
    minutes, secs = divmod(int(secs + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


# For a terminal.


def draw(
    snapshot: Snapshot, width: int, message_secs: float = 0.0, is_ascii: bool = False, height: int = 1000
) -> ConsoleRenderable:
    """What rich prints for a snapshot, in `width` columns.

    Args:
      snapshot: what to draw.
      width: columns of the terminal.
      message_secs: how long its message has been true.
      is_ascii: the terminal has no other characters.
      height: lines of the terminal; tasks that are too many for it, or for a narrow one, are told of as in plain lines.
    """
    from rich.console import Group
    from rich.text import Text

    if snapshot.step is None:
        secs = f"  {duration(message_secs)}" if message_secs >= 1 else ""
        restarts = f"  {snapshot.restarts}" if snapshot.restarts else ""
        parts: list[ConsoleRenderable] = [Text(snapshot.message + secs + restarts, style="cyan")]
    else:
        parts = _draw_head(snapshot, width, is_ascii)
    parts += [
        Text(line, style="cyan" if line[2:] == snapshot.evaluation else "yellow")
        for line in remarks(snapshot)
    ]
    if width >= MIN_ROW_WIDTH and len(snapshot.rows) + len(parts) < height:
        return Group(*parts, _draw_rows(snapshot.rows)) if snapshot.rows else Group(*parts)
    return Group(*parts, Text("\n".join(_wrapped(states(snapshot), width))))


def _draw_head(snapshot: Snapshot, width: int, is_ascii: bool) -> list[ConsoleRenderable]:
    """The step, which is never cut while its number alone has room; then a bar, if all of the figures have room beside it."""
    from rich.table import Table
    from rich.text import Text

    idle = [] if snapshot.idle_secs is None else [f"no step for {duration(snapshot.idle_secs)}"]
    endless = [NO_TARGET] if snapshot.is_endless else []
    figures = "  ".join(
        [*snapshot.figures, *idle, *([snapshot.restarts] if snapshot.restarts else []), *endless]
    )
    step = f"{snapshot.step}"
    labels = (f"step {_of_target(snapshot)}", f"step {step}", step)
    label = next((label for label in labels if len(label) <= width), step)
    cells = [
        Text(label, style="bold", no_wrap=True, overflow="ellipsis"),
        Text(figures, "yellow" if idle else "", no_wrap=True, overflow="ellipsis"),
    ]
    room = width - len(label) - 2
    if room < MIN_FIGURES_WIDTH:
        return [cells[0], *(cells[1:] if figures else [])]
    room -= len(figures) + 2
    if snapshot.target is not None and room >= 10:
        cells.insert(1, _draw_bar(snapshot, min(40, room), is_ascii))
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_column(min_width=len(label))
    head.add_row(*cells)
    return [head]


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
        state = row.state if row.secs is None else f"{row.state} for {duration(row.secs)}"
        steps = "" if row.local_steps is None else counted(row.local_steps, "step")
        rate = "" if row.rate is None else f"{as_rate(row.rate)} steps/s"
        table.add_row(
            Text(f"  {row.name}"), Text(state, style=_style(row.state)), Text(steps, justify="right"),
            Text(rate, justify="right"),
        )  # fmt: skip
    return table


def _style(state: str) -> str:
    if state in ("training", SERVING, AT_TARGET):
        return "green"
    if state in (SLOW, LATE, NO_STEP) or state.startswith(WAITING):
        return "yellow"
    is_bad = state in (SILENT, NO_ANSWER, LOST) or state.startswith(("status", "failed", "ended by"))
    return "red" if is_bad else "dim"
