"""The models of `nets` for ps_train's command line: `python -m ps_train --model=command_line_model.py --model_params=net=mlp`.

params: net; records (the file of the cnn's pictures)
"""

import tensorflow as tf
import tf_nets
from nets import NETS

import ps_train


def input_fn(context):
    """The worker's batches."""
    params = context.params
    return tf_nets.dataset(params["net"], context.num_shards, context.shard_index, params.get("records", ""))


def model_fn(features, labels, params):
    """The net, plain SGD."""
    loss = tf_nets.loss(features, labels, tf_nets.layers(params["net"], tf.compat.v1.get_variable))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(NETS[params["net"]].learning_rate)
    return ps_train.ModelSpec(loss=loss, optimizer=optimizer, training_hooks=[tf_nets.ProgressHook(loss)])
