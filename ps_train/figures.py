"""What a worker's curves show, made of its record on the boards as that changes: what was done between two looks, and how fast.

    figures = Figures({})
    figures.note({"run": "4f", "local_steps": 50, "examples": 1600, "secs": 2.0, "loss": 0.7})
    # {'loss': 0.7, 'local_steps/sec': 25.0, 'examples/sec': 800.0}

A record counts from the start of its process. Rates are taken from the clock of the process that made the steps, and not from when
somebody looked. After a restart of the worker its gradients that were dropped count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_train.staleness import Histogram

Record = Mapping[str, Any]

LOSS, RATE, GLOBAL_RATE = "loss", "learning_rate", "global_step/sec"
LOCAL_RATE, EXAMPLE_RATE = "local_steps/sec", "examples/sec"
DROPPED = "dropped_gradients"
STALENESS_MEAN, STALENESS = "staleness/mean", "staleness/histogram"


class Figures:
    """The curves of one worker.

    Args:
      record: what it had done before; nothing of that is shown.
      is_global: the speed of the job is shown, too, by the global steps that this worker saw.
    """

    def __init__(self, record: Record, is_global: bool = False):
        self._last = dict(record)
        self._is_global = is_global
        self._dropped_before = 0  # by earlier processes

    def rewind(self, step: int) -> None:
        """The model is at this global step now."""
        self._last["step"] = step

    def note(self, record: Record) -> dict[str, float | Histogram]:
        """Tag -> value of what was done since the last call; empty if that is nothing."""
        last = self._last
        is_other = record.get("run") != last.get("run")
        if is_other:
            last = {}
        steps = record.get("local_steps", 0) - last.get("local_steps", 0)
        if steps <= 0:
            return {}
        self._dropped_before += self._last.get("dropped", 0) if is_other else 0
        self._last = dict(record)
        values: dict[str, float | Histogram] = {}
        if record.get("loss") is not None:
            values[LOSS] = record["loss"]
        secs = record.get("secs", 0) - last.get("secs", 0)
        if secs > 0:
            values[LOCAL_RATE] = steps / secs
            if "examples" in record and record["examples"]:
                values[EXAMPLE_RATE] = (record["examples"] - last.get("examples", 0)) / secs
            if self._is_global and "step" in last:
                values[GLOBAL_RATE] = max(record["step"] - last["step"], 0) / secs
        if "dropped" in record:
            values[DROPPED] = self._dropped_before + record["dropped"]
        return values | _staleness(record, last) | _traced(record, values.get(LOCAL_RATE))


def _staleness(record: Record, last: Record) -> dict[str, float | Histogram]:
    before = Histogram.from_list(last.get("staleness"))
    new = Histogram.from_list(record.get("staleness")).since(before)
    return {STALENESS_MEAN: new.total / new.number, STALENESS: new} if new.number else {}


def _traced(record: Record, rate: Any) -> dict[str, float | Histogram]:
    """What the steps that were traced have shown: milliseconds of a step, and bytes of one step and of a second."""
    values: dict[str, float | Histogram] = {}
    for part, secs in record.get("parts", {}).items():
        values[f"step_ms/{part}"] = 1000 * secs
    for name, sizes in record.get("traffic", {}).items():
        for direction, size in zip(("pulled", "pushed"), sizes, strict=True):
            tag = f"{direction}_bytes/{as_directory(name)}"
            values[f"{tag}/step"] = size
            if rate is not None:
                values[f"{tag}/sec"] = size * rate
    return values


def as_directory(name: str) -> str:
    """The directory for a task's run, and its name in tags.

    >>> as_directory("worker:1")
    'worker_1'
    """
    return name.replace(":", "_")
