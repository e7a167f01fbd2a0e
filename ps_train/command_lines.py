"""Command lines to show to a user, ready to be copied into a shell.

>>> on_a_host(TrainConfig(), num_ps=1, num_workers=1)
'python -m ps_train --job_name=ps --task_index=0 --ps_hosts=PS0:2222 --worker_hosts=WORKER0:2222 --train_dir=TRAIN_DIR'
>>> evaluate(TrainConfig(model="my model.py", train_dir="runs/a"))  # doctest: +SKIP
"python -m ps_train eval '--model=my model.py' --train_dir=runs/a"

Those for this host name the interpreter that runs now, if `python` is another one: a virtual environment that make has
made is not activated.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence

from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig

PORT = 2222
_OF_A_LOCAL_CLUSTER = {"report_file": None, "log_dir": None, "evaluate": None, "private_network": False}


def python() -> str:
    """What starts this process's interpreter from a shell in this directory.

    >>> python()  # doctest: +SKIP
    '.venv/bin/python'
    """
    if not sys.executable:
        return "python"
    for name in ("python", "python3"):
        if _is_this_python(shutil.which(name)):
            return name
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith(os.pardir) else path


def _is_this_python(path: str | None) -> bool:
    """Whether it is the interpreter of this process; a virtual environment has links to one that others have, too."""
    if path is None:
        return False
    folders = {os.path.realpath(os.path.dirname(file)) for file in (path, sys.executable)}
    return len(folders) == 1 and os.path.samefile(path, sys.executable)


def of_a_task(task: TaskId, cluster: Cluster, config: TrainConfig) -> list[str]:
    """The arguments of one task of a cluster.

    >>> of_a_task(TaskId("ps", 0), Cluster.from_hosts(ps="a:1", worker="b:1"), TrainConfig(update="sync"))[3:]
    ['--ps_hosts=a:1', '--worker_hosts=b:1', '--update=sync']
    """
    hosts = {job: ",".join(addresses.values()) for job, addresses in cluster.as_dict().items()}
    place = [f"--job_name={task.job}", f"--task_index={task.index}", "--cluster_resolver=flags"]
    settings = dataclasses.replace(config, private_network=False)  # it is in it
    return [*place, *(f"--{job}_hosts={addresses}" for job, addresses in hosts.items()), *settings.as_flags()]


def on_a_host(config: TrainConfig, num_ps: int, num_workers: int) -> str:
    """The line for the first task, a ps if there is one. The hosts, PS0 and so on, and TRAIN_DIR are the reader's to fill in."""
    settings = dataclasses.replace(config, train_dir="TRAIN_DIR", **_OF_A_LOCAL_CLUSTER)  # type: ignore[arg-type]
    if config.has_no_ps:
        job, lists = "worker", [_hosts("worker", num_workers)]
    else:
        job, lists = "ps", [_hosts("ps", num_ps), _hosts("worker", num_workers)]
    return _line([f"--job_name={job}", "--task_index=0", *lists, *settings.as_flags()], "python")


def go_on(config: TrainConfig, num_ps: int, num_workers: int, train_steps: int | None) -> str:
    """The local cluster again on the same `train_dir`, up to `train_steps`."""
    again = dataclasses.replace(config, train_steps=train_steps)
    sizes = [f"--num_ps={num_ps}"] * (num_ps != 1) + [f"--num_workers={num_workers}"] * (num_workers != 2)
    return _line([*sizes, *again.as_flags()], python())


def evaluate(config: TrainConfig) -> str:
    """The evaluation of the newest checkpoint of `train_dir`."""
    kept = TrainConfig(
        model=config.model, model_params=config.model_params, train_dir=config.train_dir,
        eval_steps=config.eval_steps, eval_checkpoints=config.eval_checkpoints,
    )  # fmt: skip
    return _line(["eval", *kept.as_flags()], python())


def replay(config: TrainConfig) -> str:
    """The replay of its `--record`."""
    return _line(["replay", *TrainConfig(record=config.record).as_flags()], python())


def _hosts(job: str, count: int) -> str:
    return f"--{job}_hosts=" + ",".join(f"{job.upper()}{index}:{PORT}" for index in range(count))


def _line(args: Sequence[str], interpreter: str) -> str:
    """Seconds that were given as a whole number are shown as one."""
    shown = [re.sub(r"^(--\w+_secs=\d+)\.0$", r"\1", arg) for arg in args]
    return shlex.join([interpreter, "-m", "ps_train", *shown])
