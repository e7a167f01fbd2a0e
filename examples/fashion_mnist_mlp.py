"""A perceptron on Fashion-MNIST: 60000 grey pictures of clothes, ten classes.

The data is Debian's package dataset-fashion-mnist; params data_dir=DIR names another directory of MNIST-like files.

On this machine, with one ps and two workers:

    python -m ps_train --model=examples/fashion_mnist_mlp.py --train_steps=2000 --train_dir=runs/mlp

On hosts, one command each (host0 is the ps, the others are workers 0 and 1):

    python -m ps_train --job_name=ps --task_index=0 \
        --ps_hosts=host0:2222 --worker_hosts=host1:2222,host2:2222 \
        --model=examples/fashion_mnist_mlp.py --train_steps=2000 --train_dir=/shared/mlp

Accuracy on the 10000 held-out pictures, from the checkpoints in train_dir, beside the training or after it:

    python -m ps_train eval --model=examples/fashion_mnist_mlp.py --train_dir=runs/mlp

Measured once, all three tasks on two shared cores: 84.5% after 2001 steps in 10 s of training.

params: data_dir, hidden (units, 128), learning_rate (0.001), slow (1:50 makes worker 1 a straggler, which
gets a batch every 50 ms and no sooner, and uses no processor meanwhile; see straggler_experiment.sh)
"""

import time

import tensorflow as tf

import ps_train
from ps_train import datasets

tf1 = tf.compat.v1


def input_fn(context):
    """(pictures float32 [batch, 28, 28] in 0-1, labels int64 [batch])."""
    data_dir = context.params.get("data_dir", "/usr/share/datasets/fashion-mnist")
    train, test = datasets.load_idx_images(data_dir)
    is_training = context.mode == "train"
    images, labels = train if is_training else test

    # Indices go through the graph and pictures do not: 47 MB of constants would be part of every session's graph.
    indices = tf.data.Dataset.range(len(labels)).shard(context.num_shards, context.shard_index)
    if is_training:
        indices = indices.shuffle(len(labels), seed=context.seed).repeat()
    batches = indices.batch(context.batch_size, drop_remainder=is_training)
    slow_worker, _, milliseconds = str(context.params.get("slow", "none")).partition(":")
    if is_training and slow_worker == str(context.shard_index):
        batches = batches.map(lambda batch: delayed(batch, float(milliseconds) / 1000))

    def gather(batch):
        pictures, classes = tf.numpy_function(
            lambda rows: (images[rows], labels[rows]), [batch], (tf.uint8, tf.int64)
        )
        pictures = tf.ensure_shape(pictures, [None, 28, 28])
        return tf.cast(pictures, tf.float32) / 255.0, tf.ensure_shape(classes, [None])

    return batches.map(gather, num_parallel_calls=2).prefetch(2)


def delayed(batch, secs):
    """A batch of indices [batch], a while later."""

    def wait(rows):
        time.sleep(secs)
        return rows

    return tf.ensure_shape(tf.numpy_function(wait, [batch], tf.int64), [None])


def dense(inputs, units, name):
    """`inputs` [batch, n] times weights, plus biases: [batch, units]."""
    with tf1.variable_scope(name):
        weights = tf1.get_variable("weights", [inputs.shape[-1], units])
        biases = tf1.get_variable("biases", [units], initializer=tf1.zeros_initializer())
        return tf1.nn.xw_plus_b(inputs, weights, biases)


def model_fn(features, labels, mode, params):
    """One hidden layer; trained with Adam."""
    pixels = tf.reshape(features, [-1, 28 * 28])
    hidden = tf.nn.relu(dense(pixels, params.get("hidden", 128), "hidden"))
    logits = dense(hidden, 10, "logits")
    predictions = tf.argmax(logits, 1)
    if mode == "predict":
        return ps_train.ModelSpec(predictions=predictions)
    return ps_train.ModelSpec(
        loss=tf1.losses.sparse_softmax_cross_entropy(labels, logits),
        optimizer=tf1.train.AdamOptimizer(params.get("learning_rate", 0.001)),
        predictions=predictions,
        metrics={"accuracy": tf1.metrics.accuracy(labels, predictions)},
    )
