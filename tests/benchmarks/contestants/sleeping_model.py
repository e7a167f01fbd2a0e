"""A model whose arithmetic is a sleep: `python -m ps_train --model=sleeping_model.py --model_params=kb=1000,parts=16,secs=0.5`.

Each step pulls all variables, sleeps and pushes a gradient for each of their elements, so that what a cluster makes of its links
can be seen on a machine with fewer processors than workers.

params: kb, of all variables together; parts, the number of variables; secs, of the sleep
"""

import time

import numpy as np
import tensorflow as tf
import tf_nets

import ps_train

tf1 = tf.compat.v1
SLOPE = 1e-3


def input_fn(context):
    """Nothing that matters, for ever."""
    return tf.data.Dataset.from_tensors((np.zeros([1, 1], np.float32), np.zeros([1], np.int64))).repeat()


def model_fn(features, labels, params):
    """The loss is a slope, down which all variables go."""
    size = params["kb"] * 1000 // 4 // params["parts"]
    values = [
        tf1.get_variable(f"v{number}", [size], initializer=tf1.ones_initializer())
        for number in range(params["parts"])
    ]

    def sleep():
        time.sleep(params["secs"])
        return np.float32(SLOPE)

    with tf.control_dependencies([value + 0.0 for value in values]):
        slope = tf.numpy_function(sleep, [], tf.float32, stateful=True)
        slope.set_shape([])
    loss = tf.add_n([tf.reduce_sum(value) for value in values]) * slope / size
    optimizer = tf1.train.GradientDescentOptimizer(float(size))
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer, training_hooks=[tf_nets.ProgressHook(loss)])
