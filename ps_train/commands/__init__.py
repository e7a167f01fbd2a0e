"""The commands: each module's `run(values)` takes the parsed flags and gives the exit status; launch's, a script's words, too.

1. `__main__.main` parses the command line and picks the command.
2. The command builds frozen values from the flags and raises `UsageError` with all problems, before TensorFlow.
3. It imports what does the work and calls it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ps_train.whole_files import as_json

COMMANDS = {
    "train": "train; without --job_name, on a local cluster (the default)",
    "launch": "start a job on --hosts over ssh, or after -- a script, with TF_CONFIG for each task",
    "eval": "evaluate the newest checkpoint of --train_dir once",
    "status": "show how a running job is: tasks, steps, rates, who is late; needs --ps_hosts or TF_CONFIG",
    "bench": "measure a model on a local cluster: where the time of a step goes, and what would help",
    "plan": "simulate a job on other numbers of ps and workers, links and schemes; needs figures of a step",
    "replay": "re-apply a run that was recorded by --record in one process, and compare; needs --record",
    "experiment": "train on a --grid of settings, several seeds each, and report what differs; needs --out",
    "chaos": "rehearse failures: kill and stop tasks of a local cluster, and judge the outcome",
    "trace": "say what is in a file of --trace_steps, as trace FILE; with --summary the critical path",
    "doctor": "check this machine, and with a cluster its hosts and ports; each finding with its remedy",
    "manifest": "print Kubernetes objects of a job, plain ones or Kubeflow's TFJob; needs --image",
}


def load(name: str) -> Callable[..., int]:
    """The `run` of a command in COMMANDS."""
    return importlib.import_module(f"ps_train.commands.{name}").run


def print_text(text: str) -> None:
    """Prints what a command has found out."""
    try:
        print(text, flush=True)
    except (
        BrokenPipeError
    ):  # the reader, such as head, has seen enough; keep the interpreter from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    """Prints the same for programs, on a line."""
    print_text(as_json(value))
