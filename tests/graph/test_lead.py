"""The bound on how far a worker may be ahead: its transitions on a server against a plain model, and threads that race."""

import random
import threading
import time

import numpy as np
import pytest
from in_process import lend_servers

from ps_train import task_context
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.updates.lead import Lead
from ps_train.updates.standing import place_of, read_lead
from ps_train.updates.vector_states import LeadState

pytestmark = pytest.mark.graph
N = 3


class Model:
    """The docstring of `lead` in Python."""

    def __init__(self, max_lead):
        self.max_lead, self.steps, self.waiting, self.tokens = max_lead, {}, set(), [0] * N

    def _let_go(self):
        slowest = min(self.steps.values(), default=0)
        for k in list(self.waiting):
            if self.steps[k] - slowest < self.max_lead:
                self.waiting.remove(k)
                self.tokens[k] += 1

    def count(self, k):
        self.steps.setdefault(k, min(self.steps.values(), default=0))
        self.steps[k] += 1
        self.waiting.add(k)
        self._let_go()

    def leave(self, k):
        self.steps.pop(k, None)
        if k in self.waiting:
            self.waiting.remove(k)
            self.tokens[k] += 1
        self._let_go()

    def join(self, k):
        self.leave(k)
        self.steps[k] = min(self.steps.values(), default=0)
        self.tokens[k] = 0


class Workers:
    """A Lead and a session for each worker, on one ps."""

    def __init__(self, max_lead):
        servers = lend_servers(num_ps=1, num_workers=N)
        self.address = servers.cluster.address(TaskId("ps", 0))
        self.leads, self.ops, self.sessions = [], [], []
        for k in range(N):
            task = TaskId("worker", k)
            context = task_context.TaskContext(task, servers.cluster, max_lead=max_lead)
            with tf1.Graph().as_default() as graph:
                lead = Lead(context)
                with tf1.device("/job:ps/task:0"):
                    count = lead.vector.change(lead._count)
                    sizes = [queue.size() for queue in lead._queues]
                    take = lead._queues[k].dequeue()
                follow = lead.follow(tf.no_op())
            self.leads.append(lead)
            self.ops.append({"count": count, "sizes": sizes, "take": take, "follow": follow})
            config = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{k}"])
            self.sessions.append(tf1.Session(servers.target(task), graph=graph, config=config))
        self.leads[0].reset(self.sessions[0], None)
        for k in range(N):
            self.join(k)
            self.leads[k].remove(self.sessions[k], k)

    def run(self, k, name):
        return self.sessions[k].run(self.ops[k][name])

    def join(self, k):
        self.sessions[k].run(self.leads[k].join)

    def state(self):
        return LeadState.from_vector(self.sessions[0].run(self.leads[0].vector.snapshot), N)

    def close(self):
        for session in self.sessions:
            session.close()


@pytest.fixture
def make_workers():
    made = []

    def make(max_lead):
        made.append(Workers(max_lead))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


@pytest.mark.parametrize("max_lead", [1, 2, 5])
def test_any_sequence_of_transitions_is_as_the_model_says(make_workers, max_lead):
    rng, workers, model = random.Random(max_lead), make_workers(max_lead), Model(max_lead)
    history = []
    for _ in range(300):
        k = rng.randrange(N)
        what = rng.choices(["count", "leave", "join"], [8, 1, 1])[0]
        if what == "count" and k in model.waiting:
            continue
        history.append((what, k))
        if what == "count":
            if model.tokens[k]:  # that it went on with
                workers.run(k, "take")
                model.tokens[k] -= 1
            workers.run(k, "count")
        elif what == "leave":
            workers.leads[0].remove(workers.sessions[0], k)
        else:
            workers.join(k)
        getattr(model, what)(k)
        state = workers.state()
        found = {k: int(state.steps[k]) for k in range(N) if state.member[k]}
        assert found == model.steps, history
        assert {k for k in range(N) if state.waiting[k]} == model.waiting, history
        assert list(workers.run(0, "sizes")) == model.tokens, history
        assert max(found.values(), default=0) - min(found.values(), default=0) <= max_lead
        assert not found or any(k not in model.waiting for k in found), "someone has to be able to go on"


@pytest.mark.parametrize("max_lead", [1, 3])
def test_racing_workers_keep_the_bound_and_all_get_on(make_workers, max_lead):
    workers, steps, observed = make_workers(max_lead), 60, []
    for k in range(N):
        workers.join(k)
    done = [0] * N

    def work(k):
        rng = random.Random(k)
        for _ in range(steps):
            time.sleep(rng.random() * (0.001, 0.003, 0.012)[k])
            workers.run(k, "follow")
            done[k] += 1
        workers.leads[k].remove(workers.sessions[k], k)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(N)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        state = workers.state()
        observed.append([int(s) for s, is_member in zip(state.steps, state.member, strict=True) if is_member])
    assert done == [steps] * N
    spreads = [max(row) - min(row) for row in observed if row]
    assert max(spreads) == max_lead, "the fast ones use the lead that they may have, and no more"


def test_who_waits_is_read_from_outside(make_workers):
    workers = make_workers(2)
    for k in (0, 2):
        workers.join(k)
    for _ in range(2):
        workers.run(0, "count")
    names = [f"worker:{k}" for k in range(N)]
    standing = read_lead(workers.address, TaskId("ps", 0), place_of(workers.leads[1].vector), names)
    assert standing.steps == {"worker:0": 2, "worker:2": 0}
    assert (standing.waiting, standing.slowest) == (("worker:0",), ("worker:2",))


def test_a_new_chief_knows_a_living_lead(make_workers):
    workers = make_workers(2)
    assert not workers.leads[1].is_torn(workers.sessions[1])
    np.testing.assert_array_equal(workers.state().member, [0, 0, 0])
