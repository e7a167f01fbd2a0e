"""Variables of many types, whose initial values are each worker's own; a hook writes all of them to the directory `out` at the end.

params: out; rate (of the optimizer; with later, up to step 30, and `later` from then on); shape ("unknown": a trained variable of no full shape).
"""

import os

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1
KINDS = "bfloat16 float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"


def input_fn(context):
    return tf.data.Dataset.from_tensors((np.float32(1), np.float32(1))).repeat()


def own(dtype, shape=(3,)):
    """Other values in each process."""
    numbers = np.frombuffer(os.urandom(3), np.uint8) % 100
    return tf.cast(tf.reshape(tf.constant(numbers, tf.float64), shape), dtype)


class Dump(tf1.train.SessionRunHook):
    def __init__(self, path):
        self.path = path

    def begin(self):
        self.values = {v.op.name: _readable(v) for v in tf1.global_variables()}

    def end(self, session):
        np.savez(self.path, **session.run(self.values))


def _readable(variable):
    value = variable.read_value()
    return tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value


def model_fn(features, labels, mode, params):
    shape = tf.TensorShape(None) if params.get("shape") == "unknown" else [3]
    trained = [
        tf1.get_variable("b", initializer=lambda: own(tf.bfloat16)),
        tf1.get_variable("e", initializer=lambda: own(tf.float32)),
        tf1.Variable(lambda: own(tf.float32), name="f", validate_shape=False, shape=shape),
    ]
    for kind in KINDS.split():
        tf1.get_variable(kind, initializer=lambda kind=kind: own(tf.as_dtype(kind)), trainable=False)
    loss = tf.add_n([tf.reduce_sum(tf.cast(variable, tf.float32)) for variable in trained]) * features
    rate = float(params.get("rate", 0.5))
    if "later" in params:
        step = tf1.train.get_global_step()
        rate = tf.cond(step < 30, lambda: tf.constant(0.5), lambda: tf.constant(float(params["later"])))
    optimizer = tf1.train.MomentumOptimizer(rate, 0.9)
    dump = Dump(os.path.join(params["out"], f"{os.getpid()}.npz"))
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer, training_hooks=[dump])
