"""A job's steps as a discrete-event simulation: what a Setup makes of its links, processors and workers.

    outcome = simulate(Setup(compute_secs=0.5, pull_bytes=1e6, push_bytes=1e6, num_workers=16, num_ps=4, ps_out_rate=12e6))
    outcome.steps_per_sec, outcome.bottleneck

One step of a worker:

1. pull: its share of the bytes leaves each ps and all arrive at the worker, while the ps tasks work for half of `carry_secs`;
2. compute: for a time that is drawn anew each step;
3. push: the other way, with the other half;
4. update: each ps applies its part of the gradient, for which it needs its share of `update_secs`.

In async the next step follows, with `max_lead` perhaps after a wait; with `prefetch` 1 is done during 2 to 4 of the step before. With
`overlap` a third of 2 is done during 1, and the rest during 3: what there is at best if each tensor travels by itself. In
sync the worker waits until the quorum is full, then each ps applies the mean (`update_secs` again), and all go on. One that comes too
late for its update is dropped, and goes on at once.

What a transfer needs, each a `sharing.Shared` for itself, is taken at the same time, and it ends when the last of them does: exact
where one of them is the limit, and a little too fast where two are nearly so. That no link carries more than its rate holds always.
ps tasks that hold equal shares are in the same state at each moment, so one stands for all. With `is_colocated` one host stands for
all, too: its link has the mean of what all workers bring and fetch, beside the worker's own.

Not in it: the cost of a message other than its delay, a network between the links, failures.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from ps_train.plan.parts import Chain, Join, Ps, Worker
from ps_train.plan.setup import (
    COMPUTE,
    DELAY,
    PS_CPU,
    PS_IN,
    PS_OUT,
    WAIT,
    WORKER_LINK,
    Outcome,
    Setup,
)
from ps_train.plan.sharing import Alone, Events, Shared

WARM_STEPS = 3  # of each worker, that do not count
MIN_STEPS = 5  # of each worker, that do
ALL_STEPS = 1500  # that count, at least
# Of the arithmetic: for each layer the way back has two products of matrices, the way forth one.
FORWARD = 1 / 3

_Use = tuple[Shared | Alone, float, str]  # so much of it, and its name


def simulate(setup: Setup, all_steps: int = ALL_STEPS) -> Outcome:
    """The Outcome, always the same of the same Setup.

    Args:
      setup: what to simulate.
      all_steps: how many steps count, at least, beside MIN_STEPS of each worker.
    """
    job = _Job(setup)
    workers = setup.quorum if setup.is_sync else setup.num_workers
    job.run_until(WARM_STEPS * workers)
    job.start_counting()
    job.run_until(workers * (WARM_STEPS + max(MIN_STEPS, math.ceil(all_steps / workers))))
    return job.outcome()


class _Job:
    def __init__(self, setup: Setup):
        self._setup, self._events, self._random = setup, Events(), random.Random(setup.seed)
        hosts = setup.num_workers
        away = (hosts - 1) / hosts if setup.is_colocated else 1.0  # of the bytes, that travel
        self._pull, self._push = setup.pull_bytes * away, setup.push_bytes * away
        self._carry = setup.carry_secs * away
        shares = {1 / hosts} if setup.is_colocated else set(setup.ps_shares)
        self._ps = [Ps(self._events, setup, share) for share in sorted(shares)]
        self._workers = [
            Worker(self._events, setup, setup.slow_factor if index < setup.num_slow else 1.0)
            for index in range(hosts)
        ]
        self._time = Alone(self._events, 1.0)
        self._done = 0  # gradients that got into the model
        self._round, self._is_applying = 0, False
        self._arrived = 0  # gradients of the open round
        self._waiting: list[Chain] = []
        self._blame: dict[str, float] = defaultdict(float)
        self._levels = Counter({0: hosts})  # steps made -> workers
        self._slowest = 0
        self._begin()
        self.start_counting()

    # The whole.

    def _begin(self) -> None:
        """In async the workers come one after the other, no faster than the fullest can serve them: they do not go in step."""
        setup = self._setup
        both = self._pull + self._push if setup.is_colocated else 0.0
        each = (both or self._pull, both or self._push, self._carry + setup.update_secs)
        busiest = max(
            ps.share * amount / shared.rate
            for ps in self._ps
            for shared, amount in zip((ps.out, ps.into, ps.cpu), each, strict=True)
        )
        spread = 0.0 if setup.is_sync else max(setup.compute_secs, setup.num_workers * busiest)
        for worker in self._workers:
            self._events.after(spread * self._random.random(), self._start, worker)

    def run_until(self, done: int) -> None:
        """Until so many gradients have got into the model."""
        while self._done < done and self._events.step():
            pass

    def start_counting(self) -> None:
        """Forgets what was."""
        self._blame.clear()
        self._began, self._before, self._already = self._events.now, self._served(), self._done

    def outcome(self) -> Outcome:
        """Since `start_counting`."""
        secs = self._events.now - self._began
        served = [now - then for now, then in zip(self._served(), self._before, strict=True)]
        use: dict[str, float] = {}
        for index, shared in enumerate(self._shared()):
            name = (PS_OUT, PS_IN, PS_CPU)[index % 3]
            use[name] = max(use.get(name, 0.0), served[index] / (shared.rate * secs))
        total = sum(self._blame.values())
        shares = {name: value / total for name, value in self._blame.items()}
        return Outcome(self._setup, (self._done - self._already) / secs, shares, use)

    def _shared(self) -> Sequence[Shared]:
        return [shared for ps in self._ps for shared in (ps.out, ps.into, ps.cpu)]

    def _served(self) -> list[float]:
        for shared in self._shared():
            shared.settle()
        return [shared.served for shared in self._shared()]

    # A step.

    def _start(self, worker: Worker) -> None:
        worker.round = self._round
        beside: list[Chain] = []
        chain = Chain(worker, self._events.now, beside)
        chain.left = self._draw(worker)
        if self._setup.prefetch and not self._setup.is_sync:
            self._pull_to(Chain(worker, self._events.now, beside), self._end)
            self._compute(chain)
        elif self._setup.overlap:
            self._pull_to(chain, self._push_from, self._first_part(chain))
        else:
            self._pull_to(chain, self._compute)

    def _draw(self, worker: Worker) -> float:
        """Seconds of computing."""
        secs, cv = self._setup.compute_secs * worker.factor, self._setup.compute_cv
        return self._random.gammavariate(cv**-2, secs * cv**2) if cv else secs

    def _first_part(self, chain: Chain) -> float:
        """What is computed before there is a gradient to push."""
        secs = chain.left * (FORWARD if self._setup.overlap else 1.0)
        chain.left -= secs
        return secs

    def _pull_to(self, chain: Chain, then: Callable[[Chain], None], compute_secs: float = 0.0) -> None:
        self._delay(2, chain, partial(self._move, self._pull, compute_secs, True, then))

    def _compute(self, chain: Chain) -> None:
        self._events.after(self._first_part(chain), self._noted, chain, self._push_from, COMPUTE)

    def _push_from(self, chain: Chain) -> None:
        self._delay(2, chain, partial(self._move, self._push, chain.left, False, self._update))

    def _move(
        self, amount: float, compute_secs: float, is_pull: bool, then: Callable[[Chain], None], chain: Chain
    ) -> None:
        """Moves what a step pulls or pushes, and computes for so long beside."""
        setup, worker = self._setup, chain.worker
        jobs: list[_Use] = [
            (self._time, compute_secs, COMPUTE),
            (worker.into if is_pull else worker.out, amount, WORKER_LINK),
        ]
        for ps in self._ps:
            if is_pull or setup.is_colocated:
                jobs.append((ps.out, amount * ps.share, PS_OUT))
            if not is_pull or setup.is_colocated:
                jobs.append((ps.into, amount * ps.share, PS_IN))
            jobs.append((ps.cpu, self._carry * ps.share / 2, PS_CPU))
        self._do_all(jobs, partial(self._noted, chain, then))

    def _update(self, chain: Chain) -> None:
        self._do_all(self._updates(), partial(self._noted, chain, self._end))

    def _updates(self) -> list[_Use]:
        return [(ps.cpu, self._setup.update_secs * ps.share, PS_CPU) for ps in self._ps]

    def _do_all(self, jobs: Sequence[_Use], then: Callable[[str], None]) -> None:
        some = [job for job in jobs if job[1] > 0 and not math.isinf(job[0].rate)]
        if not some:
            then(jobs[-1][2])
            return
        join = Join(len(some), then)
        for shared, amount, name in some:
            shared.add(amount, join.end, name)

    def _noted(self, chain: Chain, then: Callable[[Chain], None], name: str) -> None:
        chain.note(name, self._events.now)
        then(chain)

    def _delay(self, count: int, chain: Chain, then: Callable[[Chain], None]) -> None:
        if self._setup.latency_secs:
            self._events.after(count * self._setup.latency_secs, self._noted, chain, then, DELAY)
        else:
            then(chain)

    # Its end.

    def _end(self, chain: Chain) -> None:
        chain.beside.pop()
        if chain.beside:
            return
        if self._setup.is_sync:
            self._arrive(chain)
            return
        self._done += 1
        self._commit(chain)
        worker = chain.worker
        self._levels[worker.steps] -= 1
        worker.steps += 1
        self._levels[worker.steps] += 1
        if not self._levels[self._slowest]:
            self._slowest += 1
            self._release()
        lead = self._setup.max_lead
        if lead is not None and worker.steps - self._slowest >= lead:
            self._waiting.append(Chain(worker, self._events.now, []))
        else:
            self._start(worker)

    def _arrive(self, chain: Chain) -> None:
        """In sync: waits for the others, or is too late."""
        is_late = chain.worker.round != self._round
        if is_late and not self._is_applying:
            self._commit(chain)
            self._start(chain.worker)
            return
        self._waiting.append(chain)
        self._arrived += not is_late
        if self._arrived == self._setup.quorum:
            self._arrived, self._round, self._is_applying = 0, self._round + 1, True
            for each in self._waiting:
                each.note(WAIT, self._events.now)
            self._do_all(self._updates(), self._applied)

    def _applied(self, name: str) -> None:
        self._events.after(self._setup.latency_secs, self._hand_out, name)

    def _hand_out(self, name: str) -> None:
        self._is_applying = False
        self._done += self._setup.quorum
        self._release(name)

    def _release(self, name: str = WAIT) -> None:
        """All that wait go on."""
        waiting, self._waiting = self._waiting, []
        for chain in waiting:
            chain.note(name, self._events.now)
            self._commit(chain)
            self._start(chain.worker)

    def _commit(self, chain: Chain) -> None:
        for name, secs in chain.notes:
            self._blame[name] += secs
