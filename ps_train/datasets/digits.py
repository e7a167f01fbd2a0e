"""The 1797 handwritten digits that come with the package (see README.md here for their origin)."""

import os

import numpy as np

from ps_train.datasets.labelled import LabelledImages

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.npz")
_EVERY_NTH_IS_HELD_OUT = 6


def load_digits() -> tuple[LabelledImages, LabelledImages]:
    """(train, test): 1497 and 300 digits, images float32 `[n, 64]` in 0-1, labels int64 `[n]` in 0-9.

    Every sixth digit, from the first, is held out: the file is ordered by writer, and both parts know all.
    """
    with np.load(_FILE) as digits:
        images = digits["images"].astype(np.float32) / 16.0
        labels = digits["labels"].astype(np.int64)
    held_out = np.arange(len(labels)) % _EVERY_NTH_IS_HELD_OUT == 0
    return (
        LabelledImages(images[~held_out], labels[~held_out]),
        LabelledImages(images[held_out], labels[held_out]),
    )
