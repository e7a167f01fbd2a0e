"""Synchronous updates are exact: three workers as threads, two ps, against a slow answer in NumPy."""

import random
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeGuard
from in_process import Job, lend_servers

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError, PeerLostError, StoppedError, UsageError
from ps_train.updates.rounds import MemberHook, UpdateLoop
from ps_train.updates.sync import SyncReplicasOptimizer

pytestmark = pytest.mark.graph
N = 3


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=N)


@pytest.fixture
def make_job(servers, request):
    """Makes a Job under the test's name; closes it."""
    jobs = []

    def make(build):
        jobs.append(Job(servers, re.sub("[^a-z0-9]", "", request.node.name.lower()), build))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def dawdle(k, rng):
    """Workers of unequal and changing speed; nothing below depends on it."""
    time.sleep(rng.random() * (0.001, 0.004, 0.012)[k])


# An independent answer. A gradient is (dense [3], rows [n], values [n, 2]).

ROWS, WIDTH = 7, 2
LR = 0.125  # this and the other constants are exact in float32, through which TensorFlow takes them


def gradient(k, step):
    """Worker k's gradient at a step: rows of its own and shared ones, some twice, now and then none at all."""
    rng = np.random.RandomState(100 * step + k)
    dense = rng.randn(3)
    count = (0, 1, 3, 5)[(step + k) % 4]
    rows = np.concatenate([rng.randint(0, 4, count), [4 + k] * (step % 3)]).astype(np.int64)
    if step % 5 == 4:
        rows = rows[:0]
    return dense, rows, rng.randn(len(rows), WIDTH)


def mean_gradient(workers, step):
    dense, table, touched = np.zeros(3), np.zeros([ROWS, WIDTH]), np.zeros(ROWS, bool)
    for k in workers:
        one, rows, values = gradient(k, step)
        dense += one / len(workers)
        for row, value in zip(rows, values, strict=True):
            table[row] += value / len(workers)
            touched[row] = True
    return dense, table, touched


class Sgd:
    RTOL = 1e-12
    make = staticmethod(lambda: tf1.train.GradientDescentOptimizer(LR))

    def step(self, w, g, touched):
        w -= LR * g


class Momentum:
    """Rows that no one touched stand still: TensorFlow's sparse rule."""

    RTOL = 1e-12
    make = staticmethod(lambda: tf1.train.MomentumOptimizer(LR, 0.5))

    def __init__(self):
        self.v = 0

    def step(self, w, g, touched):
        mask = np.reshape(touched, np.shape(touched) + (1,) * (w.ndim - np.ndim(touched)))
        self.v = np.where(mask, 0.5 * self.v + g, self.v)
        w -= LR * np.where(mask, self.v, 0)


class Adam:
    """Sparse and dense alike: TensorFlow decays the moments of all rows."""

    RTOL = 1e-5  # TensorFlow keeps the powers of the betas in float32
    B1, B2, EPSILON = 0.875, 0.96875, 2.0**-27
    make = staticmethod(lambda: tf1.train.AdamOptimizer(LR, Adam.B1, Adam.B2, Adam.EPSILON))

    def __init__(self):
        self.m, self.v, self.t = 0, 0, 0

    def step(self, w, g, touched):
        self.t += 1
        self.m = self.B1 * self.m + (1 - self.B1) * g
        self.v = self.B2 * self.v + (1 - self.B2) * g * g
        lr = LR * np.sqrt(1 - self.B2**self.t) / (1 - self.B1**self.t)
        w -= lr * self.m / (np.sqrt(self.v) + self.EPSILON)


def trajectory(rule, steps):
    """(dense, table) after each step."""
    dense, table = np.zeros(3), np.ones([ROWS, WIDTH])
    dense_rule, table_rule = rule(), rule()
    for step in range(steps):
        one, two, touched = mean_gradient(range(N), step)
        dense_rule.step(dense, one, np.ones([], bool))
        table_rule.step(table, two, touched)
        yield dense.copy(), table.copy()


def build_fed(optimizer, quorum=N):
    """A graph whose gradients are fed: (optimizer, (feeds, train_op, variables))."""
    dense = tf1.get_variable("dense", [3], tf.float64, tf1.zeros_initializer())
    table = tf1.get_variable("table", [ROWS, WIDTH], tf.float64, tf1.ones_initializer())
    feeds = (
        tf1.placeholder(tf.float64, [3]),
        tf1.placeholder(tf.int64, [None]),
        tf1.placeholder(tf.float64, [None, WIDTH]),
    )
    slices = tf.IndexedSlices(feeds[2], feeds[1], tf.constant([ROWS, WIDTH], tf.int64))
    sync = SyncReplicasOptimizer(optimizer, quorum, N)
    train_op = sync.apply_gradients([(feeds[0], dense), (slices, table)], tf1.train.get_global_step())
    reads = [dense.read_value(), table.read_value(), tf1.train.get_global_step().read_value()]
    return sync, (feeds, train_op, reads)


@pytest.mark.parametrize("rule", [Sgd, Momentum, Adam])
def test_each_update_is_the_mean_of_all_gradients(make_job, rule):
    steps = 15
    expected = list(trajectory(rule, steps))
    job = make_job(lambda k: build_fed(rule.make()))

    def work(k, session):
        rng = random.Random(k)
        feeds, train_op, reads = job.built[k]
        for step in range(steps):
            dawdle(k, rng)
            session.run(train_op, dict(zip(feeds, gradient(k, step), strict=True)))
            dense, table, global_step = session.run(reads)  # no one can be further than this
            assert global_step == step + 1
            np.testing.assert_allclose(dense, expected[step][0], rule.RTOL)
            np.testing.assert_allclose(table, expected[step][1], rule.RTOL)

    job.run_workers(work)
    state = job.optimizers[0][0].snapshot(job.sessions[0])
    assert not any(state.member) and not any(state.waiting), f"not everyone has left: {state}"
    assert job.tokens_left() == [0] * N


def test_partitioned_table_through_the_wrapped_optimizer(make_job):
    """compute_gradients of an embedding in three parts on two ps; Adam's slots are parted, too."""
    steps, targets = 8, np.random.RandomState(0).randn(N, 4)
    ids = np.random.RandomState(1).randint(0, 11, [steps, N, 4])

    def build(k):
        table = tf1.get_variable(
            "table", [11, 2], tf.float64, tf1.ones_initializer(), partitioner=tf1.fixed_size_partitioner(3)
        )
        batch = tf1.placeholder(tf.int64, [4])
        found = tf1.nn.embedding_lookup(table, batch, partition_strategy="div")
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(found, 1) - targets[k]))
        sync = SyncReplicasOptimizer(Adam.make(), N)
        op = sync.minimize(loss, tf1.train.get_global_step())
        return sync, (batch, op, tf.convert_to_tensor(table))

    job = make_job(build)

    def work(k, session):
        batch, op, _ = job.built[k]
        for step in range(steps):
            session.run(op, {batch: ids[step, k]})

    job.run_workers(work)
    table, rule = np.ones([11, 2]), Adam()
    for step in range(steps):
        total = np.zeros_like(table)
        for k in range(N):
            for i, row in enumerate(ids[step, k]):
                total[row] += 2 * (table[row].sum() - targets[k, i]) / 4 / N
        rule.step(table, total, None)
    np.testing.assert_allclose(job.sessions[0].run(job.built[0][2]), table, rtol=1e-5)


class Recorder(tf1.train.GradientDescentOptimizer):
    """Writes the gradient of update i, as it reaches the wrapped optimizer, into row i of `history`."""

    def __init__(self, history):
        super().__init__(0.0)
        self._history = history

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        ((gradient, _),) = grads_and_vars
        row = tf1.scatter_update(self._history, global_step.read_value(), gradient)
        with tf1.control_dependencies([row]):
            return super().apply_gradients(grads_and_vars, global_step, name)


@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_each_update_is_of_a_quorum_of_fresh_gradients(make_job, quorum):
    """A gradient holds whose it is and which step's variables it was computed from."""
    steps = 60

    def build(k):
        history = tf1.get_variable("history", [steps + N, N + 1], tf.float64, trainable=False)
        w = tf1.get_variable("w", [N + 1], tf.float64)
        global_step = tf1.train.get_global_step()
        version = tf.cast(global_step.read_value(), tf.float64)
        gradient = tf.concat([tf.one_hot(k, N, dtype=tf.float64), [version]], 0)
        sync = SyncReplicasOptimizer(Recorder(history), quorum, N)
        train_op = sync.apply_gradients([(gradient, w)], global_step)
        return sync, (train_op, global_step.read_value(), history.read_value())

    job = make_job(build)

    def work(k, session):
        rng = random.Random(k)
        train_op, global_step, _ = job.built[k]
        while session.run(global_step) < steps:
            dawdle(k, rng)
            session.run(train_op)

    job.run_workers(work)
    history = job.sessions[0].run(job.built[0][2])[:steps]
    shares = np.round(history[:, :N] * quorum, 6)
    assert np.isin(shares, [0, 1]).all(), f"someone counted twice:\n{shares}"
    assert (shares.sum(1) == quorum).all(), f"not {quorum} gradients in each:\n{shares}"
    np.testing.assert_allclose(history[:, N], np.arange(steps), err_msg="gradients of old variables")


def test_two_optimizers_in_one_graph(make_job):
    """As a GAN has them: two rounds that know nothing of one another, one global step."""
    steps = 10

    def build(k):
        updates, optimizers = [], []
        for name, counter in (("a", tf1.train.get_global_step()), ("b", None)):
            w = tf1.get_variable(name, [], tf.float64, tf1.zeros_initializer())
            if counter is None:
                counter = tf1.get_variable("turns", [], tf.int64, tf1.zeros_initializer(), trainable=False)
            sync = SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(1.0), N)
            updates.append(sync.apply_gradients([(tf.constant(2.0**k, tf.float64), w)], counter))
            optimizers.append(sync)
        names = [optimizer.ledger.name for optimizer in optimizers]
        assert names == ["ps_train_sync0", "ps_train_sync1"]
        return optimizers, (updates, [v.read_value() for v in tf1.global_variables()])

    job = make_job(build)

    def work(k, session):
        rng = random.Random(k)
        for step in range(steps):
            for update in job.built[k][0][: 2 if step % 2 else 1]:  # the second one at every other step only
                dawdle(k, rng)
                session.run(update)

    job.run_workers(work)
    step, a, b, turns = job.sessions[0].run(job.built[0][1])
    assert (step, turns) == (steps, steps // 2)
    np.testing.assert_allclose([a, b], [-7 / 3 * steps, -7 / 3 * (steps // 2)])


def test_a_worker_that_leaves_early_shrinks_the_quorum(make_job):
    job = make_job(lambda k: build_counter(k))
    lengths = [4, 9, 6]

    def work(k, session):
        for _ in range(lengths[k]):
            session.run(job.built[k][0])

    job.run_workers(work)
    w, global_step = job.sessions[0].run(job.built[0][1])
    means = [[2.0**k for k in range(N) if lengths[k] > step] for step in range(max(lengths))]
    assert global_step == max(lengths)
    np.testing.assert_allclose(w, -sum(np.mean(one) for one in means))


@pytest.mark.parametrize(
    ("guard", "stays"),
    [
        (FakeGuard(), False),
        (FakeGuard(StoppedError("stopped by SIGTERM", 143), stop_signal=15), True),
        (FakeGuard(PeerLostError("gone for 6 s: worker:1")), True),
    ],
)
def test_only_who_is_done_leaves_the_quorum(make_job, guard, stays):
    job = make_job(lambda k: build_counter(k))
    sync = job.optimizers[1][0]
    member = MemberHook(sync)
    member.guard = guard
    member.end(job.sessions[1])
    assert list(sync.snapshot(job.sessions[1]).member) == [1, int(stays), 1]


def build_counter(k, quorum=N):
    """Two variables, on a ps each; the gradient of worker k is 2**k."""
    w = tf1.get_variable("w", [], tf.float64, tf1.zeros_initializer())
    other = tf1.get_variable("other", [], tf.float64, tf1.zeros_initializer())
    gradient = tf.constant(2.0**k, tf.float64)
    sync = SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(1.0), quorum, N)
    step = tf1.train.get_global_step()
    train_op = sync.apply_gradients([(gradient, w), (gradient, other)], step)
    return sync, (train_op, [tf.stack([w, other]), step.read_value()])


def push_half(job, k):
    """Worker k claims its place and gets one of its two gradients through, then dies."""
    graph = job.sessions[k].graph
    pushes = [op for op in graph.get_operations() if op.type.endswith("AccumulatorApplyGradient")]
    assert len(pushes) == 2
    job.sessions[k].run(pushes[0])


def first_update(job):
    """The variables and the global step after it; a worker whose round is discarded does its step again."""

    def work(k, session):
        while session.run(job.built[k][1][1]) < 1:
            session.run(job.built[k][0])

    job.run_workers(work)
    return job.sessions[0].run(job.built[0][1])


def test_discard_round_leaves_nothing_behind(make_job):
    job = make_job(build_counter)
    (optimizer,), session = job.optimizers[0], job.sessions[0]
    for k in range(N):
        job.join(k)
    push_half(job, 1)
    assert sorted(session.run(optimizer._counts)) == [0, 1]
    job.sessions[1].run(job.optimizers[1][0].ledger.join)  # the dead worker's successor
    with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train: the round needs attention"):
        session.run(optimizer.update_op)
    before = optimizer.snapshot(session).round
    optimizer.discard_round(session)
    state = optimizer.snapshot(session)
    assert (state.round, state.updating) == (before + 1, 0)
    assert session.run(optimizer._counts) == [0, 0]
    assert job.sessions[1].run(job.optimizers[1][0].ledger.token) == state.round  # it was owed one
    w, global_step = first_update(job)
    assert global_step == 1
    np.testing.assert_allclose(w, [-7 / 3, -7 / 3])


def test_update_loop_discards_by_itself(make_job, caplog):
    job = make_job(build_counter)
    for k in range(N):
        job.join(k)
    push_half(job, 2)
    w, global_step = first_update(job)  # each joins anew, as after a restart
    assert global_step == 1
    np.testing.assert_allclose(w, [-7 / 3, -7 / 3])


def test_an_update_loop_that_was_stopped_discards_nothing_though_another_runs_by_now():
    stopping, discarded = threading.Event(), []

    def update():
        stopping.set()
        raise tf.errors.InvalidArgumentError(None, None, "ps_train: the round needs attention")

    optimizer = SimpleNamespace(update_op=None, discard_round=discarded.append)
    loop = UpdateLoop(optimizer, None, None, None)
    loop._run(SimpleNamespace(make_callable=lambda op: update), stopping)
    assert not discarded and not loop._stopping.is_set()


def test_backup_worker_lost_halfway_through_its_push(make_job):
    """It holds a place in the round until it is taken out; then the round is done again by those who are left."""
    job = make_job(lambda k: build_counter(k, quorum=2))
    for k in range(N):
        job.join(k)
    push_half(job, 2)
    job.optimizers[0][0].remove(job.sessions[0], 2)

    def work(k, session):
        while session.run(job.built[k][1][1]) < 3:
            session.run(job.built[k][0])

    job.run_workers(work, numbers=[0, 1])
    w, global_step = job.sessions[0].run(job.built[0][1])
    assert global_step == 3
    np.testing.assert_allclose(w, [-1.5 * 3] * 2)


def test_a_chief_that_gave_its_gradient_comes_back_in_the_middle_of_a_round(make_job):
    """It is owed a token that only an update gives, which is its own to run; of the second optimizer as of the first."""
    job = make_job(build_two)
    for k in range(N):
        job.join(k)
    for index in range(2):  # its gradients of both rounds are complete, and then it dies
        arrival = f"sync_replicas{index and '_1' or ''}/ps_train_sync{index}_arrive/"
        graph = job.sessions[0].graph
        last = [op for op in graph.get_operations() if op.name.startswith(arrival) and op.type == "Identity"][
            -1
        ]
        job.sessions[0].run(last)

    def work(k, session):
        for train_op in job.built[k][0]:
            session.run(train_op)

    job.run_workers(work)
    values = job.sessions[0].run(job.built[0][1])
    np.testing.assert_allclose(values, [-7 / 3 - 1, -7 / 3 - 1])


def build_two(k):
    """Two optimizers with a variable each; the gradient of worker k is 2**k."""
    made = []
    for name in "ab":
        w = tf1.get_variable(name, [], tf.float64, tf1.zeros_initializer())
        turns = tf1.get_variable(name + "_turns", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        sync = SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(1.0), N)
        made.append(
            (sync, sync.apply_gradients([(tf.constant(2.0**k, tf.float64), w)], turns), w.read_value())
        )
    optimizers, train_ops, reads = zip(*made, strict=True)
    return list(optimizers), (train_ops, list(reads))


def test_reset_drops_what_an_earlier_generation_left(make_job):
    job = make_job(build_counter)
    (optimizer,), session = job.optimizers[0], job.sessions[0]
    for k in range(N):
        job.join(k)
    push_half(job, 0)
    push_half(job, 1)
    old = optimizer.snapshot(session).round
    time.sleep(0.002)  # a generation's number is the time in milliseconds
    optimizer.reset(session)
    state = optimizer.snapshot(session)
    assert state.round > old and list(state.member) == [1, 1, 1]
    assert not state.waiting.any() and (state.claimed < state.round).all()
    assert session.run(optimizer._counts) == [0, 0]
    push_half(job, 1)  # of a worker that has not noticed: its stamp is an old round's
    assert session.run(optimizer._counts) == [0, 0]
    w, _ = first_update(job)
    np.testing.assert_allclose(w, [-7 / 3, -7 / 3])


def test_reset_with_some_members(make_job):
    """A chief that returns counts only those that have not left: here it alone."""
    job = make_job(build_counter)
    job.optimizers[0][0].reset(job.sessions[0], members=[1, 0, 0])
    job.run_workers(lambda k, session: session.run(job.built[k][0]), numbers=[0])
    np.testing.assert_allclose(job.sessions[0].run(job.built[0][1])[0], [-1, -1])


def test_an_update_cut_off_halfway_is_known(make_job):
    job = make_job(build_counter)
    (optimizer,), session = job.optimizers[0], job.sessions[0]
    assert not optimizer.is_torn(session)
    session.run(optimizer.ledger.freeze)
    assert optimizer.is_torn(session)
    optimizer.reset(session)
    assert not optimizer.is_torn(session)


# Mistakes.


@pytest.fixture
def graph():
    with tf1.Graph().as_default() as graph:
        yield graph


def sgd():
    return tf1.train.GradientDescentOptimizer(0.1)


def test_more_gradients_than_workers():
    with pytest.raises(UsageError) as raised:
        SyncReplicasOptimizer(sgd(), 4, total_num_replicas=3)
    assert str(raised.value) == (
        "replicas_to_aggregate=4 is not between 1 and the number of workers, 3: a worker gives one gradient to an "
        "update. Lower it, or add workers."
    )


def test_no_global_step(graph):
    w = tf1.get_variable("w", [])
    with pytest.raises(ModelError) as raised:
        SyncReplicasOptimizer(sgd(), 1).minimize(w * w)
    assert str(raised.value) == (
        "SyncReplicasOptimizer needs a global step: pass global_step=tf1.train.get_global_step()."
    )


def test_no_gradient(graph):
    w, step = tf1.get_variable("w", []), tf1.train.get_or_create_global_step()
    with pytest.raises(ModelError) as raised:
        SyncReplicasOptimizer(sgd(), 1).apply_gradients([(None, w)], step)
    assert str(raised.value) == (
        "No variable gets a gradient: the loss does not depend on any trainable variable. Check model_fn."
    )


def test_no_task(graph):
    w, step = tf1.get_variable("w", []), tf1.train.get_or_create_global_step()
    with pytest.raises(UsageError) as raised:
        SyncReplicasOptimizer(sgd(), 1).minimize(w * w, step)
    assert str(raised.value) == (
        "This process has not said which task of a cluster it is. Make a ps_train.Server(cluster, job_name, "
        "task_index) before the graph."
    )


def test_hook_without_gradients():
    with pytest.raises(ModelError) as raised:
        SyncReplicasOptimizer(sgd(), 1).make_session_run_hook(True).begin()
    assert str(raised.value) == (
        "SyncReplicasOptimizer has no gradients yet: call apply_gradients() or minimize() first."
    )


def test_queue_runner_of_a_legacy_script():
    with pytest.raises(UsageError) as raised:
        SyncReplicasOptimizer(sgd(), 1).get_chief_queue_runner()
    assert str(raised.value) == (
        "get_chief_queue_runner: the update has its own thread. Delete this call and add "
        "optimizer.make_session_run_hook(is_chief) to the session's hooks."
    )


def test_tensorflow_signature_is_kept(graph):
    optimizer = SyncReplicasOptimizer(sgd(), replicas_to_aggregate=2, total_num_replicas=3, name="own")
    assert isinstance(optimizer, tf1.train.SyncReplicasOptimizer)
    assert optimizer.get_init_tokens_op(num_tokens=2).type == "NoOp"
    assert isinstance(optimizer.make_session_run_hook(is_chief=False, num_tokens=0), MemberHook)
