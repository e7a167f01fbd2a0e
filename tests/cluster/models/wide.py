"""80 kB of variables and quick steps, for checkpoints on a small disk."""

import time

import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    def pause(number):
        time.sleep(0.005)
        return number

    numbers = tf.data.Dataset.range(10**9)
    return numbers.map(lambda i: tf.ensure_shape(tf.numpy_function(pause, [i], tf.int64), []))


def model_fn(features):
    w = tf1.get_variable("w", [20000], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w - 1.0)) + 0.0 * tf.cast(features, tf.float32)
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.1))
