"""What is told of an error of a session: the cause that stands somewhere in TensorFlow's message, and the user's line."""

import os
import re

import numpy as np
import pytest

import ps_train
from ps_train.compat import tf, tf1
from ps_train.explain import as_model_error, cause
from ps_train.inputs import build_input, build_input_init
from ps_train.model import InputContext, Model

pytestmark = pytest.mark.graph
HERE = os.path.relpath(__file__)


def lookup(i):
    table = {}
    return np.float32(table[int(i)])  # LOOKUP


def rows():
    yield 1.0
    raise ValueError("bad row:\nnot a number")  # ROWS


def line_of(mark):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


def explain_input(make_dataset, target=""):
    """What is told of the error of an input; the model has an op of the name that the one in the input has, too."""
    model = Model(lambda context: make_dataset(), None, "mine", __file__)
    with tf1.Graph().as_default() as graph, tf1.Session(target) as session:
        tf.constant(1, name="Reshape")
        _, (features, _) = build_input(model, InputContext(), "/device:CPU:0")
        session.run(build_input_init())
        with pytest.raises(tf.errors.OpError) as raised:
            for _ in range(9):
                session.run(features)
    return str(as_model_error(raised.value, graph))


def reshape():
    def fold(x):
        width = tf.random.uniform([1], 4, 5, tf.int32)
        return tf.reshape(x, tf.concat([width, [2]], 0))  # RESHAPE

    return tf.data.Dataset.from_tensor_slices(np.zeros([4, 6], np.float32)).map(fold)


def check():
    def fold(i):
        tf.debugging.assert_less(i, tf.constant(2, tf.int64), message="no such id")
        return i

    return tf.data.Dataset.range(9).map(fold)  # CHECK


def missing_file():
    return tf.data.TextLineDataset("/no/such/file").batch(2)  # FILE


@pytest.mark.parametrize("has_server", [False, True])
@pytest.mark.parametrize(
    ("make_dataset", "told"),
    [
        (
            reshape,
            f"InvalidArgumentError in op Reshape (made at {HERE}:{line_of('RESHAPE')}): "
            "Input to reshape is a tensor with 6 values, but the requested shape has 8",
        ),
        (
            check,
            f"InvalidArgumentError in op Assert (made at {HERE}:{line_of('CHECK')}): "
            "assertion failed: [no such id] [Condition x < y did not hold",
        ),
        (missing_file, f"NotFoundError in op IteratorGetNext (made at {HERE}:{line_of('FILE')}): /no/such/file; No"),
        (
            lambda: tf.data.Dataset.range(9).map(lambda i: tf.numpy_function(lookup, [i], tf.float32)),
            f"lookup in {HERE}:{line_of('LOOKUP')} raised KeyError: 0",
        ),
        (
            lambda: tf.data.Dataset.range(9).map(lambda i: tf.py_function(lookup, [i], tf.float32)),
            f"lookup in {HERE}:{line_of('LOOKUP')} raised KeyError: 0",
        ),
        (
            lambda: tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.float32)),
            f"rows in {HERE}:{line_of('ROWS')} raised ValueError: bad row: not a number",
        ),
    ],
)  # fmt: skip
def test_an_error_of_the_input(make_dataset, told, has_server):
    target = tf1.train.Server.create_local_server().target if has_server else ""
    text = explain_input(make_dataset, target)
    assert text.startswith(told) and "\n" not in text


def test_an_op_in_a_branch_within_the_inputs_function():
    """A task of a cluster tells of which function the op is; its caller, made at the same line, is looked for."""
    message = (
        "From /job:worker/replica:0/task:0:\nassertion failed: [no such id]\n"
        "\t [[{{function_node assert_less_Assert_AssertGuard_false_37}}{{node Assert}}]]\n\t [[IteratorGetNext]]"
    )
    with tf1.Graph().as_default() as graph:
        model = Model(lambda context: check(), None, "mine", __file__)
        build_input(model, InputContext(), "/device:CPU:0")
    text = str(as_model_error(tf.errors.InvalidArgumentError(None, None, message), graph))
    made_at = line_of("CHECK") - 3
    assert (
        text
        == f"InvalidArgumentError in op Assert (made at {HERE}:{made_at}): assertion failed: [no such id]"
    )


TRACEBACK = """KeyError: 0
Traceback (most recent call last):

  File "/v/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)
          ^^^^^^^^^^^

  File "/elsewhere/mine.py", line 9, in look
    return np.float32(table[int(i)])
                      ~~~~~^^^^^^^^

KeyError: 0


\t [[{{node PyFunc}}]]
\t [[IteratorGetNext]]
"""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            f"Graph execution error:\n\n=====================\nUNKNOWN: From /job:worker/replica:0/task:0:\n{TRACEBACK}"
            f"UNKNOWN: From /job:ps/replica:0/task:0:\n{TRACEBACK}"
            "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling "
            "/tensorflow.WorkerService/RecvTensor:\n\t [[CheckNumerics_1_S33]]\n=====================",
            "look in /elsewhere/mine.py:9 raised KeyError: 0",
        ),
        (
            f"2 root error(s) found.\n  (0) UNKNOWN: From /job:worker/replica:0/task:0:\n{TRACEBACK}",
            "look in /elsewhere/mine.py:9 raised KeyError: 0",
        ),
        (
            "Graph execution error:\n\n=====================\nUNKNOWN: From /job:ps/replica:0/task:0:\nno such row\n",
            "UnknownError: no such row",
        ),
        ("FATAL: the disk is full", "UnknownError: FATAL: the disk is full"),
        ("UNKNOWN: From /job:ps/replica:0/task:0:", "UnknownError: "),
        ("", "UnknownError: "),
    ],
)
def test_the_cause_in_messages_of_a_cluster(message, told):
    """These are TensorFlow 2.21's own, of a job with one ps and one worker."""
    assert str(as_model_error(tf.errors.UnknownError(None, None, message))) == told


def test_a_python_function_that_is_not_the_users():
    message = re.sub(r"/elsewhere/mine", "/v/lib/python3.11/site-packages/theirs", TRACEBACK)
    error = tf.errors.UnknownError(None, None, message)
    assert str(as_model_error(error)) == "UnknownError: KeyError: 0"
    assert cause(error) == "KeyError: 0"


def test_a_hook_that_makes_an_op_is_named_with_its_line():
    """As a hook is called: by TensorFlow, below a function of ps_train's."""
    with tf1.Graph().as_default() as graph:
        variable = tf1.get_variable("v", [], initializer=tf1.zeros_initializer())
        graph.finalize()
        with tf1.Session(graph=graph) as session, pytest.raises(RuntimeError) as raised:
            call_from_ps_train(lambda: session.run(tf1.assign(variable, 1.0)))
    text = str(as_model_error(raised.value, graph))
    assert re.fullmatch(
        r"<lambda> in \S*test_explain.py:\d+ raised RuntimeError: Graph is finalized and cannot be modified. "
        r"Make every op in model_fn, once: while training, a hook or a loop can only run them.",
        text,
    )


def test_a_session_of_its_own_is_named():
    with tf1.Graph().as_default() as graph:
        with tf1.device("/job:ps/task:0"):
            variable = tf1.get_variable("v", [], use_resource=True)

        def after_run():
            with tf1.Session() as session:
                session.run(variable)

        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            call_from_ps_train(after_run)
    text = str(as_model_error(raised.value, graph))
    assert re.match(
        r"after_run in \S*test_explain.py:\d+ runs the graph in a session of its own, which is not", text
    )


def call_from_ps_train(function):
    """Calls it through a frame that is in ps_train's directory."""
    filename = os.path.join(os.path.dirname(ps_train.__file__), "worker.py")
    exec(compile("function()", filename, "exec"), {"function": function})
