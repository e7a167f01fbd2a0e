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
Rejected: a socket server of ours in each ps (another port); queues and variables in the training session (not bounded).
"""

import functools
import hashlib
import json

from ps_train.compat import named_tensor_pb2, tf, tf1
from ps_train.errors import PsTrainError

CONTAINER = "pstrain"
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
)
_MESSAGES = {
    "CreateSessionRequest": [("graph_def", 1, "bytes"), ("config", 2, "bytes")],
    "CreateSessionResponse": [("session_handle", 1, "string")],
    "RunStepRequest": [
        ("session_handle", 1, "string"), ("feed", 2, "repeated bytes"), ("fetch", 3, "repeated string"),
        ("target", 4, "repeated string"),
    ],
    "RunStepResponse": [("tensor", 1, "repeated bytes")],
}  # fmt: skip


# What a session raises when a ps is gone.
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
CLOSED = "connection closed"
NOT_TENSORFLOW = "something answers that is not a TensorFlow server"


class BoardError(PsTrainError):
    """A board could not be reached or did not answer in time; the message is the reason, without the address."""


class ControlSession:
    """A session on one TensorFlow server, for a graph of its own, whose every call has a deadline.

    Args:
      address: `host:port` of the server.
      task: the server's task; the graph must place everything there.
      build: called once in a fresh graph under that task's device; returns nothing. Names are how `run` finds nodes.
    """

    def __init__(self, address, task, build):
        import grpc

        self._grpc = grpc
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._device = f"/job:{task.job}/task:{task.index}/device:CPU:0"
        self._build = build
        self._handle = None

    def run(self, feeds, fetches, targets=(), timeout_secs=2.0):
        """Runs a step; the fetched scalars or vectors as NumPy values.

        Args:
          feeds: tensor name -> value.
          fetches: names of tensors, as "read:0".
          targets: names of ops to run.
          timeout_secs: for the whole call, a session's creation included.

        Raises:
          BoardError: with the reason in words.
        """
        try:
            if self._handle is None:
                self._handle = self._create(timeout_secs)
            response = self._call("RunStep", timeout_secs, **self._step(feeds, fetches, targets))
        except self._grpc.RpcError as error:
            if error.code() in (self._grpc.StatusCode.ABORTED, self._grpc.StatusCode.NOT_FOUND):
                self._handle = None  # the server was restarted: a new session next time
            elif error.code() is self._grpc.StatusCode.UNAVAILABLE:
                self._handle = None
            raise BoardError(_reason(self._grpc, error, timeout_secs)) from None
        return [_from_named_tensor(raw) for raw in response.tensor]

    def close(self):
        """Closes the connection; the server drops the session when it ends."""
        self._channel.close()

    def _create(self, timeout_secs):
        with tf1.Graph().as_default() as graph, tf1.device(self._device):
            self._build()
        config = tf1.ConfigProto(device_filters=[self._device.rsplit("/", 1)[0]])
        response = self._call(
            "CreateSession", timeout_secs,
            graph_def=graph.as_graph_def().SerializeToString(), config=config.SerializeToString(),
        )  # fmt: skip
        return response.session_handle

    def _step(self, feeds, fetches, targets):
        return dict(
            session_handle=self._handle, feed=[_to_named_tensor(k, v) for k, v in feeds.items()],
            fetch=list(fetches), target=list(targets),
        )  # fmt: skip

    def _call(self, method, timeout_secs, **fields):
        stub = self._channel.unary_unary(
            f"/tensorflow.MasterService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_message_class(f"{method}Response").FromString,
        )
        return stub(_message_class(f"{method}Request")(**fields), timeout=timeout_secs)


class Board:
    """One ps's board, as a client.

    Attributes:
      replaced: key -> record that the last `exchange` found in the place of those that it wrote.
    """

    def __init__(self, address, task):
        self.address, self.task = address, task
        self.replaced = {}
        self._session = ControlSession(address, task, _build_board)

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
            {"keys:0": keys, "values:0": values}, ["all:0", "replaced:0"], timeout_secs=timeout_secs
        )
        board, self.replaced = (_by_key(joined) for joined in found)
        return board

    def write_text(self, key, text, timeout_secs=2.0):
        """Keeps a text that is too long for a record; BoardError as `exchange`."""
        feeds = {"text_keys:0": [_hash(key)], "text_values:0": [text.encode()]}
        self._session.run(feeds, [], ["write_texts"], timeout_secs=timeout_secs)

    def read_text(self, key, timeout_secs=2.0):
        """The text of `write_text`, or ""; BoardError as `exchange`."""
        return self._session.run({"text_keys:0": [_hash(key)]}, ["text:0"], timeout_secs=timeout_secs)[
            0
        ].decode()

    def close(self):
        """Closes the connection."""
        self._session.close()


def _build_board():
    table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.string, container=CONTAINER, shared_name="board"
    )
    keys = tf1.placeholder(tf.int64, [None], "keys")
    values = tf1.placeholder(tf.string, [None], "values")
    replaced = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=tf.constant(""))
    with tf1.control_dependencies([replaced]):
        written = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=keys, values=values)
    with tf1.control_dependencies([written]):
        exported = tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=tf.int64, Tvalues=tf.string)
    tf.identity(tf.strings.reduce_join(exported.values, separator="\n"), name="all")
    tf.identity(tf.strings.reduce_join(replaced, separator="\n"), name="replaced")
    _build_texts()


def _build_texts():
    table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.string, container=CONTAINER, shared_name="texts"
    )
    keys = tf1.placeholder(tf.int64, [None], "text_keys")
    values = tf1.placeholder(tf.string, [None], "text_values")
    tf.group(tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=keys, values=values), name="write_texts")
    found = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=tf.constant(""))
    tf.identity(tf.strings.reduce_join(found), name="text")


def _by_key(joined):
    records = [json.loads(line) for line in joined.decode().splitlines() if line]
    return {record["key"]: record for record in records}


def _hash(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True) or 1


def _reason(grpc, error, timeout_secs):
    """Why a call failed, in the words of someone who has to mend it."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer in {timeout_secs:g} s (host down, port filtered, process stopped, or not a TensorFlow server)"
    for part, reason in (
        ("Connection refused", "connection refused (nothing listens there)"),
        ("Domain name not found", "the host's name cannot be resolved"),
        ("DNS resolution failed", "the host's name cannot be resolved"),
        ("C-ares status", "the host's name cannot be resolved"),
        ("Name or service not known", "the host's name cannot be resolved"),
        ("HTTP/2", NOT_TENSORFLOW),
        ("http2", NOT_TENSORFLOW),
        ("No route to host", "no route to host"),
        ("Network is unreachable", "the network is unreachable"),
        ("timed out", "connection timed out"),
        ("FD Shutdown", "connection timed out"),
        ("Connection reset", CLOSED),
        ("Socket closed", CLOSED),
    ):
        if part in details:
            return reason
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NOT_TENSORFLOW
    if "Session" in details and "not found" in details:
        return "the server was restarted"
    return f"{error.code().name.lower()}: {details.splitlines()[0][:200] if details else ''}"


@functools.cache
def _message_class(name):
    """Class of a MasterService message with the fields in use; TensorFlow's wheel has no Python for master.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.Default()
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ps_train.{name}"))
    except KeyError:
        pass
    file = descriptor_pb2.FileDescriptorProto(
        name="ps_train/master.proto", package="ps_train", syntax="proto3"
    )
    types = {"bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES}
    types["string"] = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for field_name, number, kind in fields:
            label = 3 if kind.startswith("repeated") else 1
            message.field.add(name=field_name, number=number, label=label, type=types[kind.split()[-1]])
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ps_train.{name}"))


def _to_named_tensor(name, value):
    dtype = tf.int64 if name.split(":")[0].endswith("keys") else tf.string
    proto = tf.make_tensor_proto(value, dtype=dtype, shape=[len(value)])
    return named_tensor_pb2.NamedTensorProto(name=name, tensor=proto).SerializeToString()


def _from_named_tensor(raw):
    proto = named_tensor_pb2.NamedTensorProto.FromString(raw).tensor
    if proto.dtype != tf.string.as_datatype_enum or not proto.tensor_content:
        return tf.make_ndarray(proto)
    # A scalar string comes as its length (varint) and its bytes, which tf.make_ndarray does not read.
    content, shift, length, position = proto.tensor_content, 0, 0, 0
    while True:
        byte = content[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return content[position : position + length]
