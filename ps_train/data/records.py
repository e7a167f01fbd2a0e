"""Records of many files as one dataset: this worker's, in order or shuffled, broken ones noticed with their numbers.

Per file, each arrow being an op of tf.data:

    reader -> number the records -> pass over errors -> chunks -> look for gaps in the numbers -> keep this worker's rows

A reader that fails at a record goes on with the next one, as `CsvDataset` does, or ends, as `TFRecordDataset` does; `zip` counts
either way. A last row, put behind the file's own, shows a gap at its end.
"""

import functools
from typing import NamedTuple

import numpy as np

from ps_train.compat import tf
from ps_train.data import files as file_access
from ps_train.data.calls import call, no_autograph

CHUNK = 256  # records that are looked at together
CYCLE = 4  # files that are read in turns where the order does not matter


class Format(NamedTuple):
    """What differs between kinds of files.

    Attributes:
      read: (path, compression type), string tensors -> dataset of tuples of scalars.
      filler: such a tuple of any values.
      reasons: (path, compression type, numbers) -> {number: what is wrong with that record}; Python code. A number that
        it leaves out is that of nothing, as of a blank line.
      keep: tuple of vectors -> bool vector, or None: the rows that count.
      pick: numbers of the values that are wanted in the end, or None: all.
      check_end: (path) -> what is wrong with a file that was read to its end, or None; Python code.
    """

    read: object
    filler: tuple
    reasons: object
    keep: object = None
    check_end: object = None
    pick: object = None


def read_batches(paths, compression, plan, order, form, broken, parse=None):
    """A dataset of batches of the tuples of `form`.

    Args:
      paths: of all files.
      compression: 'auto', or a type.
      plan: sharding.Plan of this worker.
      order: Order.
      form: Format.
      broken: Broken.
      parse: what becomes of a record before it is in a batch, a function; None: it stays as it is.
    """
    read_file = functools.partial(_read_file, paths, compression, form, broken)
    if plan.reader is not None:
        if parse is not None:
            parse = tf.function(parse)  # AutoGraph converts it, as it would outside of a dataset's function
        read = functools.partial(_read_pieces, read_file, plan, order, parse)
        return plan.reader.batches(read, order.batch_size)
    numbers = tf.data.Dataset.from_tensor_slices(np.array(plan.files, np.int64))
    data = order.repeat(_read_files(functools.partial(read_file, plan), numbers, len(plan.files), order))
    return order.batch(data if parse is None else _parsed(data, parse))


def _read_files(read_file, numbers, count, order):
    """A dataset of the records of `count` files, by their numbers."""
    numbers = order.shuffle(numbers, buffer=max(count, 1))
    cycle = min(CYCLE, max(count, 1)) if order.buffer else 1
    chunks = numbers.interleave(no_autograph(read_file), cycle, num_parallel_calls=cycle, deterministic=True)
    return order.shuffle(chunks.prefetch(2).unbatch())


def _read_pieces(read_file, plan, order, parse, pieces):
    """The same of pieces of a work queue: files, or one part of the records of all files."""
    if plan.way == "file":
        numbers, count = tf.data.Dataset.from_tensor_slices(pieces), CYCLE
    else:
        plan = plan._replace(shard_index=pieces[0])
        numbers, count = tf.data.Dataset.range(len(plan.files)), len(plan.files)
    data = _read_files(functools.partial(read_file, plan), numbers, count, order)
    return data if parse is None else _parsed(data, parse)


def _parsed(data, parse):
    return data.map(parse, tf.data.AUTOTUNE, deterministic=True)


def _read_file(paths, compression, form, broken, plan, number):
    """The chunks of one file."""

    def opened(number):
        path = paths[number]
        found = file_access.compression_of(path)  # it is there, or this says so
        return path.encode(), (found if compression == "auto" else compression).encode()

    path, kind = call(opened, [number], [tf.string, tf.string], [[], []])
    last = tf.data.Dataset.from_tensors((True, form.filler))
    flags = tf.data.Dataset.from_tensors(False).repeat()
    rows = tf.data.Dataset.zip((flags, form.read(path, kind))).concatenate(last)
    rows = tf.data.Dataset.zip((tf.data.Dataset.range(2**62), rows)).ignore_errors()

    note = functools.partial(_note, form, plan, broken)
    shard = (plan.shard_index - number) % plan.num_shards

    @no_autograph
    def checked(expected, chunk):
        indices, (is_last, values) = chunk
        previous = tf.concat([[expected - 1], indices[:-1]], 0)
        gaps = indices - previous - 1
        is_due = tf.reduce_any(gaps > 0) | (is_last[-1] & tf.equal(kind, "GZIP"))
        arguments = [path, kind, previous + 1, gaps, is_last[-1], shard]
        noted = tf.cond(is_due, lambda: call(note, arguments, tf.int64, []), lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([noted]):
            keep = ~is_last
        if plan.num_shards > 1:
            keep &= tf.equal(indices % plan.num_shards, shard)
        if form.keep is not None:
            keep &= form.keep(values)
        wanted = values if form.pick is None else [values[number] for number in form.pick]
        return indices[-1] + 1, tuple(tf.boolean_mask(value, keep) for value in wanted)

    return rows.batch(CHUNK).scan(tf.constant(0, tf.int64), checked)


def _note(form, plan, broken, path, kind, starts, gaps, is_end, shard):
    """Tells of the records that lie in the gaps, and of the file itself at its end."""
    path, kind = path.decode(), kind.decode()
    missing = [
        start + i for start, gap in zip(starts.tolist(), gaps.tolist(), strict=True) for i in range(gap)
    ]
    if broken.policy == "skip":  # each is counted by one worker
        missing = [number for number in missing if number % plan.num_shards == shard]
    for number, reason in sorted(form.reasons(path, kind, missing).items()) if missing else ():
        broken.tell(path, number, reason)
    if is_end and form.check_end is not None and kind == "GZIP":
        reason = form.check_end(path)
        if reason is not None:
            broken.tell(path, -1, reason)
    return np.int64(0)
