"""The ledger and the accumulators of a running job, read from outside while a worker waits for its peer."""

import contextlib
import threading
import time

import pytest
from in_process import DEADLINE_SECS, Job, lend_servers

from ps_train.board import BoardError
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.updates.accumulators import AccumulatorReader
from ps_train.updates.standing import LedgerReader, describe
from ps_train.updates.sync import SyncReplicasOptimizer

pytestmark = pytest.mark.graph
NAMES = ["worker:0", "worker:1"]


def build(k):
    w = tf1.get_variable("w", [3], initializer=tf1.zeros_initializer())
    table = tf1.get_variable("table", [5, 2], initializer=tf1.zeros_initializer())
    loss = tf.reduce_sum(w) + tf.reduce_sum(tf.gather(table, [k, 3]))
    optimizer = SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(0.1), 2, 2)
    return optimizer, optimizer.minimize(loss, tf1.train.get_global_step())


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=2)


@pytest.fixture
def job(servers, request):
    with contextlib.closing(Job(servers, request.node.name.replace("_", ""), build)) as job:
        yield job


@pytest.fixture
def reader(servers, job):
    ps = TaskId("ps", 0)
    described = [describe(optimizer.ledger) for optimizer in job.optimizers[0]]
    with contextlib.closing(LedgerReader(servers.cluster.address(ps), ps, described, NAMES)) as reader:
        yield reader


def wait_for(reader, condition):
    deadline = time.monotonic() + DEADLINE_SECS
    while True:
        (standing,) = reader.read(10)
        if condition(standing):
            return standing
        assert time.monotonic() < deadline, standing
        time.sleep(0.02)


def count_gradients(job, servers):
    found = []
    for ps in servers.cluster.ps_tasks:
        here = [a for a, device in job.optimizers[0][0].accumulators if f"task:{ps.index}" in device]
        with contextlib.closing(AccumulatorReader(servers.cluster.address(ps), ps, here)) as counter:
            found += counter.read(10)
    return found


def test_a_worker_waits_for_its_peer(job, servers, reader):
    for k in range(2):
        job.join(k)
    (before,) = reader.read(10)
    assert before.members == before.owing == tuple(NAMES) and before.needed == 2
    assert before.arrived == before.claimed == () and not before.is_rung
    assert count_gradients(job, servers) == [0, 0]

    waiting = threading.Thread(target=job.sessions[0].run, args=(job.built[0],), daemon=True)
    waiting.start()
    seen = wait_for(reader, lambda standing: standing.arrived)
    assert seen.arrived == seen.claimed == ("worker:0",) and seen.owing == ("worker:1",)
    assert seen.round == before.round and dict(seen.tokens) == {"worker:0": 0, "worker:1": 0}
    assert count_gradients(job, servers) == [1, 1]

    other = threading.Thread(target=job.sessions[1].run, args=(job.built[1],), daemon=True)
    other.start()
    full = wait_for(reader, lambda standing: standing.is_rung)
    assert full.owing == () and full.num_rung == 1 and not full.is_updating, "nobody runs the update"
    assert count_gradients(job, servers) == [2, 2]

    job.sessions[0].run(job.optimizers[0][0].update_op)
    for thread in (waiting, other):
        thread.join(DEADLINE_SECS)
        assert not thread.is_alive()
    (after,) = reader.read(10)
    assert after.round == before.round + 1 and after.owing == tuple(NAMES)
    assert job.sessions[0].run(tf1.train.get_global_step(job.sessions[0].graph)) == 1


def test_reading_needs_no_ledger_to_be_there(servers):
    """A job whose chief has not come yet."""
    described = [{"name": "none", "variable": "none", "container": "", "quorum": 2}]
    ps = TaskId("ps", 0)
    with contextlib.closing(LedgerReader(servers.cluster.address(ps), ps, described, NAMES)) as reader:
        with pytest.raises(BoardError, match="none"):
            reader.read(10)
