"""Follows what workers take from the work queue up to where they get it: what `input_fn` returned, from the readers' side.

    iterated = follow(dataset, readers)         # the same elements; it tells the readers what is asked for and has come

What stands between a helper's batches and the worker decides what is known of them:

- ops that give one batch for each, in order (`map`, `prefetch`): each one is followed to its step, and nothing is lost.
- ops that keep nothing from one batch to the next (`filter`, `unbatch` and `batch`): what has left the helper is done a step later.
- others, as `shuffle`, may have in hand what counts as done already. A line in the log names them.

`zip` of two readers pairs what does not belong together, as each has pieces of its own. It is refused.
"""

import re
import warnings
from typing import Any

import numpy as np

from ps_train.compat import tf
from ps_train.data.calls import call, no_autograph
from ps_train.errors import ModelError
from ps_train.explain import made_at
from ps_train.logs import log
from ps_train.pieces import after, counted

AHEAD = ("Prefetch", "ParallelMap")
ONE_FOR_ONE = (*AHEAD, "AssertCardinality", "Concatenate", "Map", "Options", "Take", "Zip")
KEEPS_NOTHING = (
    "Batch", "Filter", "FlatMap", "IgnoreErrors", "PaddedBatch", "Rebatch", "Repeat", "Scan", "Shard", "Skip", "TakeWhile",
    "Unbatch", "Unique",
)  # fmt: skip


def follow(dataset, readers):
    """A dataset of the elements of one, whose reading tells where it is.

    Args:
      dataset: what `input_fn` returned, in the default graph.
      readers: `pieces.Reader`s that were made for it.

    Raises:
      ModelError: two of them are zipped.
    """
    readers = [reader for reader in readers if reader.data is not None]
    if not readers:
        return dataset
    top = dataset._variant_tensor.op
    _check_zips(top, readers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a graph's options are those which its own functions gave
        deterministic = dataset.options().deterministic
    _look_between(top, readers, deterministic)

    followed = _followed(dataset, readers)
    options = tf.data.Options()  # by which tf.data reads ahead only where a dataset says so
    options.experimental_optimization.inject_prefetch = False
    if not all(reader.is_direct for reader in readers):
        options.experimental_optimization.apply_default_optimizations = False
    return followed.with_options(options)


def _followed(dataset, readers):
    def note_asked():
        for reader in readers:
            reader.note_asked()
        return np.int64(0)

    def note_came():
        is_taken = False
        for reader in readers:
            is_taken |= reader.note_came(takes=not is_taken)
        return np.int64(0)

    def note_end():
        for reader in readers:
            reader.note_end()
        return np.int64(0)

    @no_autograph
    def came(_, element):
        return after(call(note_came, [], tf.int64, []), element)

    @no_autograph
    def ended(_):
        return dataset.take(call(note_end, [], tf.int64, []))  # which is 0

    asked = counted(lambda _: call(note_asked, [], tf.int64, []))
    noted = tf.data.Dataset.zip((asked, dataset)).map(came)
    return noted.concatenate(tf.data.Dataset.range(1).flat_map(ended))


def _check_zips(top, readers):
    made = {reader.data._variant_tensor.op for reader in readers}
    for op in _below(top):
        if kind_of(op) != "Zip":
            continue
        count = sum(len(made & _below(source)) for source in _sources(op))
        if count > 1:
            raise ModelError(
                f"the dataset zips {count} parts of the work queue{_place(op)}, whose pieces a worker gets in any order: "
                "what is paired does not belong together. Read them in one: an array of tuples or a dict for from_numpy, or both "
                "files in one function of context.pieces(...).flat_map."
            )


def _look_between(top, readers, deterministic):
    """Sets what the readers have to know of the ops above them, and tells in the log what may be lost."""
    ways = {reader: list(_ways(top, reader.data._variant_tensor.op)) for reader in readers}
    keeping = {}
    for reader, found in ways.items():
        kinds = {kind_of(op) for way in found for op in way}
        is_ordered = all(_is_ordered(op, deterministic) for way in found for op in way)
        reader.passes_errors = "IgnoreErrors" in kinds
        reader.is_direct = (
            reader.follows_batches and len(found) == 1 and is_ordered and kinds <= {*ONE_FOR_ONE}
        )
        if reader.is_direct:
            continue
        what = "a helper of ps_train.data" if reader.follows_batches else "context.pieces"
        for op in (op for way in found for op in way):
            if kind_of(op) in AHEAD or kind_of(op) not in (*ONE_FOR_ONE, *KEEPS_NOTHING):
                keeping[op] = what
    for op, what in keeping.items():
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", kind_of(op)).lower()
        log.warning(
            "input: %s after %s%s reads ahead: what it has in hand when the job is interrupted counts as read, and does not "
            "come again in that pass", words, what, _place(op),
        )  # fmt: skip


def _place(op):
    place = made_at(op)
    return f" (made at {place})" if place else ""


def kind_of(op):
    """`ParallelMap` for an op of a dataset."""
    return re.sub(r"Dataset(V\d+)?$", "", op.type)


def _is_ordered(op, deterministic):
    if kind_of(op) != "ParallelMap":
        return True
    chosen = op.get_attr("deterministic")
    return chosen == b"true" or (chosen == b"default" and deterministic is not False)


def _sources(op):
    """The datasets that an op reads, those that its function takes along too."""
    return [tensor.op for tensor in op.inputs if tensor.dtype == tf.variant]


def _below(top):
    """All ops of datasets that one reads, and itself."""
    found, open_ops = set(), [top]
    while open_ops:
        op = open_ops.pop()
        if op not in found:
            found.add(op)
            open_ops += _sources(op)
    return found


def _ways(top, bottom):
    """The ops on each way from one down to another, which is left out."""
    reaching = {op for op in _below(top) if bottom in _below(op)}
    open_ways: list[Any] = [(top, ())]
    while open_ways:
        op, above = open_ways.pop()
        if op is bottom:
            yield above
        elif op in reaching:
            open_ways += [(source, (*above, op)) for source in _sources(op)]
