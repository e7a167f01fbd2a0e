"""The embedded digits against their source, which takes a second to import and so is not in the pure tier."""

import numpy as np
import pytest

from ps_train import datasets


def test_the_digits_are_those_of_scikit_learn():
    source = pytest.importorskip("sklearn.datasets").load_digits()
    train, test = datasets.load_digits()
    is_test = np.arange(len(source.target)) % (len(source.target) // len(test.labels) + 1) == 0
    for part, rows in ((train, ~is_test), (test, is_test)):
        np.testing.assert_array_equal(part.images * 16, source.data[rows])
        np.testing.assert_array_equal(part.labels, source.target[rows])
