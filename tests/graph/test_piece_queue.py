"""The work queue's transitions on a server against a plain model."""

import random

import numpy as np
import pytest
from in_process import lend_servers

from ps_train.board import ControlSession
from ps_train.cluster import TaskId
from ps_train.compat import tf1
from ps_train.piece_queue import OVER, STALE, WAIT, PieceQueue, turn_nodes

pytestmark = pytest.mark.graph
N, HOLDERS = 7, 3
PS = "/job:ps/task:0/device:CPU:0"


class Model:
    """The docstring of `piece_queue` in Python."""

    def __init__(self, passes):
        self.passes, self.done = passes, [0] * N
        self.held, self.runs = [[] for _ in range(HOLDERS)], [0] * HOLDERS

    def begun(self):
        return [self.done[i] + sum(held.count(i) for held in self.held) for i in range(N)]

    def join(self, k, run):
        self.held[k], self.runs[k] = [], run

    def may_take(self, k, finished):
        """What a turn may be answered."""
        for i in finished:
            self.held[k].remove(i)
            self.done[i] += 1
        begun = self.begun()
        if self.passes < 0 or min(begun) < self.passes:
            return {i for i in range(N) if begun[i] == min(begun)}
        return {OVER if min(self.done) >= self.passes else WAIT}


class Queue:
    """A queue on a ps, a session of the chief's, and the control sessions of its holders."""

    def __init__(self, passes, seed):
        servers = lend_servers(num_ps=1, num_workers=1)
        with tf1.Graph().as_default() as graph:
            self.queue = PieceQueue("q", N, HOLDERS, PS)
            init = self.queue.position.initializer
        self.session = tf1.Session(servers.target(TaskId("worker", 0)), graph=graph)
        self.session.run(init)
        self.queue.reset(self.session, None)
        address, ps = servers.cluster.address(TaskId("ps", 0)), TaskId("ps", 0)
        self.holders = [
            ControlSession(address, ps, turn_nodes(self.queue, k, passes, seed)) for k in range(HOLDERS)
        ]

    def join(self, k, run):
        self.holders[k].run({"join_keys:0": [run]}, ["join:0"], timeout_secs=20)

    def turn(self, k, run, serial, wants=1, finished=()):
        keys = [run, serial, wants, *finished]
        return self.holders[k].run({"turn_keys:0": keys}, ["turn:0"], timeout_secs=20)[0]

    def done(self):
        return list(self.session.run(self.queue.position))

    def close(self):
        for session in (*self.holders, self.session):
            session.close()


@pytest.fixture
def make_queue():
    made = []

    def make(passes=-1, seed=None):
        made.append(Queue(passes, seed))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.mark.parametrize(("passes", "seed"), [(-1, 3), (2, 3), (4, None)])
def test_any_sequence_of_transitions_is_as_the_model_says(make_queue, passes, seed):
    rng, queue, model = random.Random(passes), make_queue(passes, seed), Model(passes)
    serials, answers, history = [0] * HOLDERS, [0] * HOLDERS, []
    for number in range(200):
        k = rng.randrange(HOLDERS)
        what = rng.choices(["turn", "again", "join", "leave"], [16, 1, 1, 1])[0]
        history.append((what, k))
        if what == "join":
            queue.join(k, number + 1)
            model.join(k, number + 1)
            serials[k] = 0
        elif what == "leave":
            queue.queue.remove(queue.session, k)
            model.join(k, 0)
        elif model.runs[k] == 0:
            assert queue.turn(k, number + 1, 1) == STALE, history
        elif what == "again" and serials[k]:
            assert queue.turn(k, model.runs[k], serials[k], finished=[0]) == answers[k], history
        elif what == "turn":
            held = model.held[k]
            finished = rng.sample(held, rng.randrange(len(held) + 1))
            serials[k] += 1
            answer = answers[k] = queue.turn(k, model.runs[k], serials[k], finished=finished)
            assert answer in model.may_take(k, finished), history
            if answer >= 0:
                model.held[k].append(answer)
        assert queue.done() == model.done, history
        assert max(model.begun()) <= max(min(model.begun()) + 2, passes), history


def test_each_pass_hands_out_all_in_an_order_of_its_own(make_queue):
    queue = make_queue(seed=5)
    queue.join(0, 1)
    taken = [queue.turn(0, 1, serial + 1) for serial in range(4 * N)]
    passes = [taken[i : i + N] for i in range(0, len(taken), N)]
    assert all(sorted(one) == list(range(N)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    other = make_queue(seed=6)
    other.join(0, 1)
    assert [other.turn(0, 1, serial + 1) for serial in range(N)] != passes[0]


def test_without_a_seed_the_order_is_that_of_the_numbers(make_queue):
    queue = make_queue()
    queue.join(2, 9)
    assert [queue.turn(2, 9, serial + 1) for serial in range(2 * N)] == [*range(N), *range(N)]


def test_nothing_but_what_is_done_is_in_a_checkpoint(make_queue, tmp_path):
    queue = make_queue(passes=1)
    queue.join(0, 1)
    taken = [queue.turn(0, 1, serial + 1) for serial in range(3)]
    assert queue.turn(0, 1, 4, wants=0, finished=taken[:2]) == WAIT
    with queue.session.graph.as_default():
        saver = tf1.train.Saver([queue.queue.position])
        path = saver.save(queue.session, str(tmp_path / "c"))
    new = make_queue(passes=1)
    reader = tf1.train.load_checkpoint(path)
    new.queue.load(new.session, reader)
    np.testing.assert_array_equal(new.done(), [1, 1, 0, 0, 0, 0, 0])
    new.join(1, 1)
    assert [new.turn(1, 1, serial + 1) for serial in range(6)] == [2, 3, 4, 5, 6, WAIT]
    assert new.turn(1, 1, 7, finished=[2, 3, 4, 5, 6]) == OVER


def test_a_checkpoint_of_other_pieces_is_no_position(make_queue, tmp_path, capfd):
    with tf1.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("q", [3], tf1.int64, tf1.zeros_initializer())
        session.run(variable.initializer)
        path = tf1.train.Saver().save(session, str(tmp_path / "c"))
    queue = make_queue()
    queue.queue.load(queue.session, tf1.train.load_checkpoint(path))
    assert queue.done() == [0] * N
