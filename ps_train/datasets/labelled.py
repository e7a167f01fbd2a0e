"""The form in which every reader of this package gives its data."""

from typing import NamedTuple

import numpy as np


class LabelledImages(NamedTuple):
    """Images and their classes, example by example."""

    images: np.ndarray  # [n, ...]
    labels: np.ndarray  # [n], int64
