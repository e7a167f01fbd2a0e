"""The settings and files of a local cluster: the defaults that only it has, and where each task's log and report are.

config = fill_in(TrainConfig())
config.train_dir                                     # 'ps_train_runs/digits-20240229-120000'
config.log_dir                                       # that and '/logs'
log_path(config, TaskId("worker", 1))                # that and '/worker1.log'
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
from typing import Any

from ps_train.cluster import TaskId
from ps_train.config import BUILTIN_MODEL, TrainConfig
from ps_train.errors import UsageError

BUILTIN_STEPS = 1000
RUNS_DIR = "ps_train_runs"


def fill_in(config: TrainConfig, now: float | None = None) -> TrainConfig:
    """The settings with a local cluster's defaults: a target for the built-in model, directories.

    Args:
      config: what the user asked for.
      now: seconds since the epoch, for the name of a directory; None: the present.
    """
    is_builtin = config.model in (None, BUILTIN_MODEL)
    train_dir = config.train_dir
    if train_dir is None:
        name = "digits" if is_builtin else re.sub(r"\.py$", "", os.path.basename(config.model or ""))
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
        train_dir = _unused(os.path.join(RUNS_DIR, f"{name.rpartition('.')[2]}-{stamp}"))
    return dataclasses.replace(
        config, train_dir=train_dir, log_dir=config.log_dir or os.path.join(train_dir, "logs"),
        train_steps=config.train_steps or (BUILTIN_STEPS if is_builtin else None),
        evaluate=is_builtin if config.evaluate is None else config.evaluate,
    )  # fmt: skip


def make_directories(config: TrainConfig) -> None:
    """Makes `train_dir` and `log_dir`, if there are to be any; raises UsageError if one cannot be made."""
    for flag in ("train_dir", "log_dir"):
        path = getattr(config, flag)
        if path is None:
            continue
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"The directory {path} cannot be made: {error.strerror}. Choose another --{flag}."
            ) from None


def log_path(config: TrainConfig, task: TaskId) -> str:
    """The file for a task's output."""
    return os.path.join(config.log_dir or "", f"{task.job}{task.index}.log")


def unwritable_log(path: str, task: TaskId, error: OSError) -> UsageError:
    """What to raise for a task's log that cannot be opened."""
    return UsageError(
        f"The log {path} of {task} cannot be written: {error.strerror}. Choose another --log_dir."
    )


def report_path(config: TrainConfig, task: TaskId, is_chief: bool = False) -> str:
    """Where a task reports: the chief at --report_file and the others beside it; without that flag, in `log_dir`."""
    if config.report_file is None:
        return os.path.join(config.log_dir or "", f"{task.job}{task.index}.json")
    if is_chief:
        return config.report_file
    stem, extension = os.path.splitext(config.report_file)
    return f"{stem}.{task.job}{task.index}{extension}"


def read_report(path: str) -> dict[str, Any]:
    """The report at `path`; empty if there is none."""
    with contextlib.suppress(OSError, json.JSONDecodeError), open(path, encoding="utf-8") as file:
        return json.load(file)
    return {}


def _unused(path: str) -> str:
    candidate, number = path, 2
    while os.path.exists(candidate):
        candidate, number = f"{path}-{number}", number + 1
    return candidate
