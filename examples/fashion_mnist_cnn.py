"""A small convolutional network on Fashion-MNIST. Its input is that of fashion_mnist_mlp.py, beside this file.

On this machine, with one ps and two workers that average their gradients:

    python -m ps_train --model=examples/fashion_mnist_cnn.py --update=sync --batch_size=64 \
        --train_steps=1000 --train_dir=runs/cnn

On hosts, one command each (host0 is the ps, the others are workers 0 and 1):

    python -m ps_train --job_name=worker --task_index=0 --update=sync --batch_size=64 \
        --ps_hosts=host0:2222 --worker_hosts=host1:2222,host2:2222 \
        --model=examples/fashion_mnist_cnn.py --train_steps=1000 --train_dir=/shared/cnn

Accuracy on the 10000 held-out pictures:

    python -m ps_train eval --model=examples/fashion_mnist_cnn.py --train_dir=runs/cnn

Measured once, all three tasks on two shared cores: 87.3% after 1000 steps of 2 x 64 pictures in 36 s of training.

params: data_dir, learning_rate (0.001), dropout (0.25)
"""

import tensorflow as tf
from fashion_mnist_mlp import dense, input_fn

import ps_train

__all__ = ["input_fn", "model_fn"]

tf1 = tf.compat.v1


def conv_and_pool(inputs, filters, name):
    """5x5 convolution, ReLU, 2x2 max pooling: [batch, h, w, c] to [batch, h/2, w/2, filters]."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [5, 5, inputs.shape[-1], filters])
        biases = tf1.get_variable("biases", [filters], initializer=tf1.zeros_initializer())
        net = tf.nn.relu(tf.nn.conv2d(inputs, kernel, strides=1, padding="SAME") + biases)
        return tf.nn.max_pool2d(net, 2, 2, padding="SAME")


def model_fn(features, labels, mode, params):
    """Two convolutions and a hidden layer with dropout; trained with Adam."""
    net = conv_and_pool(features[..., tf.newaxis], 16, "conv_1")
    net = conv_and_pool(net, 32, "conv_2")
    net = tf.nn.relu(dense(tf.reshape(net, [-1, 7 * 7 * 32]), 64, "hidden"))
    if mode == "train":
        net = tf.nn.dropout(net, rate=params.get("dropout", 0.25))
    logits = dense(net, 10, "logits")
    predictions = tf.argmax(logits, 1)
    if mode == "predict":
        return ps_train.ModelSpec(predictions=predictions)
    return ps_train.ModelSpec(
        loss=tf1.losses.sparse_softmax_cross_entropy(labels, logits),
        optimizer=tf1.train.AdamOptimizer(params.get("learning_rate", 0.001)),
        predictions=predictions,
        metrics={"accuracy": tf1.metrics.accuracy(labels, predictions)},
    )
