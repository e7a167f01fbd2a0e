"""What was simulated in words: a table, a sentence of advice, and JSON.

for line in lines(rows, helps):
    print(line)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ps_train.plan.setup import Outcome
from ps_train.plan.sizes import ENOUGH
from ps_train.profile_table import aligned
from ps_train.wording import as_bytes, counted

HEAD = ("workers", "ps", "steps/s", "speed-up", "efficiency", "bottleneck", "its share", "ps used")
WORTH = 1.05  # what a change has to give to be named
NUM_NAMED = 3


def lines(
    rows: Sequence[Outcome], helps: Sequence[tuple[str, float]], is_enough: bool, notes: Sequence[str] = ()
) -> list[str]:
    """The whole text.

    Args:
      rows: by rising numbers of workers.
      helps: (flag, factor) for the last of them.
      is_enough: each has as many ps tasks as it takes.
      notes: what else is to be known of the figures.
    """
    return [
        _given(rows[-1]),
        *notes,
        *aligned([HEAD, *(_row(row) for row in rows)]),
        advice(rows, helps, is_enough),
    ]


def _given(row: Outcome) -> str:
    setup = row.setup
    scheme = "sync" if setup.is_sync else "async"
    scheme += (
        f" with {counted(setup.num_backups, 'backup worker')}" if setup.is_sync and setup.num_backups else ""
    )
    scheme += (
        f", lead of {setup.max_lead} at most" if setup.max_lead is not None and not setup.is_sync else ""
    )
    scheme += ", prefetch" if setup.prefetch and not setup.is_sync else ""
    scheme += ", overlap" if setup.overlap else ""
    scheme += ", colocated" if setup.is_colocated else ""
    if setup.num_slow:
        scheme += f", {counted(setup.num_slow, 'worker')} {setup.slow_factor:g} times as slow"
    links = [f"{_rate(setup.ps_out_rate)} out of a ps", f"{_rate(setup.ps_in_rate)} into it"]
    return (
        f"{scheme}: a step takes the worker {1e3 * setup.compute_secs:.3g} ms (varying by {100 * setup.compute_cv:.0f}%), pulls "
        f"{as_bytes(round(setup.pull_bytes))}, pushes {as_bytes(round(setup.push_bytes))}; {', '.join(links)}"
    )


def _rate(rate: float) -> str:
    return "any amount" if math.isinf(rate) else f"{as_bytes(round(rate))}/s"


def _digits(number: float) -> str:
    """At least three."""
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def _row(row: Outcome) -> tuple[str, ...]:
    setup = row.setup
    return (
        str(setup.num_workers),
        "-" if setup.is_colocated else str(setup.num_ps),
        _digits(row.steps_per_sec),
        f"{row.speed_up:.2f}",
        f"{row.efficiency:.2f}",
        row.bottleneck,
        f"{100 * row.shares[row.bottleneck]:.0f}%",
        f"{100 * max(row.use.values()):.0f}%",
    )


def advice(rows: Sequence[Outcome], helps: Sequence[tuple[str, float]], is_enough: bool = False) -> str:
    """Some sentences on the last row; `is_enough`: as many ps tasks as it takes were looked for."""
    last = rows[-1]
    setup = last.setup
    share = f"{100 * last.shares[last.bottleneck]:.0f}% of a step"
    verb = "makes" if setup.num_workers == 1 else "make"
    text = f"{counted(setup.num_workers, 'worker')} {verb} {_digits(last.speed_up or 0.0)} times the steps of one; "
    text += f"{share}: {last.bottleneck}."
    if not setup.is_colocated:
        ratio = f"one for {_digits(setup.num_workers / setup.num_ps)} workers"
        enough = f"give {100 * ENOUGH:.0f}% of what more would"
        text += f" {counted(setup.num_ps, 'ps task')}, {ratio}{f', {enough}' if is_enough else ''}."
    worth = [f"{flag} ({factor:.2f} times the steps)" for flag, factor in helps if factor >= WORTH]
    if worth:
        return f"{text} What would help: {', '.join(worth[:NUM_NAMED])}."
    return f"{text} No single flag would give {100 * (WORTH - 1):.0f}% more."


def as_dict(
    rows: Sequence[Outcome], helps: Sequence[tuple[str, float]], is_enough: bool, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """What --json prints."""
    return {
        "rows": [
            {
                "workers": row.setup.num_workers,
                "ps": 0 if row.setup.is_colocated else row.setup.num_ps,
                "steps_per_sec": row.steps_per_sec,
                "speed_up": row.speed_up,
                "efficiency": row.efficiency,
                "bottleneck": row.bottleneck,
                "shares": dict(row.shares),
                "use": dict(row.use),
            }
            for row in rows
        ],
        "setup": {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in dataclasses.asdict(rows[-1].setup).items()
        },
        "helps": dict(helps),
        "advice": advice(rows, helps, is_enough),
        "notes": list(notes),
    }
