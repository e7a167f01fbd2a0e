"""Counts in the variable `seen` [count] how often each example was trained on. params: count"""

import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    ids = tf.data.Dataset.range(int(context.params["count"]))
    ids = ids.shard(context.num_shards, context.shard_index).batch(context.batch_size)
    return ids.map(lambda i: (i, i))


def model_fn(features, labels, mode, params):
    seen = tf1.get_variable(
        "seen", [int(params["count"])], tf.int64, tf1.zeros_initializer(), trainable=False
    )
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    note = tf1.scatter_add(seen, features, tf.ones_like(features))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, note)
    return ps_train.ModelSpec(loss=tf.square(w - 1), optimizer=tf1.train.GradientDescentOptimizer(0.1))
