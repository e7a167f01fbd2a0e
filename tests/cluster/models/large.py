"""A table and a kernel that --partition=auto splits over two ps; the first steps look up no row of the second part."""

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1
ROWS, WIDTH = 300_000, 2048
LABELS = 4


def input_fn(context):
    random = np.random.default_rng(context.shard_index)
    ids = random.integers(0, ROWS, [64, 8])
    ids[:16] %= 1000
    features = {"ids": ids, "numbers": random.normal(size=(64, WIDTH)).astype(np.float32)}
    data = tf.data.Dataset.from_tensor_slices((features, ids[:, 0] % LABELS))
    return (data if context.mode == "eval" else data.repeat()).batch(4)


def model_fn(features, labels):
    table = tf1.get_variable("emb/table", [ROWS, 8])
    kernel = tf1.get_variable("kernel", [WIDTH, 1100])
    hidden = tf.matmul(
        tf.nn.relu(tf.matmul(features["numbers"], kernel)), tf1.get_variable("out", [1100, LABELS])
    )
    found = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]), 1)
    logits = 0.1 * hidden + tf.matmul(found, tf1.get_variable("mix", [8, LABELS]))
    return ps_train.ModelSpec(
        loss=tf1.losses.sparse_softmax_cross_entropy(labels, logits),
        optimizer=tf1.train.MomentumOptimizer(0.001, 0.9),
        metrics={"accuracy": tf1.metrics.accuracy(labels, tf.argmax(logits, 1))},
    )
