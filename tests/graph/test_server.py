"""How a task's server is set up, without starting one."""

import pytest

from ps_train import server
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf1

pytestmark = pytest.mark.graph
WORKER = TaskId("worker", 0)
ON_ONE_HOST = Cluster.from_hosts("localhost:1", "localhost:2,localhost:3")
APART = Cluster.from_hosts("ps0:1", "w0:1,w1:1")
COLOCATED = Cluster.from_hosts(worker="w0:1,w0:2,w1:1", is_colocated=True)


@pytest.mark.parametrize(
    ("cluster", "processors", "tunes_process", "spins"),
    [
        (ON_ONE_HOST, 2, True, False),
        (ON_ONE_HOST, 3, True, False),
        (ON_ONE_HOST, 4, True, True),
        (ON_ONE_HOST, 2, False, True),
        (APART, 2, True, True),
        (COLOCATED, 2, True, False),
        (COLOCATED, 3, True, True),
    ],
)
def test_threads_spin_where_there_are_processors_for_all(
    monkeypatch, cluster, processors, tunes_process, spins
):
    monkeypatch.setattr(server, "num_cores", lambda: processors)
    config = server._server_config(cluster, WORKER, None, tunes_process)
    assert config.experimental.disable_thread_spinning is not spins


def test_the_user_s_config_is_kept_and_not_written_to():
    mine = tf1.ConfigProto(inter_op_parallelism_threads=3)
    for cluster in (ON_ONE_HOST, COLOCATED):
        config = server._server_config(cluster, WORKER, mine, tunes_process=True)
        assert config.inter_op_parallelism_threads == 3
    assert mine == tf1.ConfigProto(inter_op_parallelism_threads=3)
