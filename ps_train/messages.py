"""TensorFlow's messages without TensorFlow: graphs, tensors and the calls of a session, as far as `board` needs them.

    nodes = [Node("queue", "FIFOQueueV2", attrs={"component_types": [DType.INT64], ...})]
    request = message("CreateSessionRequest", graph_def=graph_def(nodes, "/job:ps/task:0/device:CPU:0"))
    request.SerializeToString()

TensorFlow takes seconds to import, and its wheel has no Python for some of these messages. What is here takes a tenth of a
second, so that a running job can be looked at once a second. Field numbers are those of tensorflow/core/protobuf/master.proto,
config.proto and named_tensor.proto and of tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape}.proto.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_MESSAGES = {
    "CreateSessionRequest": "graph_def 1 GraphDef, config 2 ConfigProto",
    "CreateSessionResponse": "session_handle 1 string",
    "CloseSessionRequest": "session_handle 1 string",
    "CloseSessionResponse": "",
    "RunStepRequest": (
        "session_handle 1 string, feed 2 repeated NamedTensor, fetch 3 repeated string, target 4 repeated string"
    ),
    "RunStepResponse": "tensor 1 repeated NamedTensor",
    "ConfigProto": "device_filters 4 repeated string",
    "GraphDef": "node 1 repeated NodeDef, versions 4 VersionDef",
    "VersionDef": "producer 1 int32",
    "NodeDef": "name 1 string, op 2 string, input 3 repeated string, device 4 string, attr 5 repeated AttrEntry",
    "AttrEntry": "key 1 string, value 2 AttrValue",
    "AttrValue": (
        "list 1 AttrList, s 2 bytes, i 3 int64, b 5 bool, type 6 int32, shape 7 TensorShape, tensor 8 TensorProto"
    ),
    "AttrList": "s 2 repeated bytes, type 6 repeated int32, shape 7 repeated TensorShape",
    "TensorShape": "dim 2 repeated Dim",
    "Dim": "size 1 int64",
    "NamedTensor": "name 1 string, tensor 2 TensorProto",
    "TensorProto": (
        "dtype 1 int32, tensor_shape 2 TensorShape, tensor_content 4 bytes, int_val 7 repeated int32, "
        "string_val 8 repeated bytes, int64_val 10 repeated int64"
    ),
}
_GRAPH_VERSION = 1087  # TensorFlow 2.9's; newer ones read it
_UNKNOWN = -1  # a dimension that is not known


class DType(enum.IntEnum):
    """Numbers of the types in use, in tensorflow/core/framework/types.proto."""

    INT32 = 3
    STRING = 7
    INT64 = 9


class Shape(tuple):
    """An attribute that is a shape; None for a dimension that is not known."""


class Node(NamedTuple):
    """An op of a graph. Attributes are Python values: bytes, bool, int, DType, Shape, `constant(...)`, or lists of them."""

    name: str
    op: str
    inputs: Sequence[str] = ()
    attrs: dict[str, Any] = {}

    def as_message(self) -> Any:
        """The NodeDef."""
        attrs = [message("AttrEntry", key=key, value=_attr(value)) for key, value in self.attrs.items()]
        return message("NodeDef", name=self.name, op=self.op, input=list(self.inputs), attr=attrs)


def read_node(raw: bytes) -> Any:
    """The NodeDef in the bytes that TensorFlow has written, without what ties it to the rest of its graph."""
    node = parse("NodeDef", raw)
    attrs = [entry for entry in node.attr if not entry.key.startswith("_")]
    return message("NodeDef", name=node.name, op=node.op, attr=attrs)


def graph_def(nodes: Iterable[Any], device: str) -> Any:
    """A GraphDef of Nodes and of NodeDefs, all of them placed on `device`."""
    graph = message("GraphDef", versions=message("VersionDef", producer=_GRAPH_VERSION))
    for node in nodes:
        graph.node.append(node.as_message() if isinstance(node, Node) else node)
        graph.node[-1].device = device
    return graph


def message(name: str, /, **fields: Any) -> Any:
    """A message of this name in TensorFlow's files, with some of its fields."""
    return _message_class(name)(**fields)


def parse(name: str, raw: bytes) -> Any:
    """The inverse of its `SerializeToString()`."""
    return _message_class(name).FromString(raw)


def constant(value: int | bytes) -> Node:
    """A scalar, int64 or string, as a Const node that wants its name by `_replace`."""
    dtype = DType.STRING if isinstance(value, bytes) else DType.INT64
    return Node("constant", "Const", attrs={"dtype": dtype, "value": _tensor([value], dtype, ())})


def named_tensor(name: str, values: Sequence[int] | Sequence[bytes], dtype: DType) -> Any:
    """A vector that is fed to `name`."""
    return message("NamedTensor", name=name, tensor=_tensor(values, dtype, (len(values),)))


def read_tensor(tensor: Any) -> Any:
    """The value of a fetched NamedTensor of integers or strings: a scalar, or a list for a vector."""
    proto = tensor.tensor
    read = _read_strings if proto.dtype == DType.STRING else _read_integers
    values: list[Any] = read(proto)
    if not proto.tensor_shape.dim:
        return values[0]
    (size,) = (dim.size for dim in proto.tensor_shape.dim)
    return values + values[-1:] * (size - len(values))  # the last one stands for all that are the same


def _read_integers(proto: Any) -> list[int]:
    if not proto.tensor_content:
        return list(proto.int64_val) or list(proto.int_val)
    width = 4 if proto.dtype == DType.INT32 else 8
    content = proto.tensor_content
    return [
        int.from_bytes(content[start : start + width], "little", signed=True)
        for start in range(0, len(content), width)
    ]


def _read_strings(proto: Any) -> list[bytes]:
    """In `tensor_content` all lengths come first, as varints, and then the bytes."""
    if not proto.tensor_content:
        return list(proto.string_val)
    content, lengths, position = proto.tensor_content, [], 0
    count = 1
    for dim in proto.tensor_shape.dim:
        count *= dim.size
    for _ in range(count):
        shift = length = 0
        while True:
            byte = content[position]
            length |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
        lengths.append(length)
    values = []
    for length in lengths:
        values.append(content[position : position + length])
        position += length
    return values


def _tensor(values: Sequence[Any], dtype: DType, dims: Sequence[int]) -> Any:
    field = "string_val" if dtype is DType.STRING else "int64_val"
    return message("TensorProto", dtype=dtype, tensor_shape=_shape(dims), **{field: list(values)})


def _shape(dims: Sequence[int | None]) -> Any:
    sizes = [_UNKNOWN if size is None else size for size in dims]
    return message("TensorShape", dim=[message("Dim", size=size) for size in sizes])


def _attr(value: Any) -> Any:
    if isinstance(value, list):
        return message("AttrValue", list=_attr_list(value))
    if isinstance(value, Shape):
        return message("AttrValue", shape=_shape(value))
    for kind, field in ((bool, "b"), (DType, "type"), (int, "i"), (bytes, "s")):
        if isinstance(value, kind):
            return message("AttrValue", **{field: value})
    return message("AttrValue", tensor=value)


def _attr_list(values: list[Any]) -> Any:
    if values and isinstance(values[0], Shape):
        return message("AttrList", shape=[_shape(shape) for shape in values])
    return message("AttrList", type=values)


_lock = threading.Lock()  # messages of two sets of classes do not go together


def _message_class(name: str) -> Any:
    with _lock:
        return _classes()[name]


@functools.cache
def _classes() -> dict[str, Any]:
    """In a pool of our own, where TensorFlow's names do not collide with these; proto2, so that a False that is set is sent."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="ps_train.proto", package="ps_train", syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        added = file.message_type.add(name=message_name)
        for text in fields.split(", ") if fields else ():
            field_name, number, *label, kind = text.split()
            field = added.field.add(name=field_name, number=int(number), label=3 if label else 1)
            if kind in _MESSAGES:
                field.type, field.type_name = field.TYPE_MESSAGE, f".ps_train.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ps_train.{name}"))
        for name in _MESSAGES
    }
