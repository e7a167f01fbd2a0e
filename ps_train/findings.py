"""What a replay found: whether it did what the run had done, and where the run's numbers went wrong.

findings = Findings(record)
findings.note_step((1, 0, 41), values, {"loss": "loss:0"})      # of each step, when it is over
findings.lines(); findings.is_true; findings.as_dict()
"""

from __future__ import annotations

import collections
import math
import re
from typing import Any

from ps_train.recorded import Push, Record, StepEvent
from ps_train.wording import counted

TOLERANCE = 1e-4  # relative: another processor adds up in another order
JUMP = 10.0  # times the mean of the last losses
LAST, FIRST = 20, 5  # of so many; of fewer than these a single one may be an outlier: the loss has to stay up
FIGURES = ("global_step", "granted")


class Findings:
    """Collects them.

    Attributes:
      global_step: of the model at the end.
      checkpoint: that was written at the end, or None.
      seen: steps that are over.
    """

    def __init__(self, record: Record):
        self._record = record
        self._pushes = {push[:3]: push for push in record.pushes()}
        self.seen: set[tuple[int, int, int]] = set()
        self.global_step: int | None = None
        self.checkpoint: str | None = None
        self._push_sections = record.push_sections
        self._applied: dict[tuple[int, int, int], None] = {}  # in their order
        self._bad: dict[tuple[int, int, int], str] = {}
        self._failed: set[tuple[int, int, int]] = set()
        self._losses: collections.deque[float] = collections.deque(maxlen=LAST)
        self._models: list[str | None] = []
        self._num_compared = self._num_equal = 0
        self._worst = 0.0
        self._wrong: list[str] = []  # lines
        self._first_nan: str | None = None
        self._first_jump: str | None = None
        self._maybe_jump: tuple[str, float] | None = None  # what it is if the next loss, too, is above this
        self._checkpoints: list[tuple[str, str, float]] = []
        self._left = 0
        self._skipped: list[str] = []

    def note_model(self, checkpoint: str | None) -> None:
        """The model was initialized or restored."""
        self._models.append(checkpoint)
        self._losses.clear()
        self._maybe_jump = None

    def note_event(self, event: StepEvent) -> None:
        """A section of a step was done."""
        if event.section in self._push_sections and event.step not in self._applied:
            self._applied[event.step] = None

    def note_pushed(self, name: tuple[int, int, int], bad: list[str]) -> None:
        """A step sends these tensors with NaN or Inf."""
        if bad:
            self._bad[name] = f"NaN or Inf in {counted(len(bad), 'tensor')} that it pushed"

    def note_failure(self, name: tuple[int, int, int], message: str) -> None:
        """A step failed its check for NaN and Inf, and pushes nothing."""
        what = re.search(r"ps_train found (.*?)( by its sum)? : ", message)
        told = self._tell(name, f"NaN or Inf in {what[1] if what else 'a gradient'}; not applied")
        self._first_nan = self._first_nan or told
        self._keep_jump()
        self._failed.add(name)
        if name in self._record.steps:
            self._wrong.append(f"{told}, recorded loss {self._record.steps[name].loss:.9g}")

    def note_step(self, name: tuple[int, int, int], values: dict[str, Any], fetches: dict[str, str]) -> None:
        """A step is over, with what it fetched."""
        self.seen.add(name)
        if fetches["loss"] not in values:
            return
        loss = float(values[fetches["loss"]])
        self._look(name, loss)
        if name in self._record.bad and name not in self._failed:
            self._wrong.append(self._tell(name, f"loss {loss:.9g}, recorded {self._record.bad[name].what}"))
        noted = self._record.steps.get(name)
        if noted is None:
            return
        self._num_compared += 1
        if loss == noted.loss or (math.isnan(loss) and math.isnan(noted.loss)):
            self._num_equal += 1
        else:
            by = abs(loss - noted.loss) / max(abs(noted.loss), 1e-6)
            by = by if math.isfinite(by) else math.inf
            self._worst = max(self._worst, by)
            if by > TOLERANCE:
                self._wrong.append(self._tell(name, f"loss {loss:.9g}, recorded {noted.loss:.9g}"))
        for figure in FIGURES:
            then = getattr(noted, figure)
            if then is not None and fetches.get(figure) in values and int(values[fetches[figure]]) != then:
                now = int(values[fetches[figure]])
                self._wrong.append(self._tell(name, f"{figure} {now}, recorded {then}"))

    def _look(self, name: tuple[int, int, int], loss: float) -> None:
        bad = "loss " + str(loss) if not math.isfinite(loss) else self._bad.get(name)
        if bad:
            self._first_nan = self._first_nan or self._tell(name, bad)
            self._keep_jump()
            return
        if self._maybe_jump is not None and abs(loss) > self._maybe_jump[1]:
            self._keep_jump()
        self._maybe_jump = None
        if self._losses and self._first_jump is None:
            self._look_for_jump(name, loss)
        self._losses.append(loss)

    def _look_for_jump(self, name: tuple[int, int, int], loss: float) -> None:
        count = len(self._losses)
        mean = sum(map(abs, self._losses)) / count
        if abs(loss) <= JUMP * mean:
            return
        first = "" if count >= FIRST else f", which is of {count}"
        before = f"{abs(loss) / mean:.0f} times the mean before{first}" if mean else "after losses of 0"
        self._maybe_jump = self._tell(name, f"loss {loss:.4g}, {before}"), JUMP * mean
        if count >= FIRST:
            self._keep_jump()

    def _keep_jump(self) -> None:
        """What may be a jump of the loss is one: nothing came after it that speaks against that."""
        if self._maybe_jump is not None:
            self._first_jump = self._first_jump or self._maybe_jump[0]
            self._maybe_jump = None

    def note_checkpoint(self, path: str, variable: str, by: float) -> None:
        """The model was compared with a checkpoint of the run: what differs most, and by how much."""
        self._checkpoints.append((path, variable, by))

    def end(self, left: int, skipped: list[str]) -> None:
        """All is done but so many events, for want of others; these lines of the files could not be read."""
        self._left, self._skipped = left, skipped
        self._keep_jump()

    def _tell(self, name: tuple[int, int, int], what: str) -> str:
        """`worker:1, batch 41, examples 1280-1311, global step 83, staleness 2: loss nan`."""
        worker, session, number = name
        noted, push = self._record.steps.get(name), self._pushes.get(name)
        details = [f"batch {number}"]
        if noted is not None:
            details += [
                f"examples {noted.first}-{noted.first + noted.examples - 1}",
                f"global step {noted.global_step}",
            ]
        elif name in self._record.bad:
            details += [f"after global step {self._record.bad[name].global_step}"]
        if push is not None and push.places:
            details.append(f"staleness {push.staleness}")
        life = f" of its session {session}" if session else ""
        return f"worker:{worker}{life}, {', '.join(details)}: {what}"

    @property
    def is_true(self) -> bool:
        """Whether everything that could be compared was as in the run, but for the last bits."""
        return not self._wrong and all(by <= TOLERANCE for _, _, by in self._checkpoints)

    def lines(self) -> list[str]:
        """For people."""
        counts = collections.Counter(
            self._pushes[name].staleness for name in self._applied if name in self._pushes
        )
        mean = sum(value * count for value, count in counts.items()) / max(sum(counts.values()), 1)
        count, workers = len(self._applied), len({name[0] for name in self._applied})
        found = [
            f"re-applied {count} {'push' if count == 1 else 'pushes'} of {counted(workers, 'worker')}, "
            f"staleness {mean:.2f} on average, {max(counts, default=0)} at most; global step {self.global_step}"
        ]
        found += [f"restored from {path}" for path in self._models if path]
        if not self._num_compared:
            found.append("losses: there are none to compare")
        elif self._num_equal == self._num_compared:
            found.append(f"losses: all {self._num_compared} equal bit for bit")
        elif self._worst <= TOLERANCE:
            found.append(
                f"losses: {self._num_equal} of {self._num_compared} equal bit for bit, the others within {self._worst:.1e}"
            )
        found += [
            f"{path}: equal bit for bit"
            if not variable
            else f"{path}: differs by {by:.3g} at most, in {variable}"
            for path, variable, by in self._checkpoints
        ]
        found += [f"first NaN or Inf: {self._first_nan}"] if self._first_nan else []
        found += [f"first jump of the loss: {self._first_jump}"] if self._first_jump else []
        if self._wrong:
            found.append(f"NOT AS RECORDED, first of {len(self._wrong)}: {self._wrong[0]}")
        if self._left:
            found.append(
                f"not done, as the record lacks what comes before: {counted(self._left, 'event')} at its end"
            )
        if self._skipped:
            more = f" and {len(self._skipped) - 1} more" if len(self._skipped) > 1 else ""
            found.append(f"lines that were cut off: {self._skipped[0]}{more}")
        found += [f"wrote {self.checkpoint}"] if self.checkpoint else []
        return found

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "pushes": len(self._applied),
            "global_step": self.global_step,
            "losses_compared": self._num_compared,
            "losses_equal": self._num_equal,
            "largest_difference": self._worst,
            "first_difference": self._wrong[0] if self._wrong else None,
            "first_nan": self._first_nan,
            "first_jump": self._first_jump,
            "checkpoints": [
                {"path": path, "variable": variable or None, "difference": by}
                for path, variable, by in self._checkpoints
            ],
            "events_left": self._left,
            "checkpoint": self.checkpoint,
            "is_true": self.is_true,
            "order": [self._as_row(self._pushes[name]) for name in self._applied if name in self._pushes],
        }

    def _as_row(self, push: Push) -> dict[str, Any]:
        step = push.step
        return {
            "worker": push.worker,
            "session": push.session,
            "batch": push.number,
            "first_example": step and step.first,
            "examples": step and step.examples,
            "staleness": push.staleness,
            "versions": push.versions,
            "places": push.places,
            "loss": step and step.loss,
            "global_step": step and step.global_step,
            "granted": step and step.granted,
        }
