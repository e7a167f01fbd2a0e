"""`ps_train trace FILE`: what is in a file that `--trace_steps` has had the chief write.

Without FILE it is the newest in --train_dir, or of the local clusters that were started here without that flag.

| flags | then |
|---|---|
| none | which steps of whom, how exactly the clocks are aligned, who is missing |
| --summary | each step's time by parts, its critical path, and which worker was waited for |
| --json | the same as JSON |
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train.commands import print_json, print_text
from ps_train.errors import EXIT_DONE, UsageError
from ps_train.local_config import RUNS_DIR
from ps_train.trace import chrome, summary


class Plan(NamedTuple):
    """The file, and what to print of it."""

    path: str
    is_summary: bool
    is_json: bool


def run(values: FlagValues, words: Sequence[str]) -> int:
    """Reads the file and prints; gives the exit status."""
    plan = make_plan(values, words)
    try:
        merged, facts = chrome.read(plan.path)
    except OSError as error:
        raise UsageError(f"The trace {plan.path} cannot be read: {error.strerror}. Check its path.") from None
    except ValueError as error:
        raise UsageError(
            f"{plan.path} is not a trace of --trace_steps: {error}. Expected the file that the chief's log names."
        ) from None
    found = summary.summarize(merged, facts)
    if plan.is_json:
        print_json(found)
    else:
        print_text("\n".join(summary.lines(found) if plan.is_summary else summary.overview(found)))
    return EXIT_DONE


def make_plan(values: FlagValues, words: Sequence[str]) -> Plan:
    """Reads the command line; raises `UsageError` with what is wrong with it."""
    if len(words) > 1:
        raise UsageError(
            f"The command trace reads one file, and {len(words)} are named. Leave out {words[1]!r}."
        )
    if words:
        return Plan(words[0], values.summary, values.json)
    folder = glob.escape(values.train_dir) if values.train_dir else os.path.join(RUNS_DIR, "*")
    found = [
        path for end in ("json", "json.gz") for path in glob.glob(os.path.join(folder, f"trace-*.{end}"))
    ]
    if not found:
        raise UsageError(
            f"The command trace reads a file, none is named, and there is no {os.path.join(folder, 'trace-*.json')}. Write trace FILE "
            "--summary with the one that the chief's log names."
        )
    return Plan(max(found, key=os.path.getmtime), values.summary, values.json)
