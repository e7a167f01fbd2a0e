"""Profiles as text: a table of the workers, one of the ps tasks, and a bar of each worker's step.

for line in lines(profiles):
    print(line)
"""

from __future__ import annotations

from collections.abc import Sequence

from ps_train.profile import Profile, PsFigures
from ps_train.step_trace import PARTS

BAR_WIDTH = 60
LETTERS = {
    "input": "i", "compute": "#", "pull": "<", "push": ">", "update": "u", "wait": ".", "other": " ",
}  # fmt: skip


def lines(profiles: Sequence[Profile]) -> list[str]:
    """The whole text."""
    rows = [_worker_row(profile) for profile in profiles]
    found = aligned([("worker", "steps/s", "ms/step", *PARTS, "CPU"), *rows])
    links = [(p.worker, name, ps) for p in profiles for name, ps in p.ps.items()]
    if links:  # a colocated worker that holds the whole model has none
        found += aligned([
            ("line", "MB pulled", "pushed", "messages", "MB/s pull", "alone", "MB/s push", "alone", "CPU of ps"),
            *(_link_row(worker, name, ps) for worker, name, ps in links),
        ])  # fmt: skip
    found += bars(profiles)
    if links and profiles[0].settings.is_colocated:
        found.append("CPU of ps is that of its process, the worker's work in it included.")
    notes = [p.worker for p in profiles if not p.is_probe_alone]
    if notes:
        found.append(
            f"Others trained while {', '.join(notes)} probed: the links may give more than is shown under 'alone'."
        )
    return found


def bars(profiles: Sequence[Profile]) -> list[str]:
    """A bar for each worker, as long as its step over the longest one, and what its letters mean."""
    longest = max(profile.step_secs for profile in profiles)
    width = max(len(profile.worker) for profile in profiles)
    found = [
        f"{profile.worker:<{width}} |{_bar(profile, BAR_WIDTH / longest)}| {1e3 * profile.step_secs:.1f} ms"
        for profile in profiles
    ]
    return [
        *found,
        " " * width + "  " + "  ".join(f"{LETTERS[part]} {part}" for part in PARTS if part != "other"),
    ]


def _bar(profile: Profile, chars_per_sec: float) -> str:
    """Rounded at the ends of the parts, so that the lengths add up."""
    text, secs = "", 0.0
    for part in PARTS:
        secs += profile.parts[part]
        text += LETTERS[part] * (round(secs * chars_per_sec) - len(text))
    return text


def _worker_row(profile: Profile) -> tuple[str, ...]:
    parts = (f"{1e3 * profile.parts[part]:.1f}" for part in PARTS)
    cpu = f"{profile.cores_used:.2f} of {profile.cores}"
    return (profile.worker, f"{profile.steps_per_sec:.1f}", f"{1e3 * profile.step_secs:.1f}", *parts, cpu)


def _link_row(worker: str, name: str, ps: PsFigures) -> tuple[str, ...]:
    traffic = ps.traffic
    cpu = "?" if ps.cores_used is None else f"{ps.cores_used:.2f} of {ps.cores}"
    return (
        f"{name} - {worker}", _mb(traffic.pulled_bytes), _mb(traffic.pushed_bytes),
        f"{traffic.pull_messages + traffic.push_messages:.0f}",
        _mb(ps.pull_rate), _mb(ps.link_pull_rate), _mb(ps.push_rate), _mb(ps.link_push_rate), cpu,
    )  # fmt: skip


def _mb(num_bytes: float | None) -> str:
    """Megabytes with three digits."""
    if num_bytes is None:
        return "?"
    return f"{num_bytes / 1e6:.0f}" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.3g}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
