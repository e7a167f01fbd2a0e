"""The status of a job as tables and lines: what `ps_train status` prints, and its page shows.

    print(as_text(status))
    for table in tables(status):
        table.name, table.columns, table.rows           # the cells are text

What is long is shortened: `status.as_dict` has all.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.board import NO_ANSWER
from ps_train.cluster import ENDED
from ps_train.picture import SILENT
from ps_train.stall import describe_round
from ps_train.status import (
    MAX_NAMED,
    NOT_SEEN,
    RoundStatus,
    Status,
    TaskStatus,
    as_silence,
    unanswered,
    waiting_for,
)
from ps_train.tables import Held, Line, largest
from ps_train.wording import as_bytes, as_rate, counted, describe_shares, named

MAX_VARIABLES = 10
MAX_LINES = 16
TASKS, PLACEMENT, TRANSPORT = "tasks", "placement", "transport"


class Table(NamedTuple):
    """Cells of text.

    Attributes:
      name: one of TASKS, PLACEMENT, TRANSPORT.
      columns: their heads; such as hold numbers are in `right`, too.
      marked: rows of tasks that something is the matter with.
      more: what was left out, in words.
    """

    name: str
    columns: tuple[str, ...]
    right: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: tuple[int, ...] = ()
    more: str = ""


def as_text(status: Status) -> str:
    """The tables, a line for each remark, and what is known of the model and the job."""
    return "\n".join(line for line, _ in as_lines(status))


def as_lines(status: Status) -> list[tuple[str, bool]]:
    """The lines of `as_text`, and whether each is a table's, which is no use if it is broken."""
    first, *others = tables(status)
    remarks = [f"{task.task}: {'; '.join(task.remarks)}" for task in status.tasks if task.remarks]
    lines = [(line, True) for line in _drawn(first)]
    lines += [(line, False) for line in [*remarks, *facts(status)]]
    for table in others:
        lines += [(line, True) for line in _drawn(table)]
        lines += [(table.more, False)] if table.more else []
    return [*lines, *((line, False) for line in endings(status))]


def tables(status: Status) -> list[Table]:
    """Of the tasks, and, as far as known, of the variables and of a step's messages."""
    return [_tasks(status), *_placement(status.placement), *_transport(status.transport)]


def facts(status: Status) -> list[str]:
    """A line each on the model, its placement and the rounds."""
    lines = []
    if status.step is not None:
        lines.append(f"model: {_model(status)}")
    if status.shares:
        lines.append(f"placement: {describe_shares(status.shares)}")
    for one in status.rounds:
        lines.append(f"rounds: {_round(one, waiting_for(unanswered(status.tasks)))}")
    return lines


def _round(one: RoundStatus, wait: str) -> str:
    if one.num_done:
        return f"{one.num_done} completed in the last second"
    return "; ".join(filter(None, [describe_round(one.standing), wait]))


def endings(status: Status) -> list[str]:
    """Why the job is over, and what does not fit together."""
    return [*([] if status.job_end is None else [f"the job is over: {status.job_end}"]), *status.notes]


def why_unanswered(status: Status) -> str:
    """A line for when no ps has answered."""
    if not status.is_gone:
        there = [task.task for task in status.tasks if task.is_unanswered and not task.is_gone]
        are, where = ("is", "its host") if len(there) == 1 else ("are", "their hosts")
        return (
            f"No ps answers, and not all of them are gone: the job waits for {named(there, 'ps task', MAX_NAMED)}, which {are} stopped, "
            f"too busy, or cut off by the network. Look on {where}; or check --ps_hosts."
        )
    return "No ps answers. The job has ended, or was not started yet; or check --ps_hosts."


def _drawn(table: Table) -> list[str]:
    """Columns without a cell are left out."""
    rows = [table.columns, *table.rows]
    kept = [i for i in range(len(table.columns)) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in kept}
    rights = {i for i in kept if table.columns[i] in table.right}
    return [
        "  ".join(row[i].rjust(widths[i]) if i in rights else row[i].ljust(widths[i]) for i in kept).rstrip()
        for row in rows
    ]


_COLUMNS = ("task", "state", "host", "pid", "step", "local", "steps/s", "loss", "staleness", "heard of")


def _tasks(status: Status) -> Table:
    marked = tuple(i for i, task in enumerate(status.tasks) if _is_in_trouble(task))
    return Table(TASKS, _COLUMNS, _COLUMNS[3:9], [_cells(task) for task in status.tasks], marked)


def _is_in_trouble(task: TaskStatus) -> bool:
    """Not who only waits for others."""
    return task.state not in ENDED and any(not remark.startswith("waiting for ") for remark in task.remarks)


def _cells(task: TaskStatus) -> tuple[str, ...]:
    heard = ""
    if task.state not in (NOT_SEEN, NO_ANSWER, *ENDED):
        heard = f"{as_silence(task.silent_secs)} ago" if task.is_silent else "now"
    rate = "" if task.local_rate is None else as_rate(task.local_rate)
    numbers = [rate, _shown(task.loss, ".4g"), _shown(task.staleness, ".1f")]
    state = SILENT if task.is_silent and task.state not in ENDED else task.state
    return (
        task.task, state, task.host or task.address or "", _shown(task.pid), _shown(task.step),
        _shown(task.local_steps), *numbers, heard,
    )  # fmt: skip


def _placement(rows: Sequence[Held]) -> list[Table]:
    if not rows:
        return []
    columns = ("on", "variable", "shape", "rows", "type", "size", "with slots")
    shown, num_left = largest(rows, MAX_VARIABLES)
    size = sum(row.total_bytes for row in rows) - sum(row.total_bytes for row in shown)
    more = f"and {counted(num_left, 'smaller one')}, {as_bytes(size)}" if num_left else ""
    cells = [
        (
            row.ps, row.name, _shape(row.whole or row.shape), _part(row), row.dtype, as_bytes(row.num_bytes),
            as_bytes(row.total_bytes),
        )
        for row in shown
    ]  # fmt: skip
    return [Table(PLACEMENT, columns, ("size", "with slots"), cells, more=more)]


def _shape(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"


def _part(row: Held) -> str:
    """Which rows of a partitioned variable these are; in other dimensions, where the part begins."""
    if row.part is None or not row.shape:
        return ""
    if any(row.part[1:]):
        return f"from {_shape(row.part)}"
    return f"{row.part[0]}-{row.part[0] + (row.shape[0] or 0) - 1}"


def _transport(transport: Mapping[str, tuple[Line, ...]]) -> list[Table]:
    """Workers whose steps send the same have a row for all of them."""
    groups: dict[Line, list[str]] = collections.defaultdict(list)
    for worker, lines in transport.items():
        for line in lines:
            groups[line].append(worker)
    if not groups:
        return []
    columns = ("a step's line", "pulls", "bytes pulled", "pushes", "bytes pushed", "type", "how")
    cells = [
        (
            f"{line.peer} - {_span(workers)}", str(line.pull_messages), as_bytes(line.pulled_bytes),
            str(line.push_messages), as_bytes(line.pushed_bytes), ", ".join(line.dtypes), ", ".join(_how(line)),
        )
        for line, workers in groups.items()
    ]  # fmt: skip
    num_left = max(len(cells) - MAX_LINES, 0)
    more = f"and {counted(num_left, 'more line')}" if num_left else ""
    return [Table(TRANSPORT, columns, columns[1:5], cells[:MAX_LINES], more=more)]


def _how(line: Line) -> list[str]:
    if not line.unsized_messages:
        return list(line.how)
    return [*line.how, f"and {counted(line.unsized_messages, 'message')} as large as the batch has it"]


def _span(workers: Sequence[str]) -> str:
    """Names, neighbours together.

    >>> _span(["chief:0", "worker:0", "worker:1", "worker:2", "worker:5"])
    'chief:0, worker:0-2, worker:5'
    """
    spans: list[list[Any]] = []
    for job, index in (name.split(":") for name in workers):
        if spans and spans[-1][0] == job and spans[-1][2] == int(index) - 1:
            spans[-1][2] = int(index)
        else:
            spans.append([job, int(index), int(index)])
    return ", ".join(f"{job}:{a}" if a == b else f"{job}:{a}-{b}" for job, a, b in spans)


def _model(status: Status) -> str:
    target = f"/{status.train_steps}" if status.train_steps else ""
    parts = [f"step {status.step}{target}"]
    if status.rate is not None:
        parts.append(f"{as_rate(status.rate)} steps/s")
    if status.update == "sync":
        parts.append(f"sync, {status.quorum} gradients an update")
    elif status.update:
        parts.append(status.update)
    return ", ".join(parts)


def _shown(value: Any, form: str = "") -> str:
    return "" if value is None else format(value, form)
