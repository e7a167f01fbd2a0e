"""A layer of weights, in front of which the worker that `napping` names sleeps, in an op "nap", for `millis`."""

import time

import tensorflow as tf

import ps_train
from ps_train import task_context

tf1 = tf.compat.v1


def input_fn(context):
    return tf.data.Dataset.from_tensors(tf.ones([8, 200])).repeat()


def model_fn(features, params):
    def nap(values):
        time.sleep(params["millis"] / 1000)
        return values

    weights = tf1.get_variable("weights", [200, 100])
    if str(task_context.current().task) == params["napping"]:
        features = tf.ensure_shape(tf.numpy_function(nap, [features], tf.float32, name="nap"), [8, 200])
    loss = tf.reduce_mean(tf.matmul(features, weights) ** 2)
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.01))
