"""The board: what the tasks tell one another, kept on every ps, read and written with a deadline.

    board = Board("10.0.0.1:2222", TaskId("ps", 0))
    board.exchange([{"key": "worker:1", "state": "training", "step": 12}], timeout_secs=2)
    # {'ps:0': {...}, 'worker:0': {...}, 'worker:1': {...}}

Each ps holds a table of small JSON records under a fixed name. A task writes only records whose key is its own; each
write is a beat, and the reply is the whole table. So one call is heartbeat, probe and news at once, and what the board of
one ps has lost in a restart is written again by the next beat.

The table is an ordinary TensorFlow resource on the ps and the calls are TensorFlow's own (MasterService.CreateSession and
RunStep), but made with grpcio and not through `tf.Session`: a session's calls cannot be given a deadline that fires while
the ps is frozen, and closing it hangs. The same port serves training and the board, so a firewall needs no second rule.
TensorFlow need not be imported for it: the graphs are written by hand (`messages`).
Rejected: a socket server of ours in each ps (another port); queues and variables in the training session (not bounded).
"""

import contextlib
import hashlib
import json
import socket
import time

from ps_train.addresses import is_ip, split_address
from ps_train.errors import PsTrainError
from ps_train.messages import (
    DType,
    Node,
    Shape,
    constant,
    graph_def,
    message,
    named_tensor,
    parse,
    read_tensor,
)

CONTAINER = "pstrain"
CLOSE_SECS = 1.0
PROBE_SECS = 0.3
MAX_TIMEOUTS = 2  # in a row, after which a connection is given up
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
    # A name may lead to another host at any time, as a pod's does.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
)

CLOSED = "connection closed"
UNRESOLVED = "the host's name cannot be resolved"
REFUSED = "connection refused (nothing listens there)"
NO_ANSWER = "no answer"
TIMED_OUT = "connection timed out"
NOT_TENSORFLOW = "something answers that is not a TensorFlow server"


class BoardError(PsTrainError):
    """A board could not be reached or did not answer in time; the message is the reason, without the address."""


class ControlSession:
    """A session on one TensorFlow server, for a graph of its own, whose every call has a deadline.

    A connection that is silent for MAX_TIMEOUTS calls is replaced. TCP would send again only after as long as the network
    has been away already, so that who was cut off for half a minute would stay silent for another half.

    Args:
      address: `host:port` of the server.
      task: the server's task, where all of the graph is placed.
      nodes: `messages.Node`s or NodeDefs. Their names are how `run` finds them.
    """

    def __init__(self, address, task, nodes):
        import grpc

        self._grpc, self._address = grpc, address
        self._channel = self._connect()
        self._num_timeouts = self._num_refused = 0
        self._device = f"/job:{task.job}/task:{task.index}/device:CPU:0"
        self._nodes = nodes
        self._handle = None

    def run(self, feeds, fetches, targets=(), timeout_secs=2.0):
        """Runs a step; the fetched scalars (int or bytes) or vectors (lists of them).

        Args:
          feeds: tensor name -> vector, as a list of int or bytes.
          fetches: names of tensors, as "read:0".
          targets: names of ops to run.
          timeout_secs: for the whole call, a session's creation included.

        Raises:
          BoardError: with the reason in words.
        """
        deadline = time.monotonic() + timeout_secs
        try:
            if self._handle is None:
                self._handle = self._create(timeout_secs)
            left = max(deadline - time.monotonic(), 0.0)
            response = self._call("RunStep", left, **self._step(feeds, fetches, targets))
        except self._grpc.RpcError as error:
            if error.code() in (self._grpc.StatusCode.ABORTED, self._grpc.StatusCode.NOT_FOUND):
                self._handle = None  # the server was restarted: a new session next time
            elif error.code() is self._grpc.StatusCode.UNAVAILABLE:
                self._handle = None
            self._note_timeout(error.code() is self._grpc.StatusCode.DEADLINE_EXCEEDED)
            reason = _reason(self._grpc, error, timeout_secs)
            self._num_refused = self._num_refused + 1 if reason == REFUSED else 0
            if self._num_refused > 1 and _listens(self._address):  # not one that has just come up
                reason = NOT_TENSORFLOW
            raise BoardError(reason) from None
        self._num_timeouts = self._num_refused = 0
        found = {tensor.name: tensor for tensor in response.tensor}  # in an order of the server's own
        return [read_tensor(found[name]) for name in fetches]

    def close(self):
        """Ends the session on the server, if that answers within CLOSE_SECS, and the connection."""
        if self._handle is not None:
            with contextlib.suppress(self._grpc.RpcError, BoardError):
                self._call("CloseSession", CLOSE_SECS, session_handle=self._handle)
            self._handle = None
        self._channel.close()

    def _connect(self):
        return self._grpc.insecure_channel(self._address, options=_CHANNEL_OPTIONS)

    def _note_timeout(self, is_timeout):
        self._num_timeouts = self._num_timeouts + 1 if is_timeout else 0
        if self._num_timeouts >= MAX_TIMEOUTS:
            self._num_timeouts = 0
            silent, self._channel = self._channel, self._connect()
            silent.close()  # a call of another thread is on the same dead connection

    def _create(self, timeout_secs):
        config = message("ConfigProto", device_filters=[self._device.rsplit("/", 1)[0]])
        graph = graph_def(self._nodes, self._device)
        return self._call("CreateSession", timeout_secs, graph_def=graph, config=config).session_handle

    def _step(self, feeds, fetches, targets):
        return dict(
            session_handle=self._handle, feed=[_feed(name, values) for name, values in feeds.items()],
            fetch=list(fetches), target=list(targets),
        )  # fmt: skip

    def _call(self, method, timeout_secs, **fields):
        stub = self._channel.unary_unary(
            f"/tensorflow.MasterService/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=lambda raw: parse(f"{method}Response", raw),
        )
        request = message(f"{method}Request", **fields)
        try:
            return stub(request, timeout=timeout_secs)
        except ValueError:  # the channel was replaced at this moment
            raise BoardError(CLOSED) from None


def _feed(name, values):
    return named_tensor(name, values, DType.INT64 if name.split(":")[0].endswith("keys") else DType.STRING)


class Board:
    """One ps's board, as a client.

    Attributes:
      replaced: key -> record that the last `exchange` found in the place of those that it wrote.
    """

    def __init__(self, address, task):
        self.address, self.task = address, task
        self.replaced = {}
        self._session = ControlSession(address, task, _board_nodes())

    def exchange(self, records, timeout_secs=2.0):
        """Writes records and reads the whole board.

        Args:
          records: dicts with a "key" each, JSON-serializable; none to only read.
          timeout_secs: bound of the call.

        Returns:
          dict: key -> record.

        Raises:
          BoardError: no answer in time, nothing there, or not a TensorFlow server.
        """
        keys = [_hash(record["key"]) for record in records]
        values = [json.dumps(record).encode() for record in records]
        found = self._session.run(
            {"keys:0": keys, "values:0": values}, ["board:1", "replaced:0"], timeout_secs=timeout_secs
        )
        board, self.replaced = (_by_key(values) for values in found)
        return board

    def write_text(self, key, text, timeout_secs=2.0):
        """Keeps a text that is too long for a record; BoardError as `exchange`."""
        feeds = {"text_keys:0": [_hash(key)], "text_values:0": [text.encode()]}
        self._session.run(feeds, [], ["write_texts"], timeout_secs=timeout_secs)

    def read_text(self, key, timeout_secs=2.0):
        """The text of `write_text`, or ""; BoardError as `exchange`."""
        return self.read_texts([key], timeout_secs)[0]

    def read_texts(self, keys, timeout_secs=2.0):
        """The texts of some keys, in their order."""
        hashes = [_hash(key) for key in keys]
        (found,) = self._session.run({"text_keys:0": hashes}, ["text:0"], timeout_secs=timeout_secs)
        return [text.decode() for text in found]

    def close(self):
        """Closes the connection."""
        self._session.close()


def newest(boards):
    """Of what several boards, or one at several times, have said, the newest record of each key.

    >>> newest([{"worker:0": {"beat": 7, "step": 3}}, {"worker:0": {"beat": 5, "step": 2}, "job": {}}])
    {'worker:0': {'beat': 7, 'step': 3}, 'job': {}}
    """
    found: dict[str, dict] = {}
    for board in boards:
        for key, record in board.items():
            if record.get("beat", 0) > found.get(key, {}).get("beat", -1):
                found[key] = record
    return found


def _board_nodes():
    """Writes come after the read of what they replace, and before that of the whole board, which is `board:1`."""
    return [
        *_table_nodes("table", "board"),
        *_placeholders("keys", "values"),
        _node("replaced", "LookupTableFindV2", ["table", "keys", "nothing"], Tin=DType.INT64, Tout=DType.STRING),
        _node(
            "written", "LookupTableInsertV2", ["table", "keys", "values", "^replaced"], Tin=DType.INT64, Tout=DType.STRING
        ),
        _node("board", "LookupTableExportV2", ["table", "^written"], Tkeys=DType.INT64, Tvalues=DType.STRING),
        *_table_nodes("text_table", "texts"),
        *_placeholders("text_keys", "text_values"),
        _node(
            "write_texts", "LookupTableInsertV2", ["text_table", "text_keys", "text_values"],
            Tin=DType.INT64, Tout=DType.STRING,
        ),
        _node(
            "text", "LookupTableFindV2", ["text_table", "text_keys", "nothing"], Tin=DType.INT64, Tout=DType.STRING
        ),
        constant(b"")._replace(name="nothing"),
    ]  # fmt: skip


def _table_nodes(name, shared_name):
    yield _node(
        name, "MutableHashTableV2", key_dtype=DType.INT64, value_dtype=DType.STRING, container=CONTAINER.encode(),
        shared_name=shared_name.encode(), use_node_name_sharing=False,
    )  # fmt: skip


def _placeholders(keys, values):
    for name, dtype in ((keys, DType.INT64), (values, DType.STRING)):
        yield _node(name, "Placeholder", dtype=dtype, shape=Shape([None]))


def _node(name, op, inputs=(), **attrs):
    return Node(name, op, inputs, attrs)


def _by_key(values):
    records = [json.loads(value) for value in values if value]
    return {record["key"]: record for record in records}


def _hash(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True) or 1


def _listens(address):
    """Whether one of the addresses that a host's name stands for takes connections, though gRPC names another's refusal."""
    host, port = split_address(address)
    if is_ip(host):
        return False
    with contextlib.suppress(OSError), socket.create_connection((host, port), PROBE_SECS):
        return True
    return False


def _reason(grpc, error, timeout_secs):
    """Why a call failed, in the words of someone who has to mend it."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{NO_ANSWER} in {timeout_secs:g} s (host down, port filtered, process stopped, or not a TensorFlow server)"
    for part, reason in (
        ("Connection refused", REFUSED),
        ("errors resolving", UNRESOLVED),
        ("Domain name not found", UNRESOLVED),
        ("DNS resolution failed", UNRESOLVED),
        ("C-ares status", UNRESOLVED),
        ("Name or service not known", UNRESOLVED),
        ("HTTP/2", NOT_TENSORFLOW),
        ("http2", NOT_TENSORFLOW),
        ("No route to host", "no route to host"),
        ("Network is unreachable", "the network is unreachable"),
        ("timed out", TIMED_OUT),
        ("FD Shutdown", TIMED_OUT),
        ("tcp handshaker shutdown", TIMED_OUT),
        ("Connection reset", CLOSED),
        ("Socket closed", CLOSED),
    ):
        if part in details:
            return reason
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NOT_TENSORFLOW
    if "Session" in details and "not found" in details:
        return "the server was restarted"
    lines = [line for line in details.splitlines() if not line.startswith("From /job:")]
    return f"{error.code().name.lower()}: {lines[0][:200] if lines else ''}"
