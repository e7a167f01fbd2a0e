"""Input helpers on tf.data for the usual kinds of files: each gives a worker its shard, shuffled, repeated and batched.

    def input_fn(context):
        return ps_train.data.from_csv(context, "flights/*.csv", label="arr_delay", columns={"distance": 0.0, "dest": ""})

| helper | reads | gives |
|---|---|---|
| `from_csv` | CSV files with a header, `.gz` too | (dict of columns `[batch]`, labels `[batch]`) |
| `from_image_folder` | PNG, JPEG, BMP and GIF, a folder for each class | (images `[batch, height, width, 3]`, labels int64 `[batch]`) |
| `from_numpy` | arrays in memory, or `.npy` files mapped into it | (features, labels), rows of them `[batch, ...]` |
| `from_tfrecords` | TFRecord files, compressed too | what a spec or a function makes of a record, batched |

1. Workers divide the data among them, each record going to one of them: by file, where there are enough of even sizes; else by
   record (`shard_by`). A line in the task's log says which.
2. In mode "train" files and records are shuffled by `context.seed`, and repeated for ever (`shuffle_buffer`, `repeat`). Without
   `repeat` the job ends when every worker's part is used up; in sync, workers with less data leave early in the last pass.
   In the other modes it is one pass in the order of names and lines.
3. A broken record ends the task with a line that names its file, or is left out and counted (`on_broken="skip"`).

>>> import numpy as np
>>> ps_train.data.from_numpy(ps_train.InputContext(batch_size=32), np.zeros([100, 3])).element_spec
TensorSpec(shape=(None, 3), dtype=tf.float64, name=None)

What comes back is a `tf.data.Dataset` of batches: `map` it for what else is to be done. With --input=workqueue two of them cannot
be zipped, as each reads pieces of its own: give `from_numpy` all arrays at once. One after the other, by `concatenate`, is fine.
"""

import importlib

_HOMES = {
    "class_names": "images",
    "from_csv": "csv_files",
    "from_image_folder": "images",
    "from_numpy": "arrays",
    "from_tfrecords": "tfrecords",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOMES])
