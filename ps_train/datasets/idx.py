"""Reader of MNIST-like data: four gzipped IDX files in a directory, as MNIST and Fashion-MNIST come.

    train, test = load_idx_images("/usr/share/datasets/fashion-mnist")

An IDX file is a big-endian uint32 magic number (0x0803: unsigned bytes in 3 dimensions, 0x0801: in 1), a uint32
per dimension, then the bytes. Source: http://yann.lecun.com/exdb/mnist, "FILE FORMATS FOR THE MNIST DATABASE".
"""

import gzip
import os
import struct
import zlib

import numpy as np

from ps_train.datasets.labelled import LabelledImages
from ps_train.errors import UsageError

FASHION_MNIST_DIR = "/usr/share/datasets/fashion-mnist"
TRAIN_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST_FILES = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")

_IMAGES_MAGIC = 0x0803
_LABELS_MAGIC = 0x0801


def load_idx_images(directory: str) -> tuple[LabelledImages, LabelledImages]:
    """(train, test): images uint8 `[n, height, width]`, labels int64 `[n]`.

    Raises UsageError, in one line, if files are missing, truncated, not IDX, or do not belong together.
    """
    missing = [name for name in TRAIN_FILES + TEST_FILES if not os.path.isfile(os.path.join(directory, name))]
    if missing:
        state = "lacks" if os.path.isdir(directory) else "does not exist; expected there:"
        raise UsageError(
            f"Data directory {directory} {state} {', '.join(missing)}. Name the directory that holds these IDX "
            "files. Debian's package dataset-fashion-mnist, for one, installs Fashion-MNIST's in "
            f"{FASHION_MNIST_DIR}."
        )
    return _read_pair(directory, *TRAIN_FILES), _read_pair(directory, *TEST_FILES)


def _read_pair(directory: str, images_name: str, labels_name: str) -> LabelledImages:
    images = read_idx(os.path.join(directory, images_name), _IMAGES_MAGIC)
    labels = read_idx(os.path.join(directory, labels_name), _LABELS_MAGIC)
    if len(images) != len(labels):
        raise UsageError(
            f"{images_name} has {len(images)} images but {labels_name} has {len(labels)} labels in {directory}; "
            "as many of both are expected. Get both files from the same source."
        )
    return LabelledImages(images, labels.astype(np.int64))


def read_idx(path: str, magic: int) -> np.ndarray:
    """The uint8 array in one gzipped IDX file whose magic number must be `magic`; raises UsageError."""
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is no complete gzip file ({error}). Copy or install it again.") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}). Check the file and its permissions."
        ) from error
    num_dims = magic & 0xFF
    header = struct.Struct(f">{1 + num_dims}I")
    if len(content) < header.size:
        raise UsageError(
            f"{path} has {len(content)} bytes, less than an IDX header. Copy or install it again."
        )
    found_magic, *shape = header.unpack_from(content)
    if found_magic != magic:
        raise UsageError(
            f"{path} begins with the magic number 0x{found_magic:08x}; 0x{magic:08x} is expected (bytes in "
            f"{num_dims} dimension{'s' if num_dims > 1 else ''}). Check that the file is what its name says."
        )
    expected_bytes = int(np.prod(shape, dtype=np.int64))
    found_bytes = len(content) - header.size
    if found_bytes != expected_bytes:
        raise UsageError(
            f"{path} holds {found_bytes} bytes of data; its header promises {expected_bytes} "
            f"({' x '.join(map(str, shape))}). Copy or install it again."
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)
