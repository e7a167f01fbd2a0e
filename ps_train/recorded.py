"""The record of an asynchronous run, as files: what `--record=DIR` writes, and `replay` reads; without TensorFlow.

    Journal("DIR", 1).write({"session": 0})              # worker 1's own file, a JSON value a line
    record = read("DIR")
    record.orders[0]                                     # what ps 0 did, in its order: StepEvent, ModelEvent, SaveEvent
    for push in record.pushes(): push.staleness

Two kinds of files, each written by who knows what is in it, each line at once:

- `ps0.order`: a line for each time that this ps was read or changed, by the ps itself, under the lock under which that
  happens (`sections`). So the order of the lines is the order of the updates, also of those of a worker that was killed
  before it could say anything. `1 0 41 3` is worker 1, its session 0, its step 41, section 3 of the graph; `model 2` says that
  the chief has brought the model up; `save 0 7 1` is the 7th checkpoint of the chief's session 0.
- `worker1.steps`: what a worker knows. An object when its process starts (flags, cluster, model, seed, sections), when a
  session does (its input starts anew), when the model was restored or a checkpoint was saved; and for each step that was
  done a list: `[41, loss, examples, global step, granted]`. Of one that was not done for NaN or Inf an object: its number, what was
  bad, and the global step before it.

Alternatives: numbers that the ps counts and workers fetch and write (a killed worker's last push is in nobody's file, though
others went on from it); the boards, which keep the newest only; one file of the chief's (other hosts do not share its disk).

A process that is killed may cut its last line, which is skipped; the next one of its name begins a line of its own.
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ps_train.errors import ModelError, UsageError

FORMAT = 1
# What a replay needs of the line with which a process begins.
START = (
    "format", "ps", "num_workers", "digest", "sections", "seeds", "flags", "seed", "cluster", "source", "sha256",
)  # fmt: skip
_STEP = re.compile(r"(\d+) (\d+) (\d+) (\d+)")
_MODEL = re.compile(r"model (\d+)")
_SAVE = re.compile(r"save (\d+) (\d+) (\d+)")


class StepEvent(NamedTuple):
    """One section of a worker's step, on one ps."""

    worker: int
    session: int
    number: int
    section: int

    @property
    def step(self) -> tuple[int, int, int]:
        """Which step of all it is of."""
        return self[:3]


class ModelEvent(NamedTuple):
    """The chief has initialized or restored the model."""

    number: int


class SaveEvent(NamedTuple):
    """One section of a checkpoint: the ps was read for it."""

    session: int
    number: int
    section: int


Event = StepEvent | ModelEvent | SaveEvent


class Step(NamedTuple):
    """What a worker noted of a step that was done.

    Attributes:
      loss: None for NaN is not used: JSON's NaN is read as such.
      examples: in its batch.
      first: how many examples its session had trained on before.
      global_step: after it.
      granted: staleness, or below zero if it was dropped; None where nothing is counted.
    """

    loss: float
    examples: int
    first: int
    global_step: int
    granted: int | None


class BadStep(NamedTuple):
    """What a worker noted of a step that failed its check for NaN and Inf: what was bad, and the global step before it."""

    what: str
    global_step: int


class Push(NamedTuple):
    """One applied (or, by --max_staleness, dropped) push.

    Attributes:
      worker, session, number: whose step it is of; `number` counts the batches of the session, too.
      versions: ps -> pushes that it had applied, since the model was brought up, when this step read it.
      places: ps -> the same when it applied this one.
      step: Step, or None if the worker was killed before it noted it.
    """

    worker: int
    session: int
    number: int
    versions: dict[int, int]
    places: dict[int, int]
    step: Step | None

    @property
    def staleness(self) -> int:
        """Pushes of others between its pull and itself, on the ps where they were most."""
        return max(self.places[ps] - self.versions[ps] for ps in self.places)


class Section(NamedTuple):
    """What a step does on one ps between two messages; see `sections`.

    Attributes:
      ps: index of the task.
      writes: whether it changes anything there.
      trains: whether it is there that trainable variables are updated.
    """

    ps: int
    writes: bool
    trains: bool


@dataclass
class Record:
    """All files of a directory.

    Attributes:
      starts: worker -> what its processes wrote when they started.
      sessions: (worker, session) -> the index in `starts` of the process.
      steps: (worker, session, number) -> Step.
      bad: (worker, session, number) -> BadStep.
      models: number -> what the chief wrote of it: "checkpoint", None for initialized variables; "start": its process, as in `sessions`.
      saves: (session, number) -> path of a checkpoint that was written.
      orders: ps -> its events, in its order.
      skipped: lines that could not be read, as `file:line`.
    """

    starts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    sessions: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: dict[tuple[int, int, int], Step] = field(default_factory=dict)
    bad: dict[tuple[int, int, int], BadStep] = field(default_factory=dict)
    models: dict[int, dict[str, Any]] = field(default_factory=dict)
    saves: dict[tuple[int, int], str] = field(default_factory=dict)
    orders: dict[int, list[Event]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def sections(self) -> list[Section]:
        """Of a step, by their numbers; the same in all workers' graphs."""
        return [Section(*section) for section in self.starts[min(self.starts)][-1]["sections"]]

    @property
    def push_sections(self) -> dict[int, int]:
        """Number of a section that is a push -> its ps; one on each ps that a step updates."""
        numbers = {ps: _push_of(self.sections, ps) for ps in self.orders}
        return {number: ps for ps, number in numbers.items() if number is not None}

    def limit(self, ps: int, until: int | None) -> int:
        """How many events of a ps there are up to its last one of a step that was global step `until` or one before."""
        events = self.orders[ps]
        if until is None:
            return len(events)
        last = 0
        for number, event in enumerate(events, 1):
            step = self.steps.get(event.step) if isinstance(event, StepEvent) else None
            if isinstance(event, ModelEvent) or (step is not None and step.global_step <= until):
                last = number
        return last

    def sections_of_steps(self, limits: dict[int, int]) -> dict[tuple[int, int, int], set[int]]:
        """Of each step the sections that are recorded, among so many events of each ps."""
        found: dict[tuple[int, int, int], set[int]] = collections.defaultdict(set)
        for ps, events in self.orders.items():
            for event in events[: limits[ps]]:
                if isinstance(event, StepEvent):
                    found[event.step].add(event.section)
        return found

    def pushes(self) -> list[Push]:
        """Pushes in the order of the first ps that applied each; a step that changed nothing is none."""
        sections = self.sections
        pulls = {ps: _first(sections, ps) for ps in self.orders}
        writes = self.push_sections
        found: dict[tuple[int, int, int], Push] = {}
        for ps, events in self.orders.items():
            applied = 0
            versions: dict[tuple[int, int, int], int] = {}
            for event in events:
                if isinstance(event, ModelEvent):
                    applied, versions = 0, {}
                elif isinstance(event, StepEvent):
                    if event.section == pulls[ps]:
                        versions[event.step] = applied
                    if event.section in writes:
                        push = found.setdefault(
                            event.step, Push(*event.step, {}, {}, self.steps.get(event.step))
                        )
                        push.versions[ps] = versions.pop(event.step, applied)
                        push.places[ps] = applied
                        applied += 1
        return list(found.values())


def _first(sections: list[Section], ps: int, field: str = "ps") -> int | None:
    """The number of the first section on a ps for which a field holds."""
    numbers = (n for n, one in enumerate(sections) if one.ps == ps and (field == "ps" or getattr(one, field)))
    return next(numbers, None)


def _push_of(sections: list[Section], ps: int) -> int | None:
    """The number of the section that is a push: other updates, as of moving averages, may come before it."""
    trains = _first(sections, ps, "trains")
    return _first(sections, ps, "writes") if trains is None else trains


def order_path(directory: str, ps: int) -> str:
    """The file of a ps."""
    return os.path.join(directory, f"ps{ps}.order")


def steps_path(directory: str, worker: int) -> str:
    """The file of a worker."""
    return os.path.join(directory, f"worker{worker}.steps")


def prepare(path: str) -> None:
    """Makes the directory of a file that is appended to, and ends a line that was cut off.

    Raises:
      UsageError: it cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: str, error: OSError) -> UsageError:
    return UsageError(f"--record: {path} cannot be written: {error.strerror}. Choose another directory.")


class Journal:
    """A worker's file, opened to be appended to.

    Raises:
      UsageError: it cannot be written.

    Attributes:
      sessions, models: how many of either there are in it.
    """

    def __init__(self, directory: str, worker: int):
        self._path = steps_path(directory, worker)
        prepare(self._path)
        known = collections.Counter[str]()
        for _, line in _read_lines(self._path, _parse_json, []):
            known.update(line.keys() if isinstance(line, dict) else ())
        self.sessions, self.models = known["session"], known["model"]
        self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115, it is open as long as the process

    def write(self, value: Any) -> None:
        """Adds a line; raises ModelError if it cannot be written: the model is as good as before, a record with a gap is not."""
        try:
            self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
        except OSError as error:
            raise ModelError(why_unwritten(f"{self._path}: {error.strerror}")) from None


def why_unwritten(what: str) -> str:
    """What ends a job whose record does."""
    return f"--record cannot be written any more: {what}. Make room there, or go on without --record"


def read(directory: str) -> Record:
    """Everything in a directory; raises UsageError if that is no record of one job."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise UsageError(f"--record={directory} cannot be read: {error.strerror}. Check the path.") from None
    record = Record()
    for name in names:
        path = os.path.join(directory, name)
        if match := re.fullmatch(r"worker(\d+)\.steps", name):
            _read_worker(record, int(match[1]), path)
        elif match := re.fullmatch(r"ps(\d+)\.order", name):
            record.orders[int(match[1])] = [
                event for _, event in _read_lines(path, _parse_event, record.skipped)
            ]
    _check(record, directory)
    return record


def _check(record: Record, directory: str) -> None:
    starts = [start for many in record.starts.values() for start in many]
    if not starts or not record.orders:
        raise UsageError(
            f"--record={directory} holds no record: expected worker0.steps and ps0.order, as a job with --record writes them."
        )
    if any(start.get("format") != FORMAT for start in starts):
        raise UsageError(f"--record={directory} was written by another version of ps_train. Use that one.")
    kinds = {(*start["ps"], start["num_workers"], start["digest"]) for start in starts}
    if len(kinds) > 1:
        raise UsageError(
            f"--record={directory} holds records of different jobs: their clusters or graphs differ. Give each job a "
            "directory of its own."
        )
    missing = [order_path("", ps) for ps in starts[0]["ps"] if ps not in record.orders]
    seen = {
        event.worker for events in record.orders.values() for event in events if isinstance(event, StepEvent)
    }
    missing += [steps_path("", worker) for worker in sorted({0, *seen}) if worker not in record.starts]
    if missing:
        raise UsageError(
            f"--record={directory} lacks {', '.join(missing)}. Each host has its own files: copy all into one directory."
        )


def _read_worker(record: Record, worker: int, path: str) -> None:
    examples: collections.Counter[int] = collections.Counter()
    session, starts, num_skipped = -1, list[dict[str, Any]](), len(record.skipped)
    for number, line in _read_lines(path, _parse_json, record.skipped):
        if not starts and "format" not in line:
            cut = record.skipped[num_skipped:]
            where = os.path.join(os.path.dirname(path), cut[0]) if cut else f"{path}:{number}"
            raise _damaged(where, "a worker's file begins with a line on its process, with flags and graph")
        try:
            if isinstance(line, list):
                step, loss, count, global_step, granted = line
                record.steps[worker, session, step] = Step(
                    loss, count, examples[session], global_step, granted
                )
                examples[session] += count
            elif "format" in line:
                if line["format"] != FORMAT:  # `_check` says so; what comes then is not known here
                    record.starts[worker] = [line]
                    return
                starts.append({key: line[key] for key in START})
            elif "session" in line:
                session = line["session"]
                record.sessions[worker, session] = len(starts) - 1
            elif "model" in line:
                kept = {key: line[key] for key in ("checkpoint", "kept")}
                record.models[line["model"]] = {**kept, "start": len(starts) - 1}
            elif "save" in line:
                record.saves[session, line["save"]] = line["path"]
            elif "bad" in line:
                record.bad[worker, session, line["bad"]] = BadStep(line["what"], line["global_step"])
        except KeyError as error:
            raise _damaged(f"{path}:{number}", f"it lacks {error}") from None
    if starts:
        record.starts[worker] = starts


def _damaged(where: str, how: str) -> UsageError:
    return UsageError(f"--record: {where} is damaged: {how}. Copy the file from its host once more.")


def _read_lines(path: str, parse: Any, skipped: list[str]) -> Iterator[tuple[int, Any]]:
    """(number, what it holds) of each line that can be read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, parse(line)
            except ValueError:
                if line.strip():
                    skipped.append(f"{os.path.basename(path)}:{number}")


def _parse_json(line: str) -> Any:
    if not line.endswith("\n"):  # `[1,0.5,3` is cut, and so may be `12`
        raise ValueError
    value = json.loads(line)
    if not isinstance(value, dict) and not (isinstance(value, list) and len(value) == 5):
        raise ValueError
    return value


def _parse_event(line: str) -> Event:
    text = line.removesuffix("\n")
    if text == line:
        raise ValueError
    for pattern, kind in ((_STEP, StepEvent), (_MODEL, ModelEvent), (_SAVE, SaveEvent)):
        if match := pattern.fullmatch(text):
            return kind(*map(int, match.groups()))
    raise ValueError
