"""The two parts of a discrete-event simulation: a queue of events, and a resource that its jobs share evenly.

    events = Events()
    link = Shared(events, rate=12.5e6)              # bytes a second
    link.add(1e6, done)                             # alone it takes 0.08 s; of n at a time each gets a n-th
    while events.step(): ...

A resource is shared by processors' sharing, exactly: the fluid limit of many TCP connections through one link, or of threads on
processors. It takes two steps of O(log n) a job, because the jobs' order of ending does not change when others come: each is kept
by how far an imaginary job that never ends must have got. Rejected: first in, first out, which has the first of many workers that
pull at the same moment go ahead at once, and so has the links' two directions overlap where they do not; chunks of it in turn,
which come to the same at many times the events; max-min fair rates over all links at once, whose every arrival touches every job.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

SOON_SECS = 1e-9  # what is left of a job then is rounding


class Events:
    """What is to happen, in order of time; at one moment in the order in which it was asked for.

    Attributes:
      now: seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, secs: float, action: Callable[..., None], *args: Any) -> None:
        """Has `action(*args)` called so many seconds from now."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + secs, self._count, action, args))

    def step(self) -> bool:
        """Lets the next event happen; False if there is none."""
        if not self._queue:
            return False
        self.now, _, action, args = heapq.heappop(self._queue)
        action(*args)
        return True


class Shared:
    """A link's direction, or the processors of a host.

    Args:
      events: the simulation's.
      rate: bytes, or seconds of processor time, a second.
      most_each: the most of it that one job can use.
      burst: what passes at once after a rest in which it was saved at `rate`, as a token bucket (`tc tbf`) lets it.

    Attributes:
      served: what all jobs have got so far.
    """

    def __init__(self, events: Events, rate: float, most_each: float = math.inf, burst: float = 0.0):
        self._events, self.rate, self._most_each, self._burst = events, rate, most_each, burst
        self._jobs: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._virtual = 0.0  # what a job that was always there would have got
        self._since = 0.0
        self._tokens = burst
        self._due = math.inf
        self.served = 0.0

    def add(self, amount: float, done: Callable[..., None], *args: Any) -> None:
        """A job; `done(*args)` is called when it has got all of `amount`."""
        self.settle()
        if not self._jobs and self._burst:
            passed = min(self._tokens, amount)
            self._tokens -= passed
            self.served += passed
            amount -= passed
        if amount <= 0:
            self._events.after(0.0, done, *args)
            return
        self._count += 1
        heapq.heappush(self._jobs, (self._virtual + amount, self._count, done, args))
        self._wake_in_time()

    def _speed(self) -> float:
        """Of each job."""
        return min(self._most_each, self.rate / len(self._jobs))

    def settle(self) -> None:
        """Brings `served` up to now."""
        secs, self._since = self._events.now - self._since, self._events.now
        if self._jobs:
            got = secs * self._speed()
            self._virtual += got
            self.served += got * len(self._jobs)
        elif self._burst:
            self._tokens = min(self._burst, self._tokens + secs * self.rate)

    def _wake_in_time(self) -> None:
        """Others that come meanwhile only make it later: it is looked at then, and put off."""
        if not self._jobs:
            return
        left = max(self._jobs[0][0] - self._virtual, 0.0) / self._speed()
        if self._events.now + left < self._due:
            self._due = self._events.now + left
            self._events.after(left, self._wake, self._due)

    def _wake(self, due: float) -> None:
        if due != self._due:
            return
        self._due = math.inf
        self.settle()
        ended = []
        soon = SOON_SECS * self._speed()
        while self._jobs and self._jobs[0][0] - self._virtual <= soon:
            ended.append(heapq.heappop(self._jobs))
        self._wake_in_time()
        for _, _, done, args in ended:
            done(*args)


class Alone:
    """A worker's link in one direction, which has one job at a time: a `Shared` at a third of the events."""

    def __init__(self, events: Events, rate: float):
        self._events, self.rate = events, rate

    def add(self, amount: float, done: Callable[..., None], *args: Any) -> None:
        """A job."""
        self._events.after(amount / self.rate, done, *args)
