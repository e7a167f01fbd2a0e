"""What a TF1 graph may hold besides variables and gradients: tables, an input that looks things up, hooks with a will of their own.

params: trouble, what the user's hook does on one task, as "KIND:SHARD:LOCAL_STEP": "stop" requests a stop, "assign" makes an op
in its after_run, "session" opens a session of its own on the graph, "feed" feeds the loss something (SHARD and LOCAL_STEP do not count)
"""

import time

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1
WORDS = ["a", "b", "c"]


def input_fn(context):
    words = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(3, dtype=tf.int64)), num_oov_buckets=1
    )

    def wait(number):
        time.sleep(0.01)
        return number

    numbers = tf.data.Dataset.range(3).repeat().map(lambda n: tf.numpy_function(wait, [n], tf.int64))
    return numbers.map(lambda n: (tf.gather(WORDS, n), words.lookup(tf.gather(WORDS, n))))


def model_fn(features, labels, params):
    """Counts how often each word was seen, in two tables that have no name."""
    word = tf.ensure_shape(labels, [])
    w = tf1.get_variable("w", [], tf.float64, tf1.zeros_initializer())
    seen = [tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0) for _ in range(2)]
    for number, table in enumerate(seen):
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, table.insert(word, 10 * word + number))
    target = tf1.placeholder_with_default(np.float64(1.0), [], "target")
    loss = tf.square(w - target)
    kind, shard, step = str(params.get("trouble", "none:0:0")).split(":")
    hooks = [Trouble(kind, int(shard), int(step), w)]
    if kind == "feed":
        hooks.append(tf1.train.FeedFnHook(lambda: {target: 2.0}))
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer, training_hooks=hooks)


class Trouble(tf1.train.SessionRunHook):
    """The same on every task; on one it does what it is told to."""

    def __init__(self, kind, shard, step, variable):
        task = ps_train.task_context.current().replica
        self._kind, self._step, self._variable = kind if task == shard else "none", step, variable
        self._count = 0

    def after_run(self, run_context, run_values):
        self._count += 1
        if self._count < self._step:
            return
        if self._kind == "stop":
            run_context.request_stop()
        elif self._kind == "assign":
            run_context.session.run(tf1.assign(self._variable, 0.0))
        elif self._kind == "session":
            with tf1.Session() as session:
                session.run(self._variable)
