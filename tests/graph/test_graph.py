"""A task's graph: what a mistake in the user's model says, with the line, and how examples are counted."""

import contextlib

import numpy as np
import pytest

from ps_train import graph, inputs, logs, sizes, task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.errors import ModelError
from ps_train.model import load_model
from ps_train.params import Params

ROWS = np.ones((80, 64), "float32")

pytestmark = pytest.mark.graph

MODEL = """
import numpy as np
import tensorflow as tf
import ps_train

tf1 = tf.compat.v1

def input_fn(context):
    data = tf.data.Dataset.from_tensors((np.ones([4], "float32"), np.ones([], "float32")))
    {input_fn}
    return data.repeat().batch(context.batch_size)

def model_fn(features, labels, params):
    optimizer = tf1.train.AdamOptimizer(0.1)
    {model_fn}
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer)
"""
GOOD = "loss = tf.reduce_mean(features) * tf1.get_variable('w', [])"


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds a worker's graph of MODEL with the given lines."""
    monkeypatch.chdir(tmp_path)

    def build_train(model_fn=GOOD, input_fn="", update="async", params=None, task="worker:0"):
        (tmp_path / "mine.py").write_text(MODEL.format(input_fn=input_fn, model_fn=model_fn))
        cluster = Cluster.from_hosts(ps="localhost:1", worker="localhost:2,localhost:3")
        context = task_context.TaskContext(TaskId.from_string(task), cluster, update)
        task_context.set_current(context)
        return graph.build_train(
            context, TrainConfig(update=update, model_params=Params(params or {})), load_model("mine.py")
        )

    return build_train


@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (
            "loss = tf.reduce_mean(features)",
            "model_fn in mine.py:16: the model has no trainable variable, so there is nothing to train. Make them in "
            "model_fn, such as with tf.compat.v1.get_variable or Keras layers.",
        ),
        (
            "loss, w = tf.reduce_mean(features), tf1.get_variable('w', [])",
            "model_fn in mine.py:16: no variable gets a gradient: the loss does not depend on any trainable variable. "
            "Make it of the variables.",
        ),
        (
            f"{GOOD}; optimizer = tf.keras.optimizers.Adam()",
            "model_fn in mine.py:16: ModelSpec.optimizer is a Keras optimizer; a TensorFlow 1 optimizer is expected. "
            "Pass one from tf.compat.v1.train, such as tf.compat.v1.train.AdamOptimizer(1e-3).",
        ),
        (
            "optimizer = ps_train.DistributedOptimizer(tf.keras.optimizers.SGD())",
            "model_fn in mine.py:15: The optimizer is a keras.src.optimizers.sgd.SGD; expected a "
            "tf.compat.v1.train.Optimizer, such as tf.compat.v1.train.AdamOptimizer(1e-3).",
        ),
        (
            f"{GOOD}; return ps_train.ModelSpec(loss=loss, train_op='x')",
            "model_fn in mine.py:15: ModelSpec.train_op is a str; an operation is expected, as "
            "ps_train.DistributedOptimizer(optimizer).minimize(loss, ...) returns it.",
        ),
        (
            "with tf1.Graph().as_default(): loss = tf1.get_variable('w', [])",
            "model_fn in mine.py:16: the loss is in another graph. Build the model in the default graph, and make none.",
        ),
    ],
)
def test_a_mistake_in_the_model(build, model_fn, message):
    with pytest.raises(ModelError) as caught:
        build(model_fn)
    assert str(caught.value) == message


def test_a_variable_of_2_gb_is_refused(build):
    with pytest.raises(ModelError) as raised:
        build(
            "w = tf1.get_variable('w', [2**29, 1], initializer=tf1.zeros_initializer()); loss = tf.reduce_mean(features) * w[0, 0]"
        )
    assert str(raised.value) == (
        "Variable w (2.0 GB, made at mine.py:15) is too large: TensorFlow sends no tensor of 2 GB or more. Make it in parts, such as with "
        "tf.compat.v1.get_variable(..., partitioner=tf.compat.v1.fixed_size_partitioner(4))."
    )
    build(
        "w = tf1.get_variable('w', [2**29, 1], initializer=tf1.zeros_initializer(), "
        "partitioner=tf1.fixed_size_partitioner(4)); loss = tf.reduce_mean(features) * tf.gather(list(w)[0], 0)[0]"
    )


def test_a_large_constant_of_one_value_is_small(build, monkeypatch):
    """As Adagrad's initial accumulator."""
    monkeypatch.setattr(sizes, "MAX_BYTES", 3 * 2**20)
    build(
        "ws = [tf1.get_variable(f'w{i}', initializer=tf.constant(0.1, shape=[512, 512])) for i in range(4)]; "
        "loss = tf.reduce_mean(features) * sum(w[0, 0] for w in ws)"
    )


def test_constants_of_2_gb_are_refused(build, monkeypatch):
    monkeypatch.setattr(sizes, "MAX_BYTES", 3 * 2**20)
    with pytest.raises(ModelError) as raised:
        build(
            "ws = [tf1.get_variable(f'w{i}', initializer=np.random.rand(512, 512).astype('float32')) for i in range(4)]; "
            "loss = tf.reduce_mean(features) * sum(w[0, 0] for w in ws)"
        )
    text = str(raised.value)
    assert text.startswith(
        "The graph holds 4 MB of constants, and TensorFlow sends no graph of 2 GB or more. The largest are w0/"
    )
    assert "(1 MB, made at mine.py:15)" in text


def test_a_train_op_that_sync_does_not_reach(build):
    with pytest.raises(ModelError) as caught:
        build(
            f"{GOOD}; return ps_train.ModelSpec(loss=loss, train_op=optimizer.minimize(loss))", update="sync"
        )
    assert str(caught.value) == (
        "model_fn in mine.py:15: its own train_op is by an optimizer that --update=sync does not reach. Wrap it: "
        "ps_train.DistributedOptimizer(optimizer).minimize(loss, global_step=tf1.train.get_global_step())."
    )


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (
            "data = data.map(lambda x, y: (tf.reshape(x, [5]), y))",
            "input_fn in mine.py:10 raised ValueError: Cannot",
        ),
        ("data = data.map(lambda x: x)", "input_fn in mine.py:10 raised TypeError: "),
        (
            "data = data.map(lambda x, y: (x, y, y))",
            "The dataset of input_fn in mine.py:8 has elements of 3 parts; (features, labels) is expected.",
        ),
        ("return iter([])", "input_fn in mine.py:8 returned a list_iterator; a tf.data.Dataset"),
    ],
)
def test_a_mistake_in_the_input(build, input_fn, message):
    with pytest.raises(ModelError) as caught:
        build(input_fn=input_fn)
    assert str(caught.value).startswith(message)


def test_the_inputs_op_leads_to_the_line_of_the_dataset(build):
    """What an error at run time is explained with: the op itself is of ps_train's making."""
    ops = build()
    get_next = next(op for op in ops.graph.get_operations() if op.type == "IteratorGetNext")
    frames = [(frame.filename.rpartition("/")[2], frame.lineno) for frame in get_next._original_op.traceback]
    assert ("mine.py", 11) in frames


def test_a_param_that_the_model_does_not_read_is_warned_of_by_the_chief(build, caplog, monkeypatch):
    monkeypatch.setattr(logs.log, "propagate", True)
    model_fn, input_fn = f"{GOOD} * params.get('rate', 1)", "context.params['batches']"
    for task in ("worker:0", "worker:1"):
        build(model_fn, input_fn, params={"batches": 1, "rat": 2}, task=task)
    assert caplog.messages == [
        "--model_params has 'rat', which was not read while the graph was built. Did you mean rate?"
    ]


def test_a_param_that_is_read_only_later_is_not_warned_of(build, caplog, monkeypatch):
    """As while the data is read, or in a branch that an evaluation takes: the file shows that the key is known."""
    monkeypatch.setattr(logs.log, "propagate", True)
    late = "data = data.map(lambda x, y: (tf.numpy_function(lambda x: x * context.params['by'], [x], tf.float32), y))"
    build(
        f"{GOOD} * (params['clip'] if features.shape.rank == 9 else 1)",
        late,
        params={"by": 2, "clip": 1, "rat": 2},
    )
    assert [message.split("'")[1] for message in caplog.messages] == ["rat"]


def test_the_builtin_models_params_are_watched_too(caplog, monkeypatch):
    monkeypatch.setattr(logs.log, "propagate", True)
    config = TrainConfig(model_params=Params(hiden=3, learning_rate=0.1))
    context = task_context.TaskContext(TaskId("worker", 0), Cluster.from_hosts("p0:1", "w0:1"), "async")
    task_context.set_current(context)
    graph.build_train(context, config, load_model("ps_train.builtin_model"))
    assert caplog.messages == [
        "--model_params has 'hiden', which was not read while the graph was built. Did you mean hidden?"
    ]


def counts(dataset, model=tf.nest.flatten):
    """What is counted for each element of the dataset, in a session that also runs `model`."""
    with tf1.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(dataset())
        features = iterator.get_next()
        result = model(features)
        examples = inputs.count_examples(features, batch_size=32)
        found = []
        with tf1.Session() as session:
            session.run(iterator.initializer)
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    found.append(session.run([examples, result])[0])
        return found


def set_shape(features):
    features.set_shape([32, 64])
    return features


def reshape(features):
    return tf.reshape(features, [32, 64])  # the optimizer infers from it that the features have 32 rows


@pytest.mark.parametrize("model", [tf.identity, lambda x: tf.reshape(x, [-1, 8, 8]), reshape, set_shape])
def test_the_rows_of_each_batch_are_counted(model):
    assert counts(lambda: tf.data.Dataset.from_tensor_slices(ROWS).batch(32), model) == [32, 32, 16]


def test_rows_of_features_that_are_no_plain_tensor():
    def of_unknown_rank():
        rows = (ROWS[:5], ROWS[:7], np.float32(1))
        return tf.data.Dataset.from_generator(lambda: iter(rows), output_types=tf.float32)

    def scalars_first():
        return tf.data.Dataset.from_tensor_slices({"a": ROWS[:2, 0], "b": ROWS[:10].reshape(2, 5, 64)})

    slices = tf.data.Dataset.from_tensor_slices
    assert counts(of_unknown_rank) == [5, 7, 32]
    assert counts(scalars_first) == [5, 5]
    assert counts(lambda: slices(ROWS[:3, 0])) == [32, 32, 32]
    assert counts(lambda: slices(ROWS).batch(32).map(tf.sparse.from_dense)) == [32, 32, 16]
    assert counts(lambda: slices(tf.ragged.constant([[1, 2], [3], [4]])).batch(2)) == [2, 1]
    assert counts(lambda: slices([b"a", b"b", b"c"]).batch(2)) == [2, 1]
