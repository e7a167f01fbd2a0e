"""The models of `nets` in TensorFlow, for graphs of TensorFlow 1 and functions of TensorFlow 2 alike.

dataset = tf_nets.dataset("mlp", num_workers=2, worker=0, records="")
layers = tf_nets.layers("mlp", tf1.get_variable)
loss = tf_nets.loss(*tf1.data.make_one_shot_iterator(dataset).get_next(), layers)
hook = tf_nets.ProgressHook(loss)
"""

import tensorflow as tf
from nets import NETS, RECORD_BYTES, SIDE, fixed_batch
from task import Progress

tf1 = tf.compat.v1


def dataset(name, num_workers, worker, records):
    """Endless batches of (features, labels) for a worker; `records` is the file of the cnn's pictures."""
    if len(NETS[name].kernels[0]) == 2:
        return tf.data.Dataset.from_tensors(fixed_batch(name, worker)).repeat()
    rows = tf.data.FixedLengthRecordDataset(records, RECORD_BYTES).shard(num_workers, worker).cache().repeat()
    return rows.batch(NETS[name].batch, drop_remainder=True).map(_pictures).prefetch(2)


def _pictures(rows):
    numbers = tf.io.decode_raw(rows, tf.uint8)
    images = tf.reshape(numbers[:, 1:], [NETS["cnn"].batch, SIDE, SIDE, 1])
    return tf.cast(images, tf.float32) / 255.0, tf.cast(numbers[:, 0], tf.int64)


def layers(name, make_variable):
    """Pairs of kernel and biases, made by `make_variable(name, shape, initializer=f)`."""
    starts = {True: tf1.zeros_initializer(), False: tf1.glorot_uniform_initializer()}
    made = [
        make_variable(variable, shape, initializer=starts[len(shape) == 1])
        for variable, shape in NETS[name].variables
    ]
    return list(zip(made[::2], made[1::2], strict=True))


def make_variable(name, shape, initializer):
    """A variable of TensorFlow 2, for `layers`."""
    return tf.Variable(initializer(shape, tf.float32), name=name)


def loss(features, labels, layers):
    """Mean softmax cross-entropy of the net with these layers."""
    hidden = features
    for kernel, biases in layers:
        if len(kernel.shape) == 4:
            hidden = tf.nn.relu(tf.nn.conv2d(hidden, kernel, strides=1, padding="SAME") + biases)
            hidden = tf.nn.max_pool2d(hidden, 2, 2, padding="SAME")
        else:
            hidden = tf.matmul(tf.reshape(hidden, [-1, kernel.shape[0]]), kernel) + biases
            hidden = hidden if kernel is layers[-1][0] else tf.nn.relu(hidden)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden))


class ProgressHook(tf1.train.SessionRunHook):
    """Counts the steps of a session; `wait_for_chief` in `task` sees when the first session is there."""

    def __init__(self, loss):
        self._loss, self._progress = loss, Progress()

    def after_create_session(self, session, coord):
        self._progress.begin()

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self._progress.step(run_values.results)
