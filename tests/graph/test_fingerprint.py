"""Two tasks' models compared before the first step."""

import pytest

from ps_train import fingerprint, placement
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.task_context import TaskContext

pytestmark = pytest.mark.graph
CLUSTER = Cluster.from_hosts(ps="p0:1,p1:1", worker="w0:1,w1:1,w2:1")


def text(build, **options):
    context = TaskContext(TaskId("worker", 0), CLUSTER, **options)
    with tf1.Graph().as_default(), placement.scope(context):
        build()
        return fingerprint.describe(tf1.global_variables(), context)


def differences(mine, theirs):
    return fingerprint.differences(mine, theirs, "worker:1")


def variables(**shapes):
    return lambda: [tf1.get_variable(name, shape) for name, shape in shapes.items()]


def test_the_same_model_has_no_differences():
    assert differences(text(variables(a=[2], b=[])), text(variables(a=[2], b=[]))) == []


def test_more_variables_on_the_other_side_do_no_harm():
    assert differences(text(variables(a=[2])), text(variables(a=[2], b=[]))) == []


def test_shape_type_and_existence():
    def mine():
        variables(a=[2], c=[1])()
        tf1.get_variable("b", [], tf.float64)

    assert differences(text(mine), text(variables(a=[3], e=[], b=[]))) == [
        "Variable a is float32 [2] on ps:0 for worker:1 and float32 [3] on ps:0 for the others.",
        "Variable c (float32 [1] on ps:1) is worker:1's alone.",
        "Variable b is float64 [] on ps:1 for worker:1 and float32 [] on ps:1 for the others.",
    ]


def test_another_order_is_another_place():
    """The variables would be different ones on different ps, without any error of TensorFlow's."""
    lines = differences(text(variables(a=[], b=[])), text(variables(b=[], a=[])))
    assert lines[0] == "Variable a is float32 [] on ps:0 for worker:1 and float32 [] on ps:1 for the others."


def test_update_rule():
    lines = differences(text(variables(a=[2]), update="sync", replicas_to_aggregate=2), text(variables(a=[])))
    assert lines == ["The updates are sync with 2 of 3 gradients for worker:1 and async for the others."]


def test_a_flag_that_differs_is_named_and_not_what_follows_from_it():
    mine = text(variables(a=[2]), local_steps=3, partition="auto", first_ps_bytes=9)
    assert differences(mine, text(variables(b=[]))) == [
        "worker:1 has --local_steps=3 and the others have --local_steps=1. Give all the same.",
        "worker:1 has --partition=auto and the others have --partition=none. Give all the same.",
        "worker:1 has --first_ps_bytes=9 and the others have --first_ps_bytes=0. Give all the same.",
    ]


def test_many_differences_are_counted():
    lines = differences(text(variables(**{f"v{i}": [] for i in range(8)})), text(variables(w=[])))
    assert len(lines) == 6 and lines[-1] == "3 more differ."
