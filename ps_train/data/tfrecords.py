"""TFRecord files, plain or compressed, as batches.

features = {"image": tf.io.FixedLenFeature([784], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
data = from_tfrecords(context, "data/train-*.tfrecord", features=features, label="label")
data = from_tfrecords(context, "data/train-*.tfrecord", parse_fn=lambda record: (decode(record), label_of(record)))
"""

import functools

from ps_train.compat import tf, tf1
from ps_train.data import files as file_access
from ps_train.data import records
from ps_train.data.broken import Broken
from ps_train.data.order import Order
from ps_train.data.sharding import share_files
from ps_train.errors import ModelError
from ps_train.explain import cause
from ps_train.model.spec import describe
from ps_train.wording import did_you_mean, shown


def from_tfrecords(
    context,
    files,
    features=None,
    label=None,
    parse_fn=None,
    *,
    compression="auto",
    shard_by="auto",
    shuffle_buffer=10_000,
    repeat=True,
    on_broken="fail",
):
    """A dataset of batches of a worker's records; what they are is told by `features` or by `parse_fn`, one of them.

    >>> from_tfrecords(ps_train.InputContext(), "nowhere/*.tfrecord", parse_fn=lambda record: record)
    Traceback (most recent call last):
    ps_train.errors.ModelError: No file matches nowhere/*.tfrecord on this host. Check the path: it is relative to ...

    Args:
      context: what `input_fn` gets.
      files: a path, a glob, or a list of them.
      features: name -> `tf.io.FixedLenFeature` and the like, of a `tf.train.Example`: (dict of features, label) come of it.
      label: the name of the one that is the label; None: there is none.
      parse_fn: string scalar -> (features, label), for one record.
      compression: 'auto' (by the files' first bytes: none or gzip), '', 'GZIP' or 'ZLIB'.
      shard_by: 'auto', 'file', 'record', or 'none' (every worker reads all); see `ps_train.data.sharding`.
      shuffle_buffer: records, in mode "train"; 0: in their own order.
      repeat: in mode "train": True (for ever), False (one pass), or a number of passes.
      on_broken: 'fail', or 'skip' what is broken and count it in the log. What follows a corrupt record in its file cannot be
        read, and is left out with it.

    Returns:
      A `tf.data.Dataset`.

    Raises:
      ModelError: what is wrong with an argument or a file, in a line; while the data is read, with the record's number.
    """
    _check_parsing(features, label, parse_fn)
    file_access.check_compression(compression)
    order, broken = Order(context, shuffle_buffer, repeat), Broken(on_broken)
    paths = file_access.find_files(files)
    plan = share_files([file_access.size_of(path) for path in paths], context, shard_by, order)
    form = records.Format(_read, ("",), _reasons)
    data = records.read_batches(paths, compression, plan, order, form, broken, parse_fn)
    if parse_fn is None:
        parse = functools.partial(_parse, features, label)
        data = data.map(parse, tf.data.AUTOTUNE, deterministic=True)
    return order.finish(data, plan.reader)


def _check_parsing(features, label, parse_fn):
    if (features is None) == (parse_fn is None):
        raise ModelError(
            f"{'Neither' if features is None else 'Both'} of features and parse_fn {'is' if features is None else 'are'} given; "
            "one of them is expected. Name the features of a tf.train.Example, or pass a function of a record."
        )
    if parse_fn is not None:
        if label is not None or not callable(parse_fn):
            what = f"label={shown(label)}" if callable(parse_fn) else f"parse_fn is {describe(parse_fn)}"
            raise ModelError(
                f"{what}; a parse_fn is a function that gives (features, label). Leave out label."
            )
    elif not isinstance(features, dict):
        raise ModelError(
            f"features is {describe(features)}; a dict of tf.io.FixedLenFeature and the like is expected."
        )
    elif label is not None and label not in features:
        raise ModelError(
            f"label={shown(label)} is not among the features {', '.join(features)}. "
            f"{did_you_mean(str(label), features)}Add it to them."
        )


def _parse(features, label, serialized):
    parsed = tf.io.parse_example(serialized, features)
    return parsed if label is None else (parsed, parsed.pop(label))


def _read(path, compression):
    return tf.data.Dataset.zip((tf.data.TFRecordDataset(path, compression, buffer_size=2**20),))


def _reasons(path, compression, numbers):
    """The first of them is where the file is broken."""
    options = tf1.io.TFRecordOptions(compression_type=compression)
    what = "it cannot be read"
    count = 0
    try:
        for _ in tf1.io.tf_record_iterator(path, options):
            count += 1
    except tf.errors.OpError as error:
        what = cause(error).split(";")[0]
    if count == 0:
        kind = {"": "no TFRecord file", "GZIP": "no gzipped TFRecord file"}.get(
            compression, f"no TFRecord file with compression={compression!r}"
        )
        return {numbers[0]: f"record 1 is broken, or it is {kind} at all: {what}"}
    return {numbers[0]: f"record {numbers[0] + 1} is broken, and what follows cannot be read: {what}"}
