"""The board against a TensorFlow server in a process of its own, and against all that may stand at its address instead."""

import contextlib
import http.server
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

import pytest
from in_process import free_addresses

from ps_train.board import Board, BoardError, ControlSession
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.messages import DType, Node, constant
from ps_train.server import session_config
from ps_train.updates.standing import queue_node

pytestmark = pytest.mark.graph
PS = TaskId("ps", 0)
TEXT = 'ünïcode "quoted" \\ back\nslash 🙂'


def serve(addresses, index, ready):
    os.environ["GRPC_FAIL_FAST"] = "true"
    cluster = Cluster.from_hosts(ps=addresses, worker="localhost:1")
    server = tf1.train.Server(
        tf.train.ClusterSpec({"ps": addresses}), job_name="ps", task_index=index,
        config=session_config(cluster, TaskId("ps", index)),
    )  # fmt: skip
    ready.set()
    server.join()


@contextlib.contextmanager
def server_at(*addresses, index=0):
    """A TensorFlow server in a child, one of the ps at `addresses`, which gets SIGKILL at the end."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=serve, args=(list(addresses), index, ready), daemon=True)
    process.start()
    try:
        assert ready.wait(60), "the server did not start"
        yield process
    finally:
        process.kill()
        process.join(10)


@pytest.fixture(scope="module")
def server():
    """(address, process) of a server."""
    (address,) = free_addresses(1)
    with server_at(address) as process:
        yield address, process


@pytest.fixture
def address(server):
    return server[0]


@pytest.fixture
def board(address):
    board = Board(address, PS)
    yield board
    board.close()


def reason_of(board, timeout_secs=2.0):
    started = time.monotonic()
    with pytest.raises(BoardError) as raised:
        board.exchange([], timeout_secs)
    assert time.monotonic() - started < timeout_secs + 1
    return str(raised.value)


def test_records_of_all_tasks_are_seen_by_all(address, board):
    other = Board(address, PS)
    try:
        board.exchange([{"key": "worker:0", "step": 1}, {"key": "job", "is_over": False}])
        seen = other.exchange([{"key": "worker:1", "loss": 0.5}])
        assert {"worker:0", "worker:1", "job"} <= set(seen)
        assert seen["worker:0"] == {"key": "worker:0", "step": 1}
        board.exchange([{"key": "worker:0", "step": 2}])
        assert other.exchange([])["worker:0"]["step"] == 2
    finally:
        other.close()


def test_any_text_comes_back_as_it_was(board):
    assert board.exchange([{"key": "text", "reason": TEXT}])["text"]["reason"] == TEXT


def test_what_is_overwritten_is_told(board):
    board.exchange([{"key": "mine", "n": 1}])
    assert board.replaced == {}
    board.exchange([{"key": "mine", "n": 2}, {"key": "new", "n": 1}])
    assert board.replaced == {"mine": {"key": "mine", "n": 1}}
    board.exchange([])
    assert board.replaced == {}


def test_long_texts(board):
    assert board.read_text("model") == ""
    board.write_text("model", TEXT * 9000)
    assert board.read_text("model") == TEXT * 9000
    board.write_text("b", "short")
    assert board.read_texts(["b", "none", "model"]) == ["short", "", TEXT * 9000]
    assert "model" not in board.exchange([])


def test_long_board(board):
    """More bytes than a length in one byte of a varint can tell, and more records than any cluster has."""
    records = [{"key": f"long:{i}", "value": "x" * 500} for i in range(300)]
    seen = board.exchange(records)
    assert all(seen[record["key"]] == record for record in records)


def test_one_session_serves_many_calls(board):
    board.exchange([])
    handle = board._session._handle
    board.exchange([])
    assert handle and board._session._handle == handle


def test_from_several_threads(address):
    """Every task writes its own record only, so that none is lost, whoever writes at the same time."""
    errors = []

    def beat(k):
        board = Board(address, PS)
        try:
            for i in range(20):
                seen = board.exchange([{"key": f"thread:{k}", "beat": i}])
                assert seen[f"thread:{k}"]["beat"] == i
        except Exception as error:
            errors.append(error)
        finally:
            board.close()

    threads = [threading.Thread(target=beat, args=(k,), daemon=True) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)


def test_control_session_runs_targets(address):
    """As a worker's release uses it: a queue of the ps under its shared name."""

    nodes = [
        queue_node("queue", "test_release"),
        constant(-1)._replace(name="value"),
        Node(
            "release", "QueueEnqueueV2", ["queue", "value"], {"Tcomponents": [DType.INT64], "timeout_ms": -1}
        ),
        Node("size", "QueueSizeV2", ["queue"]),
    ]
    control = ControlSession(address, PS, nodes)
    try:
        control.run({}, [], ["release"])
        control.run({}, [], ["release"])
        assert control.run({}, ["size:0"]) == [2]
    finally:
        control.close()


def test_what_is_fetched_comes_in_the_order_of_the_request(address):
    nodes = [constant(number)._replace(name=f"n{number}") for number in range(20)]
    control = ControlSession(address, PS, nodes)
    try:
        for numbers in (range(20), range(19, -1, -1)):
            assert control.run({}, [f"n{number}:0" for number in numbers]) == list(numbers)
    finally:
        control.close()


def test_a_session_ends_with_its_client(address):
    """Or the sessions of those that merely look on would pile up on the ps."""
    control = ControlSession(address, PS, [constant(1)._replace(name="one")])
    control.run({}, ["one:0"])
    other = ControlSession(address, PS, [])
    other._handle = control._handle
    control.close()
    with contextlib.closing(other), pytest.raises(BoardError, match="the server was restarted"):
        other.run({}, ["one:0"])


def answer_after_restart(board):
    """The first answer, and the reasons that came before it; bounded."""
    deadline, reasons = time.monotonic() + 20, []
    while True:
        try:
            return board.exchange([]), reasons
        except BoardError as error:
            reasons.append(str(error))
            assert time.monotonic() < deadline, reasons
            time.sleep(0.05)


def test_restart_of_the_server():
    """Noticed by one client while it is away, and by the other only when its session is not known any more."""
    (address,) = free_addresses(1)
    board, idle = Board(address, PS), Board(address, PS)
    try:
        with server_at(address):
            board.exchange([{"key": "worker:0"}])
            assert idle.exchange([]) == {"worker:0": {"key": "worker:0"}}
        assert reason_of(board) in ("connection refused (nothing listens there)", "connection closed")
        with server_at(address):
            answer, reasons = answer_after_restart(board)
            assert answer == {}, "a new server's board is empty"
            assert set(reasons) <= {"connection refused (nothing listens there)"}
            answer, reasons = answer_after_restart(idle)
            assert answer == {}
            assert set(reasons) <= {"the server was restarted", "connection closed", "connection reset"}
            board.exchange([{"key": "worker:1"}])
            assert set(idle.exchange([])) == {"worker:1"}
    finally:
        board.close()
        idle.close()


def test_frozen_server(server, board):
    address, process = server
    board.exchange([])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        assert reason_of(board, 0.7) == (
            "no answer in 0.7 s (host down, port filtered, process stopped, or not a TensorFlow server)"
        )
    finally:
        os.kill(process.pid, signal.SIGCONT)
    board.exchange([], 10)


def test_a_silent_connection_is_replaced(server, board):
    """TCP would be as long again in coming back as the network was away."""
    address, process = server
    board.exchange([{"key": "worker:0"}])
    session = board._session
    first, handle = session._channel, session._handle
    try:
        os.kill(process.pid, signal.SIGSTOP)
        reason_of(board, 0.3)
        assert session._channel is first
        reason_of(board, 0.3)
        assert session._channel is not first
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert set(board.exchange([], 10)) >= {"worker:0"}
    assert session._handle == handle, "the server keeps the session"
    session._channel.close()
    assert reason_of(board) == "connection closed"


def test_another_ps_is_frozen():
    """Whoever comes now, such as a worker that returns, is answered by those that are not."""
    addresses = free_addresses(2)
    with server_at(*addresses), server_at(*addresses, index=1) as frozen:
        with board_at(addresses[0]) as board:
            board.exchange([{"key": "worker:0"}], 10)
        os.kill(frozen.pid, signal.SIGSTOP)
        with board_at(addresses[0]) as board:
            assert set(board.exchange([], 10)) == {"worker:0"}
        with board_at(addresses[1]) as board:
            assert "no answer in 0.5 s" in reason_of(board, 0.5)


@contextlib.contextmanager
def board_at(address):
    board = Board(address, PS)
    try:
        yield board
    finally:
        board.close()


def test_nothing_listens():
    (address,) = free_addresses(1)
    with board_at(address) as board:
        assert reason_of(board) == "connection refused (nothing listens there)"


def test_name_cannot_be_resolved():
    with board_at("no-such-host.invalid:2222") as board:
        reason = reason_of(board, 10.0)
        assert reason == "the host's name cannot be resolved"


def test_silent_listener():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with board_at(f"127.0.0.1:{silent.getsockname()[1]}") as board:
            assert reason_of(board, 0.5) == (
                "no answer in 0.5 s (host down, port filtered, process stopped, or not a TensorFlow server)"
            )


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue of connections drops packets there")
def test_packets_vanish():
    """As behind a firewall that drops them, or on a host that is down."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with board_at(f"127.0.0.1:{full.getsockname()[1]}") as board:
            assert reason_of(board, 5.0) == "connection timed out"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # which is ::1, too, where nothing listens
def test_web_server(host):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with board_at(f"{host}:{server.server_port}") as board:
            assert reason_of(board, 5.0) == "something answers that is not a TensorFlow server"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_other_grpc_server():
    import concurrent.futures

    import grpc

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with board_at(f"127.0.0.1:{port}") as board:
            assert reason_of(board) == "something answers that is not a TensorFlow server"
    finally:
        server.stop(None).wait(10)


def test_another_task_at_the_address(address):
    """The graph is pinned to the task that was meant, which the server there does not know."""
    with contextlib.closing(Board(address, TaskId("ps", 3))) as board:
        assert "/job:ps/task:3" in reason_of(board)


def test_proxies_are_not_used(address, monkeypatch):
    (dead,) = free_addresses(1)
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{dead}")
    with board_at(address) as board:
        board.exchange([])
