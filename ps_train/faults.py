"""The faults of a rehearsal and the verdict on what came of them: values and pure functions, no process.

fault = parse_fault("kill", "ps:1@200:5s")    # Fault(kind='kill', task=TaskId('ps', 1), step=200, secs=5.0)
verdict = judge([fault], recording, config, num_workers=3)
verdict.is_pass, verdict.lines()
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ps_train.cluster import TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_RETRYABLE, UsageError
from ps_train.wording import counted, shown

KINDS = ("kill", "term", "stop")
SIGNALS = {"kill": "SIGKILL", "term": "SIGTERM", "stop": "SIGSTOP"}
RESTART_SECS = 1.0
SETTLE_SECS = 0.3  # after a fault in which a step that was under way may still be counted


class Fault(NamedTuple):
    """What is to be done to a task.

    Attributes:
      kind: of KINDS.
      task: whose process gets the signal.
      step: the global step from which on it is done.
      secs: after which the task is started again, or goes on after a stop; None: it is left dead.
      waits: it is not done before the job has recovered from the fault before it.
    """

    kind: str
    task: TaskId
    step: int
    secs: float | None = RESTART_SECS
    waits: bool = False

    def __str__(self) -> str:
        """As the flag has it, without dashes."""
        after = "never" if self.secs is None else f"{self.secs:.6f}".rstrip("0").rstrip(".") + "s"
        return f"{self.kind}={self.task}@{self.step}:{after}"

    @property
    def loses_variables(self) -> bool:
        """Whether the model has to be restored after it."""
        return self.task.job == "ps" and self.kind != "stop"


class Strike(NamedTuple):
    """A fault that was done: when, in seconds from the start; at which global step; the newest checkpoint's step then."""

    secs: float
    step: int
    saved: int = 0


@dataclasses.dataclass
class Recording:
    """What happened; seconds are counted from the start of the rehearsal.

    Attributes:
      strikes: one for each fault, None if it was not done.
      steps: (secs, global step) whenever it was another one.
      restores: (secs, global step) whenever the chief has restored or initialized the model.
      statuses: exit status of each task's last process.
      reasons: why it ended, a line of text.
      final_step: of the newest checkpoint at the end, None if there is none.
      cut_short: why the rehearsal was ended before the job was, or "".
    """

    strikes: list[Strike | None]
    steps: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    restores: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    statuses: dict[TaskId, int] = dataclasses.field(default_factory=dict)
    reasons: dict[TaskId, str] = dataclasses.field(default_factory=dict)
    final_step: int | None = None
    cut_short: str = ""


# The command line.


def parse_fault(kind: str, text: str) -> Fault:
    """Reads the value of --kill, --term or --stop; raises UsageError with one line.

    >>> parse_fault("stop", "worker:1@300:20s")
    Fault(kind='stop', task=TaskId(job='worker', index=1), step=300, secs=20.0, waits=False)
    """
    expected = (
        "TASK@STEP:SECSs, such as worker:1@300:20s" if kind == "stop" else "TASK@STEP, such as ps:0@200"
    )
    name, at, rest = text.partition("@")
    if not at:
        raise UsageError(f"--{kind}={_cut(text)} has no '@'. Expected {expected}.")
    step, colon, after = rest.partition(":")
    match = re.fullmatch(r"(ps|worker):([0-9]{1,9})", name)
    if match is None and name != "chief":
        raise UsageError(f"--{kind}={_cut(text)} has the task {shown(name)}. Expected ps:0, worker:1, chief.")
    if not re.fullmatch(r"[0-9]{1,18}", step) or int(step) == 0:
        raise UsageError(f"--{kind}={_cut(text)} has the step {shown(step)}. Expected a whole number from 1.")
    task = TaskId("worker", 0) if match is None else TaskId(match[1], int(match[2]))
    return Fault(kind, task, int(step), _parse_secs(kind, text, after if colon else None))


def _parse_secs(kind: str, text: str, after: str | None) -> float | None:
    if kind == "stop":
        expected = "Expected seconds above 0 and below a million, such as 20s"
    else:
        expected = "Expected seconds below a million, such as 5s, or never"
        if after is None:
            return RESTART_SECS
        if after == "never":
            return None
    if after is None:
        raise UsageError(f"--stop={_cut(text)} does not say for how long. Expected TASK@STEP:SECSs.")
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)s", after)
    if match is None or kind == "stop" and float(match[1]) == 0:
        raise UsageError(f"--{kind}={_cut(text)} has the time {shown(after)}. {expected}.")
    return float(match[1])


def _cut(text: str) -> str:
    """A value as it was written if that is short and on one line."""
    return text if len(text) <= 40 and text.isprintable() else shown(text, 60)


def fault_problems(fault: Fault, num_ps: int, num_workers: int, train_steps: int | None) -> list[str]:
    """A line for each thing that keeps a fault from being done in a local cluster of this size."""
    found = []
    count = num_ps if fault.task.job == "ps" else num_workers
    if fault.task.index >= count:
        flag = "num_ps" if fault.task.job == "ps" else "num_workers"
        found.append(
            f"--{fault} is for a task that is not there: --{flag}={count}. "
            f"Expected {fault.task.job}:0 to {fault.task.job}:{count - 1}."
        )
    if train_steps is not None and fault.step > train_steps:
        found.append(f"--{fault} is for a step beyond --train_steps={train_steps}. Expected one before.")
    return found


def usual_faults(num_ps: int, num_workers: int, train_steps: int) -> list[Fault]:
    """The rehearsal of who names no fault: a worker, the chief and a ps are killed, each when the job has recovered."""
    tasks = [TaskId("worker", num_workers - 1), TaskId("worker", 0), TaskId("ps", num_ps - 1)]
    tasks = list(dict.fromkeys(tasks))
    steps = [max(1, train_steps * (number + 1) // (len(tasks) + 1)) for number in range(len(tasks))]
    return [Fault("kill", task, step, waits=True) for task, step in zip(tasks, steps, strict=True)]


# The verdict.


class Outcome(NamedTuple):
    """What came of one fault.

    Attributes:
      recovery_secs: from the fault to the first new step; None: there was none.
      steps_lost: how far the global step went back.
      problems: why it is no pass; empty: it is one.
      note: more about it.
    """

    fault: Fault
    strike: Strike | None
    recovery_secs: float | None
    steps_lost: int
    problems: tuple[str, ...]
    note: str = ""


class Verdict(NamedTuple):
    """The outcomes of all faults, what else was wrong, and what there is to say if nothing was."""

    outcomes: tuple[Outcome, ...]
    problems: tuple[str, ...]
    praise: str

    @property
    def is_pass(self) -> bool:
        """Whether everything went as it has to."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Why it is no pass."""
        return [problem for outcome in self.outcomes for problem in outcome.problems] + list(self.problems)

    def lines(self) -> list[str]:
        """The table and the last word, as they are shown."""
        rows = [("fault", "struck at", "recovery", "steps lost", "verdict")]
        rows += [_row(outcome) for outcome in self.outcomes]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        last = f"PASS: {self.praise}" if self.is_pass else "FAIL: " + "\n      ".join(self.reasons)
        return [*(line.rstrip() for line in table), *last.splitlines()]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "outcome": "PASS" if self.is_pass else "FAIL",
            "reasons": self.reasons or [self.praise],
            "faults": [
                {
                    "fault": str(outcome.fault),
                    "struck_at_step": outcome.strike.step if outcome.strike else None,
                    "struck_at_secs": round(outcome.strike.secs, 3) if outcome.strike else None,
                    "recovery_secs": None if outcome.recovery_secs is None else round(outcome.recovery_secs, 3),
                    "steps_lost": outcome.steps_lost,
                    "verdict": "fail" if outcome.problems else "pass",
                    "note": outcome.note,
                }
                for outcome in self.outcomes
            ],
        }  # fmt: skip


def _row(outcome: Outcome) -> tuple[str, str, str, str, str]:
    strike, recovery = outcome.strike, outcome.recovery_secs
    struck = "never" if strike is None else f"step {strike.step}, {strike.secs:.1f} s"
    word = "fail" if outcome.problems else "pass"
    return (
        str(outcome.fault),
        struck,
        "-" if recovery is None else f"{recovery:.1f} s",
        "-" if strike is None else str(outcome.steps_lost),
        f"{word}, {outcome.note}" if outcome.note else word,
    )


def fatal_faults(faults: Sequence[Fault], config: TrainConfig, num_workers: int) -> list[Fault]:
    """Those that the job ends with 138 for, by the README's table: who is needed stays away past the peer timeout."""
    lasting = [fault for fault in faults if fault.secs is None or fault.secs >= config.peer_timeout_secs]
    chief = TaskId("worker", 0)
    fatal = [fault for fault in lasting if fault.task.job == "ps" or fault.task == chief]
    others = [fault for fault in lasting if fault not in fatal]
    num_left = num_workers - len({fault.task for fault in others})
    if config.update == "sync" and config.on_worker_loss == "fail":
        if num_left < (config.replicas_to_aggregate or num_workers):
            fatal += others
    return fatal


def find_recovery(fault: Fault, strike: Strike, recording: Recording) -> tuple[float | None, int | None]:
    """(seconds from the fault to the first new step, the step to which the model was taken back before), None for neither.

    A step is new if it is beyond that of the fault, or beyond the one that was restored after it.
    """
    restores = [(secs, step) for secs, step in recording.restores if secs > strike.secs]
    before = _step_at(strike, recording)
    for secs, step in recording.steps:
        restored = [to for at, to in restores if at <= secs]
        if secs <= strike.secs:
            continue
        if restored:
            if step > restored[-1]:
                return secs - strike.secs, restored[-1]
        elif not fault.loses_variables and secs > strike.secs + SETTLE_SECS and step > before:
            return secs - strike.secs, None
    return None, restores[-1][1] if restores else None


def _step_at(strike: Strike, recording: Recording) -> int:
    """The global step at a fault, with those steps that were under way."""
    end = strike.secs + SETTLE_SECS
    restored_at = min((secs for secs, _ in recording.restores if secs > strike.secs), default=end)
    seen = [step for secs, step in recording.steps if strike.secs < secs <= min(end, restored_at)]
    return max([strike.step, *seen])


def judge(faults: Sequence[Fault], recording: Recording, config: TrainConfig, num_workers: int) -> Verdict:
    """The verdict.

    Args:
      faults: what was to be done.
      recording: what happened, with a strike or None for each of the faults.
      config: the job's settings; `train_steps` is set.
      num_workers: workers of the cluster.
    """
    target = config.train_steps or 0
    fatal = fatal_faults(
        [f for f, s in zip(faults, recording.strikes, strict=True) if s], config, num_workers
    )
    outcomes = [
        _judge_fault(fault, strike, faults, recording, target, fault in fatal)
        for fault, strike in zip(faults, recording.strikes, strict=True)
    ]
    problems = [recording.cut_short] if recording.cut_short else []
    problems += _status_problems(faults, recording, config, bool(fatal))
    final = recording.final_step
    if not fatal and (final is None or final < target):
        where = "there is no checkpoint" if final is None else f"the last checkpoint is at step {final}"
        problems.append(f"{where}, not at the target of {target}")
    problems += _stray_restores(recording, outcomes)
    done = counted(len(faults), "fault")
    if fatal:
        away = ", ".join(dict.fromkeys(str(fault.task) for fault in fatal))
        praise = f"{done}; the job ended with {EXIT_RETRYABLE}, as it has to if {away} stays away; checkpoint at step {final}."
    else:
        dead = ", ".join(dict.fromkeys(str(fault.task) for fault in faults if fault.secs is None))
        who = f"every task but {dead}" if dead else "every task"
        praise = f"{done}; {who} ended with 0; checkpoint at step {final}."
    return Verdict(tuple(outcomes), tuple(problems), praise)


def _judge_fault(
    fault: Fault, strike: Strike | None, faults: Sequence[Fault], recording: Recording, target: int, is_fatal: bool
) -> Outcome:  # fmt: skip
    if strike is None:
        seen = max((step for _, step in recording.steps), default=0)
        why = f"{fault} was not done: the job was over, or {fault.task} was gone (last step seen: {seen})"
        return Outcome(fault, None, None, 0, (why,))
    recovery, restored = find_recovery(fault, strike, recording)
    before = _step_at(strike, recording)
    if is_fatal:
        return _judge_fatal(fault, strike, recording)
    lost = 0 if restored is None else max(before - restored, 0)
    problems = []
    if recovery is None and before < target:
        problems.append(f"{fault}: no new step came after it")
    allowed = _allowed_restore(strike, recovery, faults, recording)
    if lost and allowed is None:
        problems.append(f"{fault}: {counted(lost, 'step')} lost, though no ps was killed")
    elif lost and restored is not None and allowed is not None and restored < allowed:
        problems.append(f"{fault}: back to step {restored}, though there was a checkpoint at {allowed}")
    return Outcome(fault, strike, recovery, lost, tuple(problems))


def _judge_fatal(fault: Fault, strike: Strike, recording: Recording) -> Outcome:
    """A fault that the job ends for: the chief saves, unless it is gone itself, or the model is."""
    saved = recording.final_step or 0
    lost = max(max((step for _, step in recording.steps), default=strike.step) - saved, 0)
    problems = []
    if fault.task in (TaskId("worker", 0),) or fault.task.job == "ps":
        if saved < strike.saved:
            problems.append(f"{fault}: the checkpoint at step {strike.saved} is gone")
    elif lost:
        problems.append(f"{fault}: the chief did not save the last {counted(lost, 'step')}")
    if EXIT_RETRYABLE not in recording.statuses.values():
        problems.append(f"{fault}: expected the job to end with {EXIT_RETRYABLE}")
    note = "" if problems else f"the job ended with {EXIT_RETRYABLE}"
    return Outcome(fault, strike, None, lost, tuple(problems), note)


def _allowed_restore(
    strike: Strike, recovery: float | None, faults: Sequence[Fault], recording: Recording
) -> int | None:
    """The step to which the model may be taken back between a fault and its recovery; None: it may not at all."""
    end = float("inf") if recovery is None else strike.secs + recovery
    allowed = None
    for other, its in zip(faults, recording.strikes, strict=True):
        if its is not None and other.loses_variables and its.secs <= end:
            its_recovery, _ = find_recovery(other, its, recording)
            if its_recovery is None or its.secs + its_recovery >= strike.secs:
                allowed = max(allowed or 0, its.saved)
    return allowed


def _status_problems(
    faults: Sequence[Fault], recording: Recording, config: TrainConfig, is_lost: bool
) -> list[str]:
    found = []
    for task, status in recording.statuses.items():
        own = [f for f, s in zip(faults, recording.strikes, strict=True) if f.task == task and s is not None]
        if any(fault.secs is None for fault in own):
            continue
        is_late = any((fault.secs or 0) >= config.peer_timeout_secs for fault in own)
        expected = (EXIT_DONE, EXIT_RETRYABLE) if is_lost or is_late else (EXIT_DONE,)
        if status not in expected and not (is_lost and own):
            found.append(f"{task} ended with {status}: {recording.reasons.get(task) or 'no reason given'}")
    return found


def _stray_restores(recording: Recording, outcomes: Sequence[Outcome]) -> list[str]:
    """Roll-backs that belong to no fault."""
    found = []
    for secs, to in recording.restores:
        before = max((step for at, step in recording.steps if at < secs), default=0)
        spans = [
            (o.strike.secs, o.strike.secs + (float("inf") if o.recovery_secs is None else o.recovery_secs))
            for o in outcomes
            if o.strike is not None
        ]
        if before > to and not any(start <= secs <= end for start, end in spans):
            found.append(
                f"the model was taken back from step {before} to {to} without a fault at {secs:.1f} s"
            )
    return found
