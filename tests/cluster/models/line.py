"""A line through points, in float64, whose every batch is a formula of (shard, step): `steps.trajectory` is its answer.

params: batches (of each worker: "10:20" by shard; 0: endless), slow ("shard:milliseconds" or "all:milliseconds"), stuck
("shard:step:seconds"), nan ("shard:step"), lr, optimizer, bad_update (the global step whose update fails)
"""

import time

import tensorflow as tf
from steps import batch

import ps_train

tf1 = tf.compat.v1
OPTIMIZERS = {"sgd": tf1.train.GradientDescentOptimizer, "adam": tf1.train.AdamOptimizer}


def input_fn(context):
    shard = context.shard_index
    slow_shard, _, millis = str(context.params.get("slow", "-1:0")).partition(":")
    pause = float(millis) / 1000 if slow_shard in ("all", str(shard)) else 0.0
    stuck_shard, stuck_step, stuck_secs = map(int, str(context.params.get("stuck", "-1:0:0")).split(":"))
    nan_shard, _, nan_step = str(context.params.get("nan", "-1:0")).partition(":")
    counts = [int(count) for count in str(context.params.get("batches", 0)).split(":")]
    count = counts[shard % len(counts)]

    def make(step):
        time.sleep(pause)
        if (stuck_shard, stuck_step) == (shard, int(step)):
            time.sleep(stuck_secs)
        x, y = batch(shard, int(step))
        is_bad = int(nan_shard) == shard and int(nan_step) == int(step)
        return (x * float("nan") if is_bad else x), y

    steps = tf.data.Dataset.range(count or 10**9)
    points = steps.map(lambda step: tf.numpy_function(make, [step], (tf.float64, tf.float64)))
    return points.map(lambda x, y: (tf.ensure_shape(x, [4, 2]), tf.ensure_shape(y, [4])))


def model_fn(features, labels, mode, params):
    w = tf1.get_variable("w", [2], tf.float64, tf1.zeros_initializer())
    b = tf1.get_variable("b", [], tf.float64, tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(features, w) + b - labels))
    rate = float(params.get("lr", 0.0625))
    if "bad_update" in params:
        step = tf1.train.get_global_step()
        with tf.control_dependencies([tf1.Assert(step < params["bad_update"], ["no rate for", step])]):
            rate = tf.constant(rate)
    optimizer = OPTIMIZERS[params.get("optimizer", "sgd")](rate)
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer)
