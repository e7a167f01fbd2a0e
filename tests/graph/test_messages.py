"""Messages made without TensorFlow against TensorFlow's own classes."""

import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format

from ps_train.compat import tf, tf1
from ps_train.messages import (
    DType,
    Node,
    Shape,
    constant,
    graph_def,
    message,
    named_tensor,
    parse,
    read_node,
    read_tensor,
)

pytestmark = pytest.mark.graph
DEVICE = "/job:ps/task:1/device:CPU:0"


def as_theirs(kind, mine):
    """TensorFlow's message in the bytes of ours."""
    return kind.FromString(mine.SerializeToString())


def test_a_graph_is_that_of_tensorflow():
    with tf1.Graph().as_default() as graph, tf1.device(DEVICE):
        queue = tf.raw_ops.FIFOQueueV2(
            component_types=[tf.int64], shapes=[[]], capacity=-1, container="c", shared_name="q", name="queue"
        )
        table = tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.string, use_node_name_sharing=False, name="table"
        )
        keys = tf1.placeholder(tf.int64, [None, 3], "keys")
        value = tf.constant(-7, tf.int64, name="value")
        tf.raw_ops.QueueEnqueueV2(handle=queue, components=[value], name="put")
        tf.raw_ops.LookupTableRemoveV2(table_handle=table, keys=keys, name="remove")
    nodes = [
        Node("queue", "FIFOQueueV2", attrs={
            "component_types": [DType.INT64], "shapes": [Shape()], "capacity": -1, "container": b"c", "shared_name": b"q",
        }),
        Node("table", "MutableHashTableV2", attrs={
            "key_dtype": DType.INT64, "value_dtype": DType.STRING, "use_node_name_sharing": False, "container": b"",
            "shared_name": b"",
        }),
        Node("keys", "Placeholder", attrs={"dtype": DType.INT64, "shape": Shape([None, 3])}),
        constant(-7)._replace(name="value"),
        Node("put", "QueueEnqueueV2", ["queue", "value"], {"Tcomponents": [DType.INT64], "timeout_ms": -1}),
        Node("remove", "LookupTableRemoveV2", ["table", "keys"], {"Tin": DType.INT64}),
    ]  # fmt: skip
    mine = as_theirs(tf1.GraphDef, graph_def(nodes, DEVICE))
    theirs = {node.name: text_format.MessageToString(node) for node in graph.as_graph_def().node}
    assert {node.name: text_format.MessageToString(node) for node in mine.node} == theirs
    tf1.import_graph_def(mine)


def test_a_node_of_tensorflow_s_can_be_taken_over():
    """Without its inputs and what ties it to other nodes."""
    with tf1.Graph().as_default():
        first = tf.constant([1], name="first")
        with tf1.colocate_with(first.op):
            second = tf.raw_ops.FIFOQueueV2(component_types=[tf.int64], shared_name="x", name="second")
    node = read_node(second.op.node_def.SerializeToString())
    (copied,) = as_theirs(tf1.GraphDef, graph_def([node], DEVICE)).node
    assert (copied.name, copied.op, copied.device) == ("second", "FIFOQueueV2", DEVICE)
    assert copied.attr["shared_name"].s == b"x" and "_class" not in copied.attr


def test_classes_are_made_once_though_threads_ask_for_them_first():
    code = (
        "import threading, ps_train.messages as m\n"
        "start, found = threading.Barrier(8), []\n"
        "def make():\n"
        "    start.wait()\n"
        "    found.append(m.graph_def([m.constant(1)._replace(name='one')], ''))\n"
        "threads = [threading.Thread(target=make) for _ in range(8)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "print(len(found), len({type(graph) for graph in found}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "8 1\n", run.stderr


def test_what_is_fed():
    tensor = tf1.make_tensor_proto([1])
    tensor.ParseFromString(named_tensor("keys:0", [3, -4], DType.INT64).tensor.SerializeToString())
    np.testing.assert_array_equal(tf.make_ndarray(tensor), np.array([3, -4]))
    tensor.ParseFromString(named_tensor("values:0", [b"a", b""], DType.STRING).tensor.SerializeToString())
    assert tf.make_ndarray(tensor).tolist() == [b"a", b""]
    tensor.ParseFromString(named_tensor("values:0", [], DType.STRING).tensor.SerializeToString())
    assert tf.make_ndarray(tensor).shape == (0,)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("value", [0, -5, [1, -2, 3], [], [4, 4, 4, 4], list(range(100))])
def test_integers_that_are_fetched(dtype, value):
    for array in (value, np.array(value, dtype)):
        proto = tf1.make_tensor_proto(array, dtype=dtype)
        raw = message("NamedTensor", tensor=parse("TensorProto", proto.SerializeToString()))
        assert read_tensor(raw) == value


@pytest.mark.parametrize("value", [b"", b"x" * 300, [b"a", b"", b"c" * 200], []])
def test_strings_that_are_fetched(value):
    proto = tf1.make_tensor_proto(value, dtype=tf.string)
    raw = message("NamedTensor", tensor=parse("TensorProto", proto.SerializeToString()))
    assert read_tensor(raw) == value
