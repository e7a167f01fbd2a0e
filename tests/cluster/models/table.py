"""An embedding table in parts, with Adam's slots. params: parts, frozen (1: steps are counted and change nothing)"""

import tensorflow as tf

import ps_train

tf1 = tf.compat.v1
ROWS = 11


def input_fn(context):
    ids = tf.data.Dataset.range(10**6).map(lambda i: i * 7 % ROWS).batch(4)
    return ids.map(lambda i: (i, tf.cast(i, tf.float32)))


def model_fn(features, labels, mode, params):
    parts = tf1.fixed_size_partitioner(int(params["parts"]))
    table = tf1.get_variable(
        "table", [ROWS, 3], initializer=tf1.random_normal_initializer(), partitioner=parts
    )
    found = tf1.nn.embedding_lookup(table, features, partition_strategy="div")
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(found, 1) - labels))
    global_step = tf1.train.get_global_step()
    optimizer = ps_train.DistributedOptimizer(tf1.train.AdamOptimizer(0.1))
    train_op = optimizer.minimize(loss, global_step)
    if params.get("frozen"):
        train_op = tf1.assign_add(global_step, 1).op
    return ps_train.ModelSpec(loss=loss, train_op=train_op)
