"""What is simulated, and what comes of it, as frozen values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

# Who a step's time is due to; the words of the table's last column.
COMPUTE, PS_OUT, PS_IN, PS_CPU, WORKER_LINK, WAIT, DELAY = (
    "worker's own time", "link out of a ps", "link into a ps", "processors of a ps", "worker's own link",
    "wait for the slowest", "delay of messages",
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """A job on a cluster.

    Attributes:
      compute_secs: of a worker's step that need neither link nor ps, the "worker's own time": arithmetic, input, and the overhead of `bench`.
      compute_cv: their standard deviation over their mean; they are gamma distributed, at 1 exponentially.
      pull_bytes, push_bytes: of a step, to and from all ps tasks together.
      update_secs: processor time in which one ps alone would apply a gradient of the whole model.
      carry_secs: processor time of all ps tasks together to send and receive what a step moves.
      num_workers, num_ps: sizes; of ps tasks that the workers are (`is_colocated`), the latter does not count.
      shares: of the bytes that each ps holds; None: even ones.
      ps_out_rate, ps_in_rate: bytes a second of a ps's link in each direction.
      worker_out_rate, worker_in_rate: the same of a worker's.
      burst_bytes: what a direction of a ps's or worker's link lets pass at once after a rest.
      latency_secs: of a message, one way.
      ps_cores: processors of a ps; one job uses one of them.
      is_sync: workers wait for one another in each update.
      num_backups: gradients that an update does not wait for.
      max_lead: steps that a worker may be ahead of the slowest; None: any number.
      prefetch: variables are pulled during the step before.
      overlap: tensors travel while their own step computes, in the order of the layers.
      is_colocated: each worker's host is a ps, too, and holds an even share.
      num_slow, slow_factor: so many workers compute so many times as long.
      seed: of the times drawn.
    """

    compute_secs: float
    pull_bytes: float = 0.0
    push_bytes: float = 0.0
    compute_cv: float = 0.0
    update_secs: float = 0.0
    carry_secs: float = 0.0
    num_workers: int = 1
    num_ps: int = 1
    shares: tuple[float, ...] | None = None
    ps_out_rate: float = math.inf
    ps_in_rate: float = math.inf
    worker_out_rate: float = math.inf
    worker_in_rate: float = math.inf
    burst_bytes: float = 0.0
    latency_secs: float = 0.0
    ps_cores: float = 1.0
    is_sync: bool = False
    num_backups: int = 0
    max_lead: int | None = None
    prefetch: bool = False
    overlap: bool = False
    is_colocated: bool = False
    num_slow: int = 0
    slow_factor: float = 2.0
    seed: int = 0

    @property
    def quorum(self) -> int:
        """Gradients of a synchronous update."""
        return max(self.num_workers - self.num_backups, 1)

    @property
    def ps_shares(self) -> tuple[float, ...]:
        """Of each ps that is not a worker."""
        return self.shares if self.shares is not None else (1 / self.num_ps,) * self.num_ps

    def alone(self) -> Setup:
        """One worker with as many ps tasks, to compare with."""
        return dataclasses.replace(self, num_workers=1, num_slow=0, num_backups=0)


@dataclass(frozen=True)
class Outcome:
    """What was simulated.

    Attributes:
      setup: of what.
      steps_per_sec: batches a second whose gradients got into the model, of all workers.
      shares: of a worker's time, by who it is due to: what ended last of things that go on together.
      use: of each ps's links' directions and processors, of what the fullest of them could do.
      speed_up: over one worker; None: not known yet.
    """

    setup: Setup
    steps_per_sec: float
    shares: Mapping[str, float]
    use: Mapping[str, float]
    speed_up: float | None = None

    @property
    def bottleneck(self) -> str:
        """Who takes most of a worker's time."""
        return max(self.shares, key=lambda name: self.shares[name])

    @property
    def efficiency(self) -> float:
        """Of a worker."""
        return (self.speed_up or 0.0) / self.setup.num_workers
