"""The launcher's last words: what was done, where it is, what to do next.

summary = Summary(asked, fill_in(asked), num_ps=1, num_workers=2)
summary.trained(chief_report)       # 'Trained to step 1000 in 3.3 s, async, on 2 workers.'
summary.saved()                     # the newest checkpoint and the command line that goes on from it
summary.what_next()                 # directories, and command lines for real hosts, more steps, an evaluation
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from ps_train import checkpoints, command_lines
from ps_train.config import TrainConfig

MAX_LINES_OF_TASKS = 6


class Summary(NamedTuple):
    """Texts about a local cluster.

    Attributes:
      asked: the settings as the user gave them, to be shown again.
      config: the same with all defaults.
      num_ps, num_workers: size.
    """

    asked: TrainConfig
    config: TrainConfig
    num_ps: int
    num_workers: int

    def trained(self, report: Mapping[str, Any]) -> str:
        """What the chief's report says."""
        workers = f"{self.num_workers} {'worker' if self.num_workers == 1 else 'workers'}"
        secs = report.get("train_secs") or 0.0
        return f"Trained to step {report.get('global_step')} in {secs:.1f} s, {self.config.update}, on {workers}."

    def nothing_left(self, checkpoint: str) -> str:
        """The target had been reached before."""
        return (
            f"Nothing left to train: {checkpoint} has reached the target of {self.config.train_steps} steps."
        )

    def evaluated(self, report: Mapping[str, Any]) -> str:
        """What the evaluation's report says."""
        metrics = sorted((report.get("metrics") or {}).items())
        shown = (f"{name} {'nan' if value is None else format(value, '.4f')}" for name, value in metrics)
        return "Held-out data: " + ", ".join(shown)

    def saved(self) -> str:
        """The newest checkpoint, after an end before the target."""
        checkpoint = checkpoints.latest_checkpoint(self.config.train_dir)
        if checkpoint is None:
            return "No checkpoint was saved."
        return f"Checkpoint: {checkpoint}\nTo go on from there: {self._go_on(self.asked.train_steps)}"

    def what_next(self) -> str:
        """Where everything is, and command lines."""
        config = self.config
        checkpoint = checkpoints.latest_checkpoint(config.train_dir)
        newest = f" (newest: {checkpoint})" if checkpoint else ""
        lines = [f"Checkpoints: {config.train_dir}{newest}", f"Logs:        {config.log_dir}", ""]
        lines += [
            "The same on real hosts, a line for each; fill in their names and a directory for checkpoints:"
        ]
        lines += self._on_hosts()
        if config.train_steps is not None:
            lines += ["", "To train on:", f"  {self._go_on(2 * config.train_steps)}"]
        lines += ["", "To evaluate:", f"  {command_lines.evaluate(config)}"]
        return "\n".join(lines)

    def _on_hosts(self) -> list[str]:
        again = dataclasses.replace(self.asked, train_steps=self.config.train_steps)
        lines = command_lines.same_on_hosts(again, self.num_ps, self.num_workers)
        more = len(lines) - MAX_LINES_OF_TASKS
        lines = [f"  {line}" for line in lines[:MAX_LINES_OF_TASKS]]
        return [*lines, f"  ... and {more} more, to --job_name=worker --task_index={self.num_workers - 1}"][
            : None if more > 0 else -1
        ]

    def _go_on(self, train_steps: int | None) -> str:
        again = dataclasses.replace(self.asked, train_dir=self.config.train_dir)
        return command_lines.go_on(again, self.num_ps, self.num_workers, train_steps)
