"""Command lines to show to a user, ready to be copied into a shell.

>>> config = TrainConfig(model="my model.py", train_dir="runs/a")
>>> same_on_hosts(TrainConfig(), num_ps=1, num_workers=1)[1]
'python -m ps_train --job_name=worker --task_index=0 --ps_hosts=PS0:2222 --worker_hosts=WORKER0:2222 --train_dir=TRAIN_DIR'
>>> evaluate(config)
"python -m ps_train eval '--model=my model.py' --train_dir=runs/a"
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

from ps_train.config import TrainConfig

PROGRAM = ("python", "-m", "ps_train")
PORT = 2222
_OF_A_LOCAL_CLUSTER = {"report_file": None, "log_dir": None, "evaluate": None}


def same_on_hosts(config: TrainConfig, num_ps: int, num_workers: int) -> list[str]:
    """A line for each task. The hosts, PS0 and so on, and TRAIN_DIR are the reader's to fill in."""
    settings = dataclasses.replace(config, train_dir="TRAIN_DIR", **_OF_A_LOCAL_CLUSTER)  # type: ignore[arg-type]
    lists = [_hosts("ps", num_ps), _hosts("worker", num_workers)]
    return [
        _line([f"--job_name={job}", f"--task_index={index}", *lists, *settings.as_flags()])
        for job, count in (("ps", num_ps), ("worker", num_workers))
        for index in range(count)
    ]


def go_on(config: TrainConfig, num_ps: int, num_workers: int, train_steps: int | None) -> str:
    """The local cluster again on the same `train_dir`, up to `train_steps`."""
    again = dataclasses.replace(config, train_steps=train_steps, report_file=None)
    sizes = [f"--num_ps={num_ps}"] * (num_ps != 1) + [f"--num_workers={num_workers}"] * (num_workers != 2)
    return _line([*sizes, *again.as_flags()])


def evaluate(config: TrainConfig) -> str:
    """The evaluation of the newest checkpoint of `train_dir`."""
    kept = TrainConfig(
        model=config.model, model_params=config.model_params, train_dir=config.train_dir,
        eval_steps=config.eval_steps,
    )  # fmt: skip
    return _line(["eval", *kept.as_flags()])


def _hosts(job: str, count: int) -> str:
    return f"--{job}_hosts=" + ",".join(f"{job.upper()}{index}:{PORT}" for index in range(count))


def _line(args: Sequence[str]) -> str:
    return shlex.join([*PROGRAM, *args])
