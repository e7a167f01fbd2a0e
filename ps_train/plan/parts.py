"""What a simulated job is made of: its ps tasks, its workers, and what these do in a step."""

from __future__ import annotations

from collections.abc import Callable

from ps_train.plan.setup import Setup
from ps_train.plan.sharing import Alone, Events, Shared


class Ps:
    """All ps tasks that hold this share of the variables."""

    def __init__(self, events: Events, setup: Setup, share: float):
        self.share = share
        self.out = Shared(events, setup.ps_out_rate, burst=setup.burst_bytes)
        self.into = Shared(events, setup.ps_in_rate, burst=setup.burst_bytes)
        self.cpu = Shared(events, setup.ps_cores, most_each=1.0)


class Worker:
    """One worker: its own links, how many times as long it computes, its steps."""

    def __init__(self, events: Events, setup: Setup, factor: float):
        self.out = _own_link(events, setup.worker_out_rate, setup.burst_bytes)
        self.into = _own_link(events, setup.worker_in_rate, setup.burst_bytes)
        self.factor = factor
        self.steps = 0
        self.round = 0


def _own_link(events: Events, rate: float, burst: float) -> Shared | Alone:
    return Shared(events, rate, burst=burst) if burst else Alone(events, rate)


class Chain:
    """Things that a worker does one after the other, and to whom their time is due; `beside`: chains of the same step."""

    def __init__(self, worker: Worker, now: float, beside: list[Chain]):
        self.worker, self._since, self.beside = worker, now, beside
        self.notes: list[tuple[str, float]] = []
        self.left = 0.0  # seconds of computing
        beside.append(self)

    def note(self, name: str, now: float) -> None:
        """What has ended now was due to that."""
        self.notes.append((name, now - self._since))
        self._since = now


class Join:
    """Goes on when as many things as there are have ended; the last one is to blame."""

    def __init__(self, count: int, then: Callable[[str], None]):
        self._left, self._then = count, then

    def end(self, name: str) -> None:
        """One of them has."""
        self._left -= 1
        if not self._left:
            self._then(name)
