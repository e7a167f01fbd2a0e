"""The models of the contest and their data, as numbers: every contestant makes its own framework's tensors of them.

    net = NETS["mlp"]                          # batch, learning rate
    for name, shape in net.variables: ...      # w0 [784, 512], b0 [512], w1 ...
    features, labels = fixed_batch("mlp", 1)   # worker 1's, the same in every run

- deep: 101 layers of 64x64, 202 variables, 1.7 MB, batch 32: many small variables;
- mlp: 784-512-512-10, 2.7 MB, batch 64;
- big: 1024-4096-4096-10, 84 MB, batch 32: bytes;
- cnn: two convolutions and two layers on Fashion-MNIST, 0.5 MB, batch 64: arithmetic.

A kernel of four dimensions is a 5x5 convolution, then ReLU and 2x2 max pooling; one of two is a layer, with ReLU but for the
last. The loss is the mean softmax cross-entropy; kernels start as Glorot's uniform numbers, biases as zeros; plain SGD.

The cnn's pictures come from a file of records, a byte of label and 28 x 28 of pixels (`write_records`), which needs no package
to be read; worker i of n takes every nth record. The others train on one batch of random numbers, again and again.
"""

from typing import NamedTuple

import numpy as np

SIDE = 28
RECORD_BYTES = 1 + SIDE * SIDE


class Net(NamedTuple):
    """A model's kernels, from the input on; the batch of a worker; the rate of SGD."""

    kernels: list
    batch: int
    learning_rate: float

    @property
    def variables(self):
        """(name, shape) of each, kernels and biases in turn."""
        for index, shape in enumerate(self.kernels):
            yield f"w{index}", shape
            yield f"b{index}", shape[-1:]


def _dense(*widths):
    return [list(shape) for shape in zip(widths, widths[1:], strict=False)]


NETS = {
    "deep": Net(_dense(*[64] * 102), 32, 1e-4),
    "mlp": Net(_dense(784, 512, 512, 10), 64, 1e-4),
    "big": Net(_dense(1024, 4096, 4096, 10), 32, 1e-4),
    "cnn": Net([[5, 5, 1, 16], [5, 5, 16, 32], *_dense(7 * 7 * 32, 64, 10)], 64, 0.05),
}


def fixed_batch(name, worker):
    """(float32 `[batch, width]` in 0-1, int64 zeros `[batch]`): what a worker trains a dense net on."""
    net = NETS[name]
    features = np.random.default_rng(worker).random((net.batch, net.kernels[0][0]), np.float32)
    return features, np.zeros(net.batch, np.int64)


def write_records(path, images, labels):
    """Writes the records of pictures uint8 `[n, 28, 28]` with labels below 256."""
    rows = np.concatenate([labels.astype(np.uint8)[:, np.newaxis], images.reshape(len(images), -1)], axis=1)
    path.write_bytes(rows.tobytes())


def read_records(path):
    """(pictures float32 `[n, 28, 28, 1]` in 0-1, labels int64 `[n]`)."""
    rows = np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES)
    return rows[:, 1:].reshape(-1, SIDE, SIDE, 1).astype(np.float32) / 255, rows[:, 0].astype(np.int64)
