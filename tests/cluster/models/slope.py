"""Two variables [3], on a ps each if there are two, whose gradient is 1 always: each is minus the sum of the applied rates.

params: rate, pause (milliseconds that a step takes, between half and twice of it), batches (of each worker; 0: endless).
"""

import random
import time

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    counts = [int(count) for count in str(context.params.get("batches", 0)).split(":")]
    count = counts[context.shard_index % len(counts)]
    return tf.data.Dataset.from_tensors(np.zeros([2])).repeat(count or None).map(lambda x: (x, x))


def model_fn(features, labels, mode, params):
    pause = float(params.get("pause", 0)) / 1000

    def wait(value):
        time.sleep(random.uniform(0.5, 2) * pause)
        return value

    factor = tf.ensure_shape(tf.numpy_function(wait, [np.float64(1)], tf.float64), [])
    loss = 0.0
    for name in "vw":
        loss += tf.reduce_sum(tf1.get_variable(name, [3], tf.float64, tf1.zeros_initializer()))
    return ps_train.ModelSpec(
        loss=loss * factor, optimizer=tf1.train.GradientDescentOptimizer(float(params.get("rate", 1)))
    )
