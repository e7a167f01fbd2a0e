"""The embedded digits, and the IDX reader on tiny files: good ones, and each way to be bad."""

import gzip
import struct

import numpy as np
import pytest

from ps_train import datasets
from ps_train.datasets import idx
from ps_train.errors import UsageError


def idx_bytes(array, magic=None):
    magic = 0x0800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def directory(tmp_path):
    """Six training and three held-out pictures of 2x3 pixels."""
    for names, count in ((idx.TRAIN_FILES, 6), (idx.TEST_FILES, 3)):
        images = np.arange(count * 6).reshape(count, 2, 3)
        (tmp_path / names[0]).write_bytes(gzip.compress(idx_bytes(images)))
        (tmp_path / names[1]).write_bytes(gzip.compress(idx_bytes(np.arange(count) % 10)))
    return tmp_path


def error_of(directory):
    with pytest.raises(UsageError) as caught:
        datasets.load_idx_images(str(directory))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_digits_are_split_the_same_way_every_time():
    train, test = datasets.load_digits()
    assert train.images.shape == (1497, 64) and test.images.shape == (300, 64)
    assert train.images.dtype == np.float32 and train.labels.dtype == np.int64
    assert train.images.min() == 0.0 and train.images.max() == 1.0
    assert test.labels[:6].tolist() == [0, 6, 2, 8, 4, 0]
    for part in (train, test):
        counts = np.bincount(part.labels, minlength=10)
        assert counts.min() > 0.07 * len(part.labels)


def test_idx_files_are_read_as_written(directory):
    train, test = datasets.load_idx_images(str(directory))
    np.testing.assert_array_equal(train.images, np.arange(36).reshape(6, 2, 3))
    assert train.images.dtype == np.uint8
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert test.images.shape == (3, 2, 3) and test.labels.tolist() == [0, 1, 2]


def test_missing_files_are_all_named_with_a_source(directory):
    for name in idx.TEST_FILES:
        (directory / name).unlink()
    assert error_of(directory) == (
        f"Data directory {directory} lacks t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz. Name the directory "
        "that holds these IDX files. Debian's package dataset-fashion-mnist, for one, installs Fashion-MNIST's in "
        "/usr/share/datasets/fashion-mnist."
    )


def test_a_missing_directory_is_said_to_be_missing(tmp_path):
    assert error_of(tmp_path / "nowhere").startswith(
        f"Data directory {tmp_path / 'nowhere'} does not exist; expected there: train-images-idx3-ubyte.gz, "
    )


def test_a_truncated_gzip_file(directory):
    path = directory / idx.TRAIN_FILES[0]
    path.write_bytes(path.read_bytes()[:-9])
    assert error_of(directory).startswith(f"{path} is no complete gzip file (")
    path.write_bytes(b"<html>not found</html>")
    assert error_of(directory) == (
        f"{path} is no complete gzip file (Not a gzipped file (b'<h')). Copy or install it again."
    )


def test_a_file_of_another_kind(directory):
    path = directory / idx.TRAIN_FILES[0]
    path.write_bytes((directory / idx.TRAIN_FILES[1]).read_bytes() + gzip.compress(b"12345678"))
    assert error_of(directory) == (
        f"{path} begins with the magic number 0x00000801; 0x00000803 is expected (bytes in 3 dimensions). "
        "Check that the file is what its name says."
    )


def test_too_little_or_too_much_data(directory):
    path = directory / idx.TRAIN_FILES[1]
    path.write_bytes(gzip.compress(idx_bytes(np.arange(6))[:-2]))
    assert error_of(directory) == (
        f"{path} holds 4 bytes of data; its header promises 6 (6). Copy or install it again."
    )
    path.write_bytes(gzip.compress(b"\0\0\x08"))
    assert error_of(directory) == f"{path} has 3 bytes, less than an IDX header. Copy or install it again."


def test_files_that_do_not_belong_together(directory):
    (directory / idx.TEST_FILES[1]).write_bytes(gzip.compress(idx_bytes(np.arange(4))))
    assert error_of(directory) == (
        f"t10k-images-idx3-ubyte.gz has 3 images but t10k-labels-idx1-ubyte.gz has 4 labels in {directory}; "
        "as many of both are expected. Get both files from the same source."
    )
