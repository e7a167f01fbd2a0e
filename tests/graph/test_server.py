"""How a task's server is set up, without starting one."""

from types import SimpleNamespace

import pytest

from ps_train import library, logs, server
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf1
from ps_train.errors import UsageError

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


@pytest.fixture
def make_script_s(monkeypatch):
    """Makes a ps's Server as a script does, and gives the TaskContext that its task is started with."""

    def start_task(context, *_, **__):
        return SimpleNamespace(context=context, target="grpc://localhost:1")

    monkeypatch.setattr(library, "start_task", start_task)
    monkeypatch.setattr(library, "_end_with_status_of_errors", lambda: None)
    monkeypatch.setattr(library, "_servers", {})
    monkeypatch.setattr(logs, "start", lambda task: None)

    def make(**options):
        return library.Server(ON_ONE_HOST, "ps", 0, **options).runtime.context

    return make


@pytest.mark.parametrize(
    ("given", "number"), [({}, 131072)] + [({"pack_bytes": n}, int(n)) for n in (0, 4096, "4096")]
)
def test_a_script_s_server_takes_sizes_as_the_flag_does(make_script_s, given, number):
    assert make_script_s(**given).pack_bytes == number
    assert make_script_s(pack_bytes="auto").pack_bytes == 131072


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"pack_bytes": "4k"}, "pack_bytes=4k is not a size. Expected a whole number of bytes, or auto."),
        ({"pack_bytes": -1}, "pack_bytes=-1 is not a size. Expected a whole number of bytes, or auto."),
        ({"pack_bytes": None}, "pack_bytes=None is not a size. Expected a whole number of bytes, or auto."),
        ({"stall_secs": 0}, "stall_secs=0 is not a time to wait. Expected a number of seconds above 0."),
        (
            {"stall_secs": "30"},
            "stall_secs='30' is not a time to wait. Expected a number of seconds above 0.",
        ),
        (
            {"stall_secs": None},
            "stall_secs=None is not a time to wait. Expected a number of seconds above 0.",
        ),
        (
            {"peer_timeout_secs": -1, "pack_bytes": 0.5},
            "peer_timeout_secs=-1 is not a time to wait. Expected a number of seconds above 0.\n"
            "pack_bytes=0.5 is not a size. Expected a whole number of bytes, or auto.",
        ),
    ],
)
def test_a_script_s_server_refuses_what_the_flags_do(make_script_s, given, problem):
    with pytest.raises(UsageError) as error:
        make_script_s(**given)
    assert str(error.value) == problem
