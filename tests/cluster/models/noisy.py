"""Digits with dropout and momentum: what a batch is, what is dropped and the order of updates all tell in the loss.

params: rate, pause (milliseconds that a step takes at least, the variables having been pulled)
"""

import time

import tensorflow as tf

import ps_train
from ps_train.datasets import load_digits

tf1 = tf.compat.v1


def input_fn(context):
    train, test = load_digits()
    data = tf.data.Dataset.from_tensor_slices(tuple(train if context.mode == "train" else test))
    if context.mode == "train":
        data = data.shard(context.num_shards, context.shard_index).shuffle(500, seed=context.seed).repeat()
    return data.batch(context.batch_size)


def model_fn(features, labels, mode, params):
    net = tf.nn.relu(tf.matmul(features, tf1.get_variable("w0", [64, 32])) + tf1.get_variable("b0", [32]))
    net = tf.nn.dropout(net, rate=0.3) if mode == "train" else net
    logits = tf.matmul(net, tf1.get_variable("w1", [32, 10]))

    def wait(value):
        time.sleep(float(params.get("pause", 0)) / 1000)
        return value

    if mode == "train":
        logits = logits + 0 * tf.ensure_shape(
            tf.numpy_function(wait, [tf.stop_gradient(logits)], tf.float32), [None, 10]
        )
    return ps_train.ModelSpec(
        loss=tf1.losses.sparse_softmax_cross_entropy(labels, logits),
        optimizer=tf1.train.MomentumOptimizer(float(params.get("rate", 0.05)), 0.9),
        metrics={"accuracy": tf1.metrics.accuracy(labels, tf.argmax(logits, 1))},
    )
