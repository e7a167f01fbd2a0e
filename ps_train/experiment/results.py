"""What became of a run, as one record: its reports put together, kept in `run.json` of its folder, and a row of each table.

1. Before a run starts, its folder gets a record with the outcome `running`: there is no result yet.
2. When it has ended, the record is replaced in one move: `done` or `failed`, with the figures of the tasks' reports.
3. Another call of the experiment takes what is `done`; everything else is run again.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ps_train.cluster import EVALUATOR, TaskId
from ps_train.config import TrainConfig
from ps_train.experiment.speed import Speed
from ps_train.local_config import read_report, report_path

Record = dict[str, Any]
RECORD_FILE = "run.json"
RUNNING, DONE, FAILED = "running", "done", "failed"
CHIEF = TaskId("worker", 0)
FIGURES = (
    "global_step", "examples", "train_secs", "wall_secs", "steps_per_sec", "examples_per_sec", "loss", "staleness",
    "dropped", "cpu_secs",
)  # fmt: skip
OF_EVALUATIONS = ("global_step", "examples", "train_secs", "held_out_examples")


def read_record(folder: str) -> Record:
    """The record in a run's folder; empty if there is none."""
    return read_report(os.path.join(folder, RECORD_FILE))


def gather(config: TrainConfig, num_ps: int, num_workers: int) -> Record:
    """What the reports of a run's tasks say together.

    Args:
      config: of the run, with the places of its reports.
      num_ps, num_workers: size.

    Returns:
      dict: "figures" of FIGURES without wall_secs, what is not known None, "examples" those of gradients that were used; "metrics" of the
      last evaluation; "evaluations", each with "global_step", "examples", "train_secs", "held_out_examples", "metrics"; "curve"
      of the chief (seconds of training, global step, examples of all workers, loss), seconds and speeds as of
      `speed`; "staleness_counts"; "step_parts", seconds of a step by what they go to; "missing", the tasks that gave no report.
    """
    workers = [TaskId("worker", index) for index in range(num_workers)]
    ps_tasks = [TaskId("ps", index) for index in range(0 if config.has_no_ps else num_ps)]
    reports = {task: read_report(report_path(config, task, task == CHIEF)) for task in [*ps_tasks, *workers]}
    found = [reports[task] for task in workers if reports[task]]
    chief, evaluator = reports[CHIEF], read_report(report_path(config, EVALUATOR))
    staleness, per_step = _staleness(found), _ratio(_used_examples(found), chief.get("global_step"))
    speed = Speed.of(chief, found)
    return {
        "figures": {
            **_figures(chief, found, staleness, speed),
            "cpu_secs": _total(reports.values(), "cpu_secs"),
        },
        "metrics": evaluator.get("metrics") or {},
        "evaluations": _evaluations(evaluator, speed, per_step),
        "curve": [
            [speed.train_secs(step), step, _product(step, per_step), loss]
            for _, step, loss in chief.get("curve") or []
        ],
        "staleness_counts": {str(value): count for value, count in staleness.items()},
        "step_parts": _step_parts(found),
        "missing": [str(task) for task, report in reports.items() if not report],
    }


def _figures(
    chief: Mapping[str, Any], workers: Sequence[Mapping[str, Any]], staleness: Mapping[int, int], speed: Speed
) -> Record:
    step, num_examples = chief.get("global_step"), _used_examples(workers)
    secs = speed.train_secs(step)
    return {
        "global_step": step,
        "examples": num_examples,
        "train_secs": secs,
        "steps_per_sec": speed.steps_per_sec,
        "examples_per_sec": _ratio(num_examples, secs),
        "loss": chief.get("loss"),
        "staleness": _ratio(
            sum(value * count for value, count in staleness.items()), sum(staleness.values())
        ),
        "dropped": _total(workers, "dropped_gradients"),
    }


def _evaluations(evaluator: Mapping[str, Any], speed: Speed, per_step: float | None) -> list[Record]:
    """Each with where in the training its checkpoint was, in steps, examples and seconds."""
    return [
        {
            "global_step": one["global_step"],
            "examples": _product(one["global_step"], per_step),
            "train_secs": speed.train_secs(one["global_step"]),
            "held_out_examples": one["examples"],
            "metrics": one["metrics"],
        }
        for one in evaluator.get("evaluations") or []
    ]


def _used_examples(reports: Iterable[Mapping[str, Any]]) -> int | None:
    """Examples of all workers, without the part of each whose gradients were dropped."""
    used = [
        report["examples"] * (1 - report.get("dropped_gradients", 0) / max(report.get("local_steps", 0), 1))
        for report in reports
        if report.get("examples") is not None
    ]
    return round(sum(used)) if used else None


def _staleness(reports: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Staleness -> number of gradients of all workers, the lowest first."""
    counts: Counter[int] = Counter()
    for report in reports:
        for value, count in (report.get("staleness_counts") or {}).items():
            counts[int(value)] += count
    return dict(sorted(counts.items()))


def _step_parts(workers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Part of a step -> its seconds, the mean over the workers that were profiled; nothing without --profile_steps."""
    profiled = [report["profile"]["parts"] for report in workers if report.get("profile")]
    return {part: sum(one[part] for one in profiled) / len(profiled) for part in (profiled or [{}])[0]}


def _total(reports: Iterable[Mapping[str, Any]], key: str) -> Any:
    known = [report[key] for report in reports if report.get(key) is not None]
    return round(sum(known), 3) if known else None


def _ratio(number: float | None, of: float | None) -> float | None:
    return None if number is None or not of else number / of


def _product(number: float, times: float | None) -> int | None:
    return None if times is None else round(number * times)


# The tables: a row for each run, for each evaluation, for each point of a curve.


def run_rows(records: Sequence[Record], axes: Sequence[str]) -> list[list[Any]]:
    """`runs.csv`, its head first: a row for each run that has ended."""
    metrics = metric_names(records)
    head = [
        "run", *axes, "seed", "outcome", "exit_status", "reason", *FIGURES, *(f"eval_{name}" for name in metrics),
        "load_before", "load_after", "others_cores", "started", "command",
    ]  # fmt: skip
    rows = [
        [
            record["name"], *_place(record, axes), record["outcome"], record["exit_status"], record["reason"],
            *(record["figures"].get(name) for name in FIGURES), *(record["metrics"].get(name) for name in metrics),
            record["before"]["load"], record["after"]["load"], record.get("others_cores"), record["started"], record["command"],
        ]
        for record in records
    ]  # fmt: skip
    return [head, *rows]


def evaluation_rows(records: Sequence[Record], axes: Sequence[str]) -> list[list[Any]]:
    """`evaluations.csv`, its head first: a row for each evaluation."""
    metrics = metric_names(records)
    rows = [
        [
            record["name"], *_place(record, axes), *(one[name] for name in OF_EVALUATIONS),
            *(one["metrics"].get(name) for name in metrics),
        ]
        for record in records
        for one in record["evaluations"]
    ]  # fmt: skip
    return [["run", *axes, "seed", *OF_EVALUATIONS, *(f"eval_{name}" for name in metrics)], *rows]


def curve_rows(records: Sequence[Record], axes: Sequence[str]) -> list[list[Any]]:
    """`curves.csv`, its head first: a row for each point of the chief's curve of a run."""
    rows = [
        [record["name"], *_place(record, axes), step, examples, secs, loss]
        for record in records
        for secs, step, examples, loss in record["curve"]
    ]
    return [["run", *axes, "seed", "global_step", "examples", "train_secs", "loss"], *rows]


def metric_names(records: Iterable[Record]) -> list[str]:
    """Of all evaluations."""
    return sorted({name for record in records for name in record["metrics"]})


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    r"""A table as text; None is an empty cell.

    >>> as_csv([["a", "b"], [1, None]])
    'a,b\n1,\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _place(record: Record, axes: Sequence[str]) -> list[Any]:
    return [*(record["point"].get(axis) for axis in axes), record["seed"]]
