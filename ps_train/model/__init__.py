"""The contract with the user's model: two functions in a file or module, loaded, called and checked here.

A model file defines `input_fn` and `model_fn`; there is no base class to inherit:

    import tensorflow as tf
    import ps_train

    tf1 = tf.compat.v1

    def input_fn(context):  # context: an InputContext
        data = tf.data.Dataset.range(1000).shard(context.num_shards, context.shard_index)
        data = data.repeat().shuffle(100, context.seed).batch(context.batch_size)
        return data.map(lambda i: (tf.cast(i, tf.float32), 2.0 * tf.cast(i, tf.float32)))

    def model_fn(features, labels, mode, params):  # mode and params may be left out, as with Estimator
        w = tf1.get_variable("w", [])
        loss = tf.reduce_mean(tf.square(w * features - labels))
        return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.AdamOptimizer(params.get("lr", 0.1)))

In every worker, and in the evaluator:

1. `load_model(path)` imports the file and checks both signatures; no graph exists yet.
2. `call_input_fn(model, context)` gives the dataset, `split_element` what one of its elements is.
3. `call_model_fn(model, features, labels, mode, params)` gives a validated `ModelSpec`.

Whatever goes wrong in the user's code becomes a one-line `ModelError` that names the user's file and line,
with the original exception as its cause. This package needs no TensorFlow.
"""

from ps_train.model.blame import user_code
from ps_train.model.calling import blaming_result, call_input_fn, call_model_fn, split_element
from ps_train.model.loading import Model, load_model, mentions
from ps_train.model.spec import InputContext, ModeKeys, ModelSpec, WatchedContext, worker_seed

__all__ = [
    "InputContext",
    "ModeKeys",
    "Model",
    "ModelSpec",
    "WatchedContext",
    "blaming_result",
    "call_input_fn",
    "call_model_fn",
    "load_model",
    "mentions",
    "split_element",
    "user_code",
    "worker_seed",
]
