"""The ledger's transitions on a TensorFlow server against a plain model of its docstring, and the promises it makes.

`Model` is the oracle: Python sets and lists. Two kinds of test use it: any sequence of transitions must leave the ledger
on the server and the model alike, and workers that keep the protocol, killed and restarted anywhere, must see each
promise kept (the model takes thousands of such histories, the server some of the same).

`PS_TRAIN_FUZZ_EXAMPLES` multiplies the histories by a hundredth of its value.
"""

import os
import random

import numpy as np
import pytest

from ps_train.compat import tf, tf1
from ps_train.updates.ledger import ATTENTION, REFUSED, Ledger, LedgerState

pytestmark = pytest.mark.graph
FACTOR = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "100")) / 100
SHAPES = [(n, quorum) for n in range(1, 5) for quorum in range(1, n + 1)]


class Model:
    """The ledger of `count` replicas, of which an update needs `quorum`."""

    def __init__(self, count, quorum):
        self.count, self.quorum = count, quorum
        self.reset(1, range(count))

    def reset(self, first_round, members):
        self.round, self.rung, self.updating, self.paused = first_round, first_round - 1, False, False
        self.members, self.pending, self.waiting = set(members), set(), set()
        self.claimed, self.arrived, self.torn = set(), set(), False  # in the open round
        self.go, self.tokens = [], [[REFUSED] for _ in range(self.count)]

    @property
    def needed(self):
        return min(self.quorum, len(self.members | self.claimed))

    @property
    def is_idle(self):
        return not self.claimed and not self.updating

    def claim(self, k, stamp):
        if k not in self.members:
            if self.is_idle:
                self._admit(k)
                self.tokens[k].append(self.round)
            else:
                self.pending.add(k)
                self.waiting.add(k)
        elif stamp != self.round and not self.updating:
            self.tokens[k].append(self.round)
        else:
            self.waiting.add(k)
            if not self.updating and k not in self.claimed and len(self.claimed) < self.needed:
                self.claimed.add(k)
                return stamp
        return REFUSED

    def arrive(self, k, granted):
        if granted == self.round:
            self.arrived.add(k)
        self._ring_if_full()

    def leave(self, k):
        is_torn = k in self.claimed - self.arrived
        for group in (self.members, self.pending, self.waiting):
            group.discard(k)
        self._ring_if_full()
        if is_torn:
            self.torn = True
            self.go.append(ATTENTION)

    def lose(self, k):
        """As leave, but it stays a member."""
        if k in self.claimed - self.arrived:
            self.torn = True
            self.go.append(ATTENTION)

    def join(self, k):
        self.tokens[k].clear()
        if k in self.claimed - self.arrived:
            self.torn = True
            self.go.append(ATTENTION)
        if k in self.members and k not in self.claimed and not self.updating:
            self.waiting.discard(k)
            return self.round
        if k not in self.members:
            if self.is_idle:
                self._admit(k)
                return self.round
            self.pending.add(k)
        self.waiting.add(k)
        return REFUSED

    def begin(self):
        rung = self.go.pop(0)
        if rung == ATTENTION:
            return ATTENTION
        self.updating = True
        return len(self.arrived)

    def lose_bell(self):
        self.go.pop(0)

    def complete(self):
        self._open_next_round()
        self.thaw()

    def freeze(self):
        self._open_next_round()
        self.updating = True
        self.go.clear()

    def thaw(self):
        self.updating = False
        for k in self.waiting:
            self.tokens[k].append(self.round)
        self.waiting.clear()

    def pause(self):
        """Holds back updates, unless one is rung or running."""
        self.paused = self.paused or self.rung < self.round and not self.updating
        return self.paused

    def resume(self):
        self.paused = False
        self._ring_if_full()

    def wake(self):
        self.go.append(ATTENTION)

    def attach(self):
        self.go.clear()
        self.paused = False
        self.rung = self.round - 1
        self._ring_if_full()
        if self.torn and self.rung < self.round:
            self.go.append(ATTENTION)

    def take_token(self, k):
        return self.tokens[k].pop(0) if self.tokens[k] else None

    def snapshot(self):
        """What `Ledgers.snapshot` gives: the state and how many values are in each queue."""
        sets = (self.members, self.pending, self.waiting, self.claimed, self.arrived)
        return (
            self.round,
            self.rung,
            self.updating,
            self.paused,
            self.torn,
            *sets,
            len(self.go),
            [len(t) for t in self.tokens],
        )

    def _admit(self, k):
        self.members.add(k)
        self.pending.discard(k)
        self.waiting.discard(k)

    def _ring_if_full(self):
        is_held_back = self.updating or self.paused or self.rung == self.round
        if self.arrived and len(self.arrived) >= self.needed and not is_held_back:
            self.rung = self.round
            self.go.append(self.round)

    def _open_next_round(self):
        self.round += 1
        self.members |= self.pending
        self.pending.clear()
        self.claimed.clear()
        self.arrived.clear()
        self.torn = False


class Ledgers:
    """The same ledger on a server, with a graph and a session for each replica; same methods as `Model`."""

    def __init__(self, server, count, quorum):
        self.count = count
        self._sessions, self._ops, self._ledgers = [], [], []
        for replica in range(count):
            with tf1.Graph().as_default() as graph:
                name = f"test{count}_{quorum}"
                ledger = Ledger(name, count, quorum, replica, "/job:ps/task:0/device:CPU:0")
                number = tf1.placeholder(tf.int64, [])
                sizes = [queue.size() for queue in [ledger._go, *ledger._tokens]]
                ops = {
                    "number": number, "claim": ledger.claim(number), "arrive": ledger.arrive(number),
                    "begin": ledger.wait_for_go(), "complete": ledger.complete(),
                    "sizes": sizes, "initializer": ledger.vector.variable.initializer, "lose_bell": ledger._go.dequeue().op,
                }  # fmt: skip
            self._ledgers.append(ledger)
            self._ops.append(ops)
            self._sessions.append(tf1.Session(server.target, graph=graph))
        self._run(0, "initializer")

    def _run(self, k, op, number=None):
        op = self._ops[k][op] if isinstance(op, str) else op
        feeds = {} if number is None else {self._ops[k]["number"]: number}
        return self._sessions[k].run(op, feeds)

    def close(self):
        for session in self._sessions:
            session.close()

    def reset(self, first_round, members):
        ledger = self._ledgers[0]
        rows = [int(k in members) for k in range(self.count)]
        self._sessions[0].run(ledger.reset, {ledger.first_round: first_round, ledger.first_members: rows})

    def claim(self, k, stamp):
        return self._run(k, "claim", stamp)

    def arrive(self, k, granted):
        self._run(k, "arrive", granted)

    def leave(self, k):
        self._sessions[0].run(self._ledgers[0].leave, {self._ledgers[0].leaver: k})

    def lose(self, k):
        self._sessions[0].run(self._ledgers[0].lose, {self._ledgers[0].leaver: k})

    def join(self, k):
        return self._run(k, self._ledgers[k].join)

    def begin(self):
        try:
            return self._run(0, "begin")
        except tf.errors.InvalidArgumentError as error:
            assert "ps_train: the round needs attention" in error.message
            return ATTENTION

    def lose_bell(self):
        self._run(0, "lose_bell")

    def complete(self):
        self._run(0, "complete")

    def freeze(self):
        self._run(0, self._ledgers[0].freeze)

    def thaw(self):
        self._run(0, self._ledgers[0].thaw)

    def pause(self):
        return bool(self._run(0, self._ledgers[0].pause))

    def resume(self):
        self._run(0, self._ledgers[0].resume)

    def wake(self):
        self._run(0, self._ledgers[0].wake)

    def attach(self):
        self._run(0, self._ledgers[0].attach)

    def take_token(self, k):
        if not self._run(k, "sizes")[1 + k]:
            return None
        return self._run(k, self._ledgers[k].token)

    def snapshot(self):
        vector, sizes = self._run(0, [self._ledgers[0].snapshot, self._ops[0]["sizes"]])
        state = LedgerState.from_vector(vector, self.count)
        sets = [state.member > 0, state.pending > 0, state.waiting > 0]
        sets += [state.claimed == state.round, state.arrived == state.round]
        sets = [set(np.flatnonzero(row).tolist()) for row in sets]
        head = int(state.round), int(state.going), bool(state.updating), bool(state.paused), bool(state.torn)
        return *head, *sets, sizes[0], list(sizes[1:])


@pytest.fixture(scope="module")
def server():
    spec = tf.train.ClusterSpec({"ps": ["localhost:0"]})
    return tf1.train.Server(spec, job_name="ps", task_index=0)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[1]}of{shape[0]}")
def pair(request, server):
    """(the ledger on the server, its model), both freshly made."""
    ledgers = Ledgers(server, *request.param)
    yield ledgers, Model(*request.param)
    ledgers.close()


def test_any_sequence_of_transitions(pair):
    """Whatever is called in whatever order, both agree on every answer and on the state.

    Only who was granted a place arrives: else a round could be full and torn at once, and the order of the two rings is
    left open.
    """
    ledgers, model = pair
    for seed in range(max(int(5 * FACTOR), 1)):
        rng = random.Random(seed)
        history = []
        members = [k for k in range(model.count) if rng.random() < 0.8]
        call_both(ledgers, model, history, "reset", 10**12 + 1000 * seed, members)
        for _ in range(40):
            call_both(ledgers, model, history, *random_call(rng, model))


def random_call(rng, model):
    k = rng.randrange(model.count)
    stamp = rng.choice([model.round] * 6 + [model.round - 1, model.round + 1, REFUSED])
    calls = [("join", k), ("claim", k, stamp), ("claim", k, stamp), ("claim", k, model.round)]
    calls += [
        ("arrive", k, stamp if k in model.claimed else REFUSED),
        ("leave", k),
        ("lose", k),
        ("take_token", k),
        ("attach",),
    ]
    calls += [("pause",), ("resume",), ("wake",)]
    calls += [("arrive", k, model.round) for k in model.claimed - model.arrived]
    if model.go:
        calls += [("begin",)] * 3
    if model.updating:
        calls += [("complete",), ("thaw",)] * 2
    else:
        calls += [("freeze",)]
    return rng.choice(calls)


def call_both(ledgers, model, history, name, *args):
    history.append((name, *args))
    expected, got = getattr(model, name)(*args), getattr(ledgers, name)(*args)
    assert got == expected, f"answer of the last of {history}"
    assert ledgers.snapshot() == model.snapshot(), f"state after {history}"
    return got


class Worker:
    """A worker that keeps the protocol, one transition at a time."""

    def __init__(self, number):
        self.number, self.state, self.stamp = number, "dead", None
        self.late_arrival = None  # a stamp whose gradients are complete only after the worker died


class Job:
    """Workers and the chief's update loop on a ledger, in any interleaving; checks the promises at each transition."""

    def __init__(self, ledger, model):
        self.ledger, self.model = ledger, model
        self.workers = [Worker(k) for k in range(model.count)]
        self.chief, self.rounds_done, self.history = "waiting", 0, []
        self.rung, self.granted = [], {}

    def choices(self, with_faults):
        """Everything that can happen next, as functions."""
        found = [getattr(self, "_chief_" + self.chief)] if self.chief != "waiting" or self.model.go else []
        for worker in self.workers:
            if worker.state == "owed" and not self._tokens_of(worker):
                continue
            found.append(lambda w=worker: getattr(self, "_worker_" + w.state)(w))
            if with_faults:
                found += [lambda w=worker: self._kill(w)] * (worker.state != "dead")
                found += [lambda w=worker: self._leave(w)] * (worker.state == "ready")
                found += [lambda w=worker: self._late_arrival(w)] * (worker.late_arrival is not None)
                found += [lambda w=worker: self._remove(w)] * (worker.state == "dead")
        if with_faults and self.chief in ("waiting", "alarmed"):
            found.append(self._chief_restarts)
        if with_faults or self.model.paused:
            found.append(self._chief_resumes if self.model.paused else self._chief_pauses)
        return found

    def _worker_dead(self, worker):
        self._note("joins", worker)
        self._got_token(worker, self.ledger.join(worker.number))

    def _worker_ready(self, worker):
        granted = self.ledger.claim(worker.number, worker.stamp)
        self._note(f"claims {worker.stamp}: {granted}", worker)
        if granted != REFUSED:
            holders = self.granted.setdefault(granted, [])
            assert worker.number not in holders, f"two places for one replica: {self.history}"
            holders.append(worker.number)
            assert len(holders) <= self.model.quorum, f"more places than the quorum: {self.history}"
            assert granted == self.model.round, f"a stale stamp was granted: {self.history}"
        worker.state, worker.stamp = ("pushing", granted) if granted != REFUSED else ("owed", None)

    def _worker_pushing(self, worker):
        self._note("arrives", worker)
        self.ledger.arrive(worker.number, worker.stamp)
        worker.state, worker.stamp = "owed", None

    def _worker_owed(self, worker):
        token = self.ledger.take_token(worker.number)
        self._note(f"takes token {token}", worker)
        assert token is not None and token > 0, f"a bad token: {self.history}"
        self._got_token(worker, token)

    def _got_token(self, worker, token):
        worker.state, worker.stamp = ("owed", None) if token == REFUSED else ("ready", token)

    def _kill(self, worker):
        self._note("is killed", worker)
        if worker.state == "pushing":
            worker.late_arrival = worker.stamp
        worker.state, worker.stamp = "dead", None

    def _late_arrival(self, worker):
        self._note("arrives after its death", worker)
        self.ledger.arrive(worker.number, worker.late_arrival)
        worker.late_arrival = None

    def _leave(self, worker):
        self._note("leaves", worker)
        self.ledger.leave(worker.number)
        worker.state = "dead"

    def _remove(self, worker):
        self._note("is removed", worker)
        self.ledger.leave(worker.number)

    def _chief_waiting(self):
        number = self.model.round
        count = self.ledger.begin()
        self._note(f"chief begins {number}: {count}")
        assert count == ATTENTION or not self.model.paused, f"an update while the chief saves: {self.history}"
        if count == ATTENTION:
            self.chief = "alarmed"
            return
        assert number not in self.rung, f"a round was rung twice: {self.history}"
        self.rung.append(number)
        assert count == len(self.granted[number]), f"an update of a half-made push: {self.history}"
        assert count == self.model.needed, f"an update of too few: {self.history}"
        self.chief = "updating"

    def _chief_updating(self):
        self._note("chief completes")
        self.ledger.complete()
        self.rounds_done += 1
        self.chief = "waiting"

    def _chief_alarmed(self):
        self._note("chief freezes")
        self.ledger.freeze()
        self.chief = "frozen"

    def _chief_frozen(self):
        self._note("chief thaws")
        self.ledger.thaw()
        self.chief = "waiting"

    def _chief_restarts(self):
        self._note("chief's update loop restarts")
        if self.model.go:
            self.ledger.lose_bell()  # the old loop took it and did nothing any more
        self.ledger.attach()
        self.chief = "waiting"

    def _chief_pauses(self):
        is_paused = self.ledger.pause()
        self._note(f"chief wants to save: {is_paused}")
        assert not (is_paused and self.chief == "updating"), f"saves in an update: {self.history}"

    def _chief_resumes(self):
        self._note("chief has saved")
        self.ledger.resume()

    def check(self):
        """Each worker that waits is owed one token or has one; each that does not has none."""
        for worker in self.workers:
            owed = (worker.number in self.model.waiting) + self._tokens_of(worker)
            if worker.state in ("pushing", "owed"):
                assert owed == 1, f"worker {worker.number} is owed {owed} tokens: {self.history}"
            elif worker.state == "ready":
                assert owed == 0, f"worker {worker.number} has {owed} tokens: {self.history}"

    def _note(self, event, worker=None):
        self.history.append(f"{worker.number} {event}" if worker else event)

    def _tokens_of(self, worker):
        return len(self.model.tokens[worker.number])


class Both:
    """A `Ledgers` and a `Model` driven together, compared at each transition."""

    def __init__(self, ledgers, model):
        self.ledgers, self.model, self.history = ledgers, model, []

    def __getattr__(self, name):
        return lambda *args: call_both(self.ledgers, self.model, self.history, name, *args)


def live(ledger, model, rng, num_events):
    """A history with faults, then peace: everyone alive must get on, whatever happened before."""
    job = Job(ledger, model)
    for _ in range(num_events):
        rng.choice(job.choices(with_faults=True))()
        job.check()
    for worker in job.workers:
        if worker.state == "dead" and rng.random() < 0.5:
            job._remove(worker)
            worker.state = "gone"
    alive = [worker for worker in job.workers if worker.state != "gone"]
    job.workers = alive
    if not alive:
        return
    target, bound = job.rounds_done + 3, 60 * model.count
    while job.rounds_done < target and bound:
        choices = job.choices(with_faults=False)
        assert choices, f"nothing can happen any more: {job.history}"
        rng.choice(choices)()
        job.check()
        bound -= 1
    assert job.rounds_done >= target, f"no progress: {job.history}"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[1]}of{shape[0]}")
def test_promises_are_kept_by_the_model(shape):
    for seed in range(max(int(200 * FACTOR), 1)):
        model = Model(*shape)
        model.reset(1000, range(model.count))
        live(model, model, random.Random(seed), num_events=60)


def test_promises_are_kept_on_the_server(pair):
    ledgers, model = pair
    for seed in range(max(int(2 * FACTOR), 1)):
        first_round = 2 * 10**12 + 10_000 * seed
        both = Both(ledgers, model)
        both.reset(first_round, list(range(model.count)))
        live(both, model, random.Random(seed), num_events=40)
