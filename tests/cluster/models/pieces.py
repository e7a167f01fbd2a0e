"""Counts the records that were trained on: each step adds a line with its record's ids to a file of the worker's process.

params: how (csv: `files`; numpy: `count` rows; pieces: `count` records in pieces of `size`), seen (directory), repeat, slow
("worker:milliseconds" or "all:milliseconds" of each step), shuffle_buffer, zip (numpy: 1: with itself), nap
(numpy: milliseconds that a batch takes)
"""

import os
import time

import numpy as np
import tensorflow as tf

import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    params = context.params
    repeat = params.get("repeat", True)
    if params["how"] == "csv":
        options = {"shuffle_buffer": params.get("shuffle_buffer", 1000)}
        return ps_train.data.from_csv(
            context, params["files"], columns={"id": 0}, repeat=repeat, **options
        ).map(lambda row: row["id"])
    if params["how"] == "numpy":
        parts = [
            ps_train.data.from_numpy(context, np.arange(params["count"]), repeat=repeat)
            for _ in range(1 + params.get("zip", 0))
        ]
        if params.get("nap"):
            return parts[0].map(
                lambda x: tf.ensure_shape(tf.numpy_function(nap, [x, params["nap"]], x.dtype), x.shape)
            )
        return parts[0] if len(parts) == 1 else tf.data.Dataset.zip(tuple(parts)).map(lambda x, _: x)
    size = params["size"]
    numbers = context.pieces(params["count"] // size, repeat)
    return numbers.flat_map(lambda piece: tf.data.Dataset.range(piece * size, (piece + 1) * size)).batch(
        context.batch_size
    )


def nap(batch, millis):
    time.sleep(millis / 1000)
    return batch


class Seen(tf1.train.SessionRunHook):
    """Writes what a step was made of, once it is done."""

    def __init__(self, ids, params):
        worker = ps_train.task_context.current().replica
        name, _, millis = str(params.get("slow", "-1:0")).partition(":")
        self._pause = float(millis) / 1000 if name in ("all", str(worker)) else 0.0
        self._ids = ids
        self._path = os.path.join(params["seen"], f"{worker}.{os.getpid()}")

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._ids)

    def after_run(self, run_context, run_values):
        with open(self._path, "a") as file:
            file.write(" ".join(map(str, run_values.results)) + "\n")
        time.sleep(self._pause)


def model_fn(features, labels, mode, params):
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    loss = tf.square(w - tf.reduce_mean(tf.cast(features, tf.float32)))
    optimizer = tf1.train.GradientDescentOptimizer(1e-6)
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer, training_hooks=[Seen(features, params)])
