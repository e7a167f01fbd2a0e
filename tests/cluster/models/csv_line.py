"""A line through the points of CSV files with the columns x and y, read by `ps_train.data`, or by all in the same way.

params: files, repeat (true), on_broken ("fail"), raw (true: a dataset that nobody shards)
"""

import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    if context.params.get("raw", False):
        return tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat(20)
    options = {key: context.params[key] for key in ("repeat", "on_broken") if key in context.params}
    data = ps_train.data.from_csv(context, context.params["files"], "y", {"x": 0.0}, **options)
    return data.map(lambda row, y: (row["x"], y))


def model_fn(features, labels):
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * features - labels))
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(1e-6))
