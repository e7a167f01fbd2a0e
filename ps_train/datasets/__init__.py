"""Small real data for the built-in model and the examples; NumPy only.

>>> from ps_train import datasets
>>> train, test = datasets.load_digits()
>>> train.images.shape, test.images.shape, train.labels[:4]
((1497, 64), (300, 64), array([1, 2, 3, 4]))

`load_idx_images(directory)` reads MNIST-like data (four .gz files in IDX format) in the same form.
"""

from ps_train.datasets.digits import load_digits
from ps_train.datasets.idx import load_idx_images
from ps_train.datasets.labelled import LabelledImages

__all__ = ["LabelledImages", "load_digits", "load_idx_images"]
