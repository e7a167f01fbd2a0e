"""Two variables [3], on a ps each if there are two, whose gradient is 1 always: each is minus the sum of the applied rates.

params: parts (of the variable v, by its partitioner), own (a train_op of the model's own), rate, pause (milliseconds that a step takes, between half and twice of it), slow ("shard:times": one that takes longer),
batches (of each worker; 0: endless), gather ("workers:directory": nobody ends its first step before all have begun theirs), summary (of the shard).
"""

import pathlib
import random
import time

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    counts = [int(count) for count in str(context.params.get("batches", 0)).split(":")]
    count = counts[context.shard_index % len(counts)]
    shard = tf.data.Dataset.from_tensors(np.int64(context.shard_index))
    return shard.repeat(count or None).map(lambda x: (x, x))


def model_fn(features, labels, mode, params):
    slow, _, times = str(params.get("slow", "-1:1")).partition(":")

    num, _, directory = str(params.get("gather", "0:")).partition(":")

    def wait(shard):
        if int(num) and not (mine := pathlib.Path(directory, f"{shard}.begun")).exists():
            mine.touch()
            while len(list(mine.parent.glob("*.begun"))) < int(num):
                time.sleep(0.01)
        pause = float(params.get("pause", 0)) / 1000 * (float(times) if shard == int(slow) else 1)
        time.sleep(random.uniform(0.5, 2) * pause)
        return np.float64(1)

    if params.get("summary"):
        tf1.summary.scalar("shard", features)
    factor = tf.ensure_shape(tf.numpy_function(wait, [features], tf.float64), [])
    loss = 0.0
    for name in "vw":
        parts = int(params.get("parts", 1)) if name == "v" else 1
        partitioner = tf1.fixed_size_partitioner(parts) if parts > 1 else None
        variable = tf1.get_variable(name, [3], tf.float64, tf1.zeros_initializer(), partitioner=partitioner)
        loss += tf.reduce_sum(tf.convert_to_tensor(variable))
    if params.get("own"):
        optimizer = ps_train.DistributedOptimizer(
            tf1.train.GradientDescentOptimizer(float(params.get("rate", 1)))
        )
        step = tf1.train.get_global_step()
        return ps_train.ModelSpec(loss=loss, train_op=optimizer.minimize(loss * factor, global_step=step))
    return ps_train.ModelSpec(
        loss=loss * factor, optimizer=tf1.train.GradientDescentOptimizer(float(params.get("rate", 1)))
    )
