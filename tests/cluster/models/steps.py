"""Batches of the model `line` and the plain answer to its training, in NumPy."""

import numpy as np


def batch(shard, step):
    """Points [4, 2] and labels [4] of one batch."""
    number = np.arange(8.0).reshape(4, 2)
    x = np.sin(1 + 1.7 * number + 0.9 * shard + 0.31 * step)
    return x, x @ [2.0, -3.0] + 0.5


def local_trajectory(shards, rounds, lr=0.0625):
    """(w, b) after rounds of local SGD, each a list of batches, with each of which every shard makes a step of its own."""
    w, b = np.zeros(2), 0.0
    for numbers in rounds:
        ends = []
        for shard in range(shards):
            own_w, own_b = w, b
            for number in numbers:
                x, y = batch(shard, number)
                error = x @ own_w + own_b - y
                own_w, own_b = own_w - lr * 2 * x.T @ error / len(x), own_b - lr * 2 * error.mean()
            ends.append((own_w, own_b))
        w, b = sum(end for end, _ in ends) / shards, sum(end for _, end in ends) / shards
    return w, b


def trajectory(shards, steps, lr=0.0625, batches=1, delay=0):
    """(w, b) after `steps` updates with the mean of the gradients of `batches` batches of each shard.

    A gradient is of the weights of `delay` updates before.
    """
    w, b = np.zeros(2), 0.0
    seen = [(w, b)] * (delay + 1)
    for step in range(steps):
        gradients = []
        old_w, old_b = seen[-1 - delay]
        for shard in range(shards):
            for number in range(step * batches, (step + 1) * batches):
                x, y = batch(shard, number)
                error = x @ old_w + old_b - y
                gradients.append((2 * x.T @ error / len(x), 2 * error.mean()))
        w = w - lr * sum(g for g, _ in gradients) / len(gradients)
        b = b - lr * sum(g for _, g in gradients) / len(gradients)
        seen.append((w, b))
    return w, b
