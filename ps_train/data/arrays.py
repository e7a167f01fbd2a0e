"""NumPy arrays as batches: they stay outside the graph, whatever their size.

data = from_numpy(context, images, labels)                      # arrays, or dicts or tuples of them
data = from_numpy(context, "data/images.npy", "data/labels.npy")    # mapped into memory, read as needed
"""

import os

import numpy as np

from ps_train.compat import tf
from ps_train.data.calls import call, no_autograph
from ps_train.data.order import Order
from ps_train.data.sharding import share_rows
from ps_train.errors import ModelError
from ps_train.model.spec import describe
from ps_train.wording import shown


def from_numpy(context, features, labels=None, *, shard_by="row", shuffle_buffer=1, repeat=True):
    """A dataset of batches of a worker's rows.

    >>> import numpy as np
    >>> from_numpy(ps_train.InputContext(), np.zeros([3, 2]), np.zeros([4]))
    Traceback (most recent call last):
    ps_train.errors.ModelError: labels has 4 rows, and features has 3; as many of both are expected. Check that they belong ...

    Args:
      context: what `input_fn` gets.
      features: array `[n, ...]`, the path of an `.npy` file, or a dict or tuple of these.
      labels: the same; None: there are none.
      shard_by: 'row', or 'none' (every worker reads all).
      shuffle_buffer: 0 keeps the rows in their order in mode "train"; anything else permutes them as a whole.
      repeat: in mode "train": True (for ever), False (one pass), or a number of passes.

    Returns:
      A `tf.data.Dataset` of (features, labels), or of features alone; the structure is that of the arguments.

    Raises:
      ModelError: what is wrong with an argument, in a line.
    """
    if shard_by not in ("row", "none"):
        raise ModelError(f"shard_by={shown(shard_by)} is unknown; 'row' or 'none' is expected.")
    order = Order(context, shuffle_buffer, repeat)
    structure = features if labels is None else (features, labels)
    named = _named(structure, "features" if labels is None else "")
    arrays = [_as_array(value, name) for name, value in named]
    total = _check_lengths([name for name, _ in named], arrays)
    rows, reader = share_rows(np.arange(total), "row", context, shard_by, order)

    def gather(numbers):
        return [np.ascontiguousarray(array[rows[numbers]]) for array in arrays]

    @no_autograph
    def batch_of(numbers):
        dtypes, shapes = zip(
            *[(tf.as_dtype(array.dtype), [None, *array.shape[1:]]) for array in arrays], strict=True
        )
        values = call(gather, [numbers], list(dtypes), shapes)
        return tf.nest.pack_sequence_as(structure, values)

    data = order.row_batches(len(rows), reader)
    return order.finish(data.map(batch_of, tf.data.AUTOTUNE, deterministic=True), reader)


def _named(structure, root):
    """(name, leaf) in the order of `tf.nest.flatten`; `features['age']` for one in a dict."""
    if isinstance(structure, dict):
        return [
            pair
            for key in sorted(structure)
            for pair in _named(structure[key], f"{root or 'features'}[{key!r}]")
        ]
    if isinstance(structure, tuple):
        names = ("features", "labels") if not root else [f"{root}[{i}]" for i in range(len(structure))]
        return [pair for name, value in zip(names, structure, strict=True) for pair in _named(value, name)]
    return [(root, structure)]


def _as_array(value, name):
    if isinstance(value, (str, os.PathLike)):
        return _load(os.fspath(value), name)
    told = f"{name} is {describe(value)}; an array with a row for each example is expected"
    if tf.nest.is_nested(value):  # which `pack_sequence_as` would walk into
        raise ModelError(f"{told}: np.asarray makes one.")
    array = np.asarray(value)
    if array.dtype.kind not in "biufcSUO" or array.ndim == 0:
        raise ModelError(f"{told}.")
    return array


def _load(path, name):
    try:
        array = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise ModelError(f"{name}: file {path} does not exist. Check the path and the host.") from None
    except (ValueError, OSError, EOFError) as error:
        raise ModelError(
            f"{name}: {path} is no complete .npy file of numbers ({error}). Write it with np.save."
        ) from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        keys = f" with {', '.join(array.files)}" if hasattr(array, "files") else ""
        raise ModelError(
            f"{name}: {path} holds no single array{keys}; one with a row for each example is expected. Pass np.load(path)[name]."
        )
    return array


def _check_lengths(names, arrays):
    lengths = {name: len(array) for name, array in zip(names, arrays, strict=True)}
    if not lengths:
        raise ModelError("features holds no array; one at least is expected.")
    first = names[0]
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ModelError(
                f"{name} has {length} rows, and {first} has {lengths[first]}; as many of both are expected. Check that they "
                "belong together."
            )
    return lengths[first]
