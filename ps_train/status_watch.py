"""`ps_train status --watch`: the status of a job again and again, until the job is over or gone, or a Ctrl-C.

    with make_pane(sys.stdout, is_json=False) as pane:
        status = watch(watcher, None, 2.0, pane.show)           # the last one

On a terminal each picture takes the place of the one before; elsewhere they follow one another, each led by its time, and with
--json there is a line for each.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from ps_train.cluster import OVER, Cluster
from ps_train.sight import Watcher
from ps_train.status import Status, as_dict, summarize
from ps_train.status_text import as_lines, why_unanswered
from ps_train.whole_files import as_json

if TYPE_CHECKING:
    from rich.live import Live

GONE_SECS = 30.0  # in which a ps that was killed may be back: on a busy host its start alone takes twenty


def watch(
    watcher: Watcher,
    given: Cluster | None,
    secs: float,
    show: Callable[[Status], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Status:
    """Looks every `secs` seconds, or as often as it can, and shows what it sees.

    Args:
      watcher: whom to ask.
      given: the cluster as the caller knows it, if it does.
      secs: from one look to the next.
      show: is given each status.
      clock, sleep: for tests.

    Returns:
      The last one: the job is over; no ps is there at the first look, at the target, or for GONE_SECS; or KeyboardInterrupt came.

    Raises:
      KeyboardInterrupt: before the first one.
    """
    gone_since: float | None = None
    seen: Status | None = None
    last: Status | None = None  # that some ps was there for
    try:
        while True:
            start = clock()
            seen = summarize(watcher.look(), given)
            show(seen)
            if not seen.is_gone:
                gone_since, last = None, seen
            elif gone_since is None:
                gone_since = start
            if seen.job_end is not None or (gone_since is not None and _is_end(last, clock() - gone_since)):
                return seen
            sleep(max(start + secs - clock(), 0.0))
    except KeyboardInterrupt:
        if seen is None:
            raise
        return seen


def _is_end(last: Status | None, gone_secs: float) -> bool:
    """Whether a job of which no ps is there any more is taken for ended."""
    if last is None or gone_secs >= GONE_SECS:
        return True
    workers = [task for task in last.tasks if not task.task.startswith("ps:")]
    is_reached = last.train_steps is not None and (last.step or 0) >= last.train_steps
    return is_reached or bool(workers) and all(task.state in OVER for task in workers)


def why_it_ended(status: Status, last_step: int | None, is_waiting: bool = False) -> str:
    """A line on a status of a watch, in which no ps has answered; `is_waiting`: it may yet."""
    if not status.is_gone or last_step is None:
        return why_unanswered(status)
    if is_waiting:
        return (
            f"No ps answers any more; the job was last seen at step {last_step}. Waiting for it to come back, up to "
            f"{GONE_SECS:.0f} s."
        )
    return f"The job is gone: no ps answers any more. It was last seen at step {last_step}."


class Pane:
    """What shows a status.

    Args:
      stream: where to.
      live: a rich Live to draw in; None: one picture below the other.
      is_json: a line of JSON for each.
    """

    def __init__(self, stream: TextIO, live: Live | None, is_json: bool):
        self._stream, self._live, self._is_json = stream, live, is_json
        self.last_step: int | None = None

    def show(self, status: Status) -> None:
        """Shows it."""
        if status.step is not None:
            self.last_step = status.step
        now = time.strftime("%H:%M:%S")
        why = [] if status.is_answered else [(why_it_ended(status, self.last_step, is_waiting=True), False)]
        lines = [*as_lines(status), *why]
        if self._is_json:
            print(as_json(as_dict(status)), file=self._stream, flush=True)
        elif self._live is None:
            print(now, *(line for line, _ in lines), "", sep="\n", file=self._stream, flush=True)
        else:
            from rich.console import Group
            from rich.text import Text

            drawn = [
                Text(line, no_wrap=is_row, overflow="ellipsis" if is_row else "fold")
                for line, is_row in lines
            ]
            self._live.update(Group(*drawn, Text(f"{now}, Ctrl-C ends", style="dim")), refresh=True)


@contextlib.contextmanager
def make_pane(stream: TextIO = sys.stdout, is_json: bool = False) -> Iterator[Pane]:
    """A Pane; the last picture stays."""
    if is_json or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield Pane(stream, None, is_json)
        return
    from rich.console import Console
    from rich.live import Live

    live = Live(
        console=Console(file=stream), auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    with live:
        yield Pane(stream, live, is_json)
