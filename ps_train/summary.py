"""The launcher's last words: what was done, where it is, what to do next.

summary = Summary(asked, fill_in(asked), num_ps=1, num_workers=2)
summary.trained(chief_report)       # 'Trained to step 1000 in 3.3 s, async, on 2 workers.'
summary.saved()                     # the newest checkpoint and the command line that goes on from it
summary.what_next()                 # checkpoint and logs, and command lines for more steps, an evaluation, real hosts
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from ps_train import checkpoints, command_lines
from ps_train.config import TrainConfig
from ps_train.wording import counted, steps_lost


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
        workers, target = counted(self.num_workers, "worker"), self.config.train_steps
        secs, step = report.get("train_secs") or 0.0, report.get("global_step")
        is_short = target is not None and step is not None and step < target
        step_shown = f"{step} of {target}" if is_short else f"{step}"
        took = f" in {secs:.1f} s" if secs else ""  # the chief may have had no step left to make
        text = f"Trained to step {step_shown}{took}, {self.config.update}, on {workers}"
        return f"{text}: {_why(report.get('reason') or '')}" if is_short else f"{text}."

    def nothing_left(self, checkpoint: str) -> str:
        """The target had been reached before."""
        target = counted(self.config.train_steps or 0, "step")
        return f"Nothing left to train: {checkpoint} has reached the target of {target}."

    def evaluated(self, report: Mapping[str, Any]) -> str:
        """What the evaluation's report says."""
        metrics = sorted((report.get("metrics") or {}).items())
        shown = (f"{name} {'nan' if value is None else format(value, '.4f')}" for name, value in metrics)
        return "Held-out data: " + ", ".join(shown)

    def saved(self, last_step: int | None = None, can_go_on: bool = True) -> str:
        """The newest checkpoint, after an end before the target.

        Args:
          last_step: the job's last step, as far as it is known.
          can_go_on: the same again might go better.
        """
        checkpoint = checkpoints.latest_checkpoint(self.config.train_dir)
        lines = [_newest(checkpoint, last_step)]
        if checkpoint is not None and can_go_on:
            lines.append(f"To go on from there: {self._go_on(self.asked.train_steps)}")
        if not can_go_on and self.config.record:
            lines.append(f"Which push it began with: {command_lines.replay(self.config)}")
        return "\n".join(lines)

    def what_next(self) -> str:
        """Where everything is, and command lines."""
        config = self.config
        checkpoint = checkpoints.latest_checkpoint(config.train_dir)
        lines = [f"Checkpoint:  {checkpoint or 'none'}", f"Logs:        {config.log_dir}"]
        step = checkpoints.checkpoint_step(checkpoint) if checkpoint else None
        if config.train_steps is not None and (step is None or step >= config.train_steps):
            lines.append(f"To train on: {self._go_on(2 * max(config.train_steps, step or 0))}")
        lines.append(f"To evaluate: {command_lines.evaluate(config)}")
        return "\n".join([*lines, *self._on_hosts()])

    def _on_hosts(self) -> list[str]:
        again = dataclasses.replace(self.asked, train_steps=self.config.train_steps)
        first = "worker" if again.has_no_ps else "ps"
        num_ps, start = (0, 1) if again.has_no_ps else (self.num_ps, 0)
        jobs = (("ps", range(1, num_ps)), ("worker", range(start, self.num_workers)))
        others = [f"{job}:{_span(indices)}" for job, indices in jobs if indices]
        return [
            f"On real hosts, for {first}:0, with names and directory to fill in"
            + (f"; for {' and '.join(others)} change job_name and task_index:" if others else ":"),
            f"  {command_lines.on_a_host(again, self.num_ps, self.num_workers)}",
        ]

    def _go_on(self, train_steps: int | None) -> str:
        again = dataclasses.replace(self.asked, train_dir=self.config.train_dir)
        return command_lines.go_on(again, self.num_ps, self.num_workers, train_steps)


def _newest(checkpoint: str | None, last_step: int | None) -> str:
    if checkpoint is None:
        return "No checkpoint was saved."
    num_lost = (last_step or 0) - (checkpoints.checkpoint_step(checkpoint) or 0)
    if num_lost <= 0:
        return f"Checkpoint: {checkpoint}"
    return f"Checkpoint: {checkpoint} ({steps_lost(num_lost)})"


def _why(reason: str) -> str:
    """What follows on the chief's reason to end before the target."""
    if "data used up" in reason:
        return "the data is used up. With dataset.repeat() input_fn gives it again and again."
    return f"{reason.partition(': ')[2] or reason}."


def _span(indices: range) -> str:
    return "-".join(dict.fromkeys([str(indices[0]), str(indices[-1])]))
