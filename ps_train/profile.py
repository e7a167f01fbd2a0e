"""What a worker has found out about its own steps, as values: what is kept of the traces, and the figures made of it.

    traces = Evenly(limit=20)
    traces.append(trace)                                 # of each step that was traced
    parts = mean_parts(traces.values, step_secs)
    Profile.from_dict(json.loads(...))                   # as the report file has it

The parts of a step are measured in steps that are traced, which takes time, and scaled to the step that is not: by how long
each part was of the time between the first and the last event of the traced steps. What is left of the step is `other`, too:
Python, the session's call, and the messages that start and end a step.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ps_train.step_trace import PARTS, WAIT, StepTrace, Traffic
from ps_train.timeline import OTHER

MIN_TO_TRIM = 8  # traces, from which on the shortest and longest quarter is left out
MIN_WHOLE = 0.25  # of the traces

T = TypeVar("T")


class Evenly(Generic[T]):
    """Keeps some of the values that are offered, spread evenly over all of them, however many there will be.

    When there are `limit`, every second one is dropped, and from then on only every second one taken, and so on.

    >>> kept = Evenly(4)
    >>> for value in range(11):
    ...     kept.add(value)
    >>> kept.values, kept.stride
    ([0, 4, 8], 4)

    Attributes:
      values: those that are kept.
      stride: of so many that are offered one is taken now.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._offered = 0
        self.values: list[T] = []
        self.stride = 1

    def add(self, value: T) -> None:
        """Offers a value, and keeps it if its turn has come."""
        if self._offered % self.stride == 0:
            if len(self.values) == self._limit:
                self._thin()
            if self._offered % self.stride == 0:
                self.values.append(value)
        self._offered += 1

    def append(self, value: T) -> None:
        """Keeps a value: whoever makes them makes fewer by `stride`."""
        self.values.append(value)
        if len(self.values) > self._limit:
            self._thin()

    def _thin(self) -> None:
        self.values, self.stride = self.values[::2], 2 * self.stride


@dataclass(frozen=True)
class PsFigures:
    """One ps, as a worker has it: what a step sends (`traffic`, means), what its link gave in the probe, its processor.

    Attributes:
      link_pull_rate, link_push_rate: bytes a second that one large tensor alone travelled at; None: not probed.
      cores_used: processors that its process kept busy, on an average of the time measured; None: not known.
      cores: processors that it may use.
      is_local: it is on the worker's own host.
    """

    traffic: Traffic
    link_pull_rate: float | None = None
    link_push_rate: float | None = None
    cores_used: float | None = None
    cores: int | None = None
    is_local: bool = False

    @property
    def pull_rate(self) -> float:
        """Bytes a second while there was something under way to the worker."""
        return self.traffic.pulled_bytes / self.traffic.pull_secs if self.traffic.pull_secs else 0.0

    @property
    def push_rate(self) -> float:
        """The same from the worker."""
        return self.traffic.pushed_bytes / self.traffic.push_secs if self.traffic.push_secs else 0.0


@dataclass(frozen=True)
class Settings:
    """What the verdict has to know of the job; each is read there.

    Attributes:
      update: 'async' or 'sync'.
      num_ps, num_workers: ps tasks, and training tasks.
      quorum: gradients per synchronous update.
      is_colocated: the process of each worker is a ps, too.
      first_ps_bytes, partition, wire_dtype, prefetch, pack_bytes, fuse_bytes, bucket_bytes: as in `task_context`.
    """

    update: str
    num_ps: int
    num_workers: int
    quorum: int
    is_colocated: bool
    first_ps_bytes: int
    partition: str
    wire_dtype: str
    prefetch: bool
    pack_bytes: int
    fuse_bytes: int
    bucket_bytes: int

    @property
    def is_sync(self) -> bool:
        """Whether workers wait for one another."""
        return self.update == "sync"


@dataclass(frozen=True)
class Profile:
    """What one worker has found.

    Attributes:
      worker: its name.
      num_traces: how many steps were traced and kept.
      secs: for how long it was measured.
      step_secs: median of the steps that were not traced.
      traced_step_secs: median of those that were.
      steps_per_sec: of this worker, while it did not trace.
      parts: of PARTS -> seconds of a step; they add up to `step_secs`.
      least_wait_secs: the shortest wait in a traced step: if it came last, what the update itself takes.
      cores_used, cores: processors that its process kept busy, and that it may use.
      settings: of the job.
      is_probe_alone: no other worker trained while the links were probed.
      ps: name -> PsFigures.
      rates: name of each training task -> its local steps a second, as the boards had it.
      step_cv: standard deviation of the steps that were not traced over their median, by their middle half; None: not known.
    """

    worker: str
    num_traces: int
    secs: float
    step_secs: float
    traced_step_secs: float
    steps_per_sec: float
    parts: Mapping[str, float]
    least_wait_secs: float
    cores_used: float
    cores: int
    settings: Settings
    is_probe_alone: bool = True
    ps: Mapping[str, PsFigures] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    step_cv: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """What the report file holds."""
        values = dataclasses.asdict(self)
        for name, figures in self.ps.items():
            values["ps"][name]["traffic"] = figures.traffic._asdict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """The inverse of `as_dict`."""
        ps = {
            name: PsFigures(**{**each, "traffic": Traffic(**each["traffic"])})
            for name, each in values["ps"].items()
        }
        return cls(**{**values, "settings": Settings(**values["settings"]), "ps": ps})


def mean_parts(traces: Sequence[StepTrace], step_secs: float) -> dict[str, float]:
    """Of PARTS -> seconds of a step of `step_secs`, to which they add up."""
    usual = _middle(whole(traces))
    total = sum(trace.secs for trace in usual)
    inside = min(total / len(usual), step_secs)
    parts = {
        part: inside * sum(trace.parts.get(part, 0.0) for trace in usual) / total if total else 0.0
        for part in PARTS
    }
    parts[OTHER] += max(step_secs - sum(parts.values()), 0.0)
    return parts


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation over median, of normal values with such quartiles, whatever the outermost ones are; None: too few.

    >>> round(spread([10.0, 9.0, 11.0, 500.0, 10.0, 9.0, 11.0, 0.0]), 3)
    0.148
    """
    if len(values) < MIN_TO_TRIM:
        return None
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 1.349 / middle if middle else None


def usual_traffic(traces: Sequence[StepTrace]) -> dict[str, Traffic]:
    """Name of each ps -> its Traffic in a step, the median of each figure."""
    chosen = whole(traces)
    names = sorted({name for trace in chosen for name in trace.links})
    found = {}
    for name in names:
        each = [trace.links.get(name, Traffic()) for trace in chosen]
        found[name] = Traffic(*(statistics.median(column) for column in zip(*each, strict=True)))
    return found


def least_wait(traces: Sequence[StepTrace]) -> float:
    """The shortest wait of a traced step."""
    return min((trace.parts.get(WAIT, 0.0) for trace in whole(traces)), default=0.0)


def whole(traces: Sequence[StepTrace]) -> Sequence[StepTrace]:
    """Those with as many messages as any has, if they are not exceptions.

    TensorFlow tells the tasks to note their transfers while the step begins already, and not to while another worker's traced
    step may not be over: some are left out.
    """
    counts = [
        sum(line.pull_messages + line.push_messages for line in trace.links.values()) for trace in traces
    ]
    found = [trace for trace, count in zip(traces, counts, strict=True) if count == max(counts)]
    return found if len(found) >= MIN_WHOLE * len(traces) else traces


def _middle(traces: Sequence[StepTrace]) -> Sequence[StepTrace]:
    """Those of a usual length."""
    if len(traces) < MIN_TO_TRIM:
        return traces
    quarter = len(traces) // 4
    return sorted(traces, key=lambda trace: trace.secs)[quarter:-quarter]
