"""In which order, how often and in what batches the data of one worker comes; common to all helpers.

order = Order(context, shuffle_buffer=10_000, repeat=True)
data = order.batch(order.repeat(order.shuffle(records)))         # of files: what was read is shuffled in a buffer
data = order.rows(count)                                         # of what is at hand: numbers of rows, permuted anew each time
data = order.row_batches(count, reader)                          # the same in batches, or pieces of a work queue
data = order.finish(data, reader)
"""

from typing import Any

import numpy as np

from ps_train.compat import tf
from ps_train.data.calls import call, no_autograph
from ps_train.errors import ModelError
from ps_train.model.spec import ModeKeys, passes_of
from ps_train.wording import shown

FOR_EVER = 2**62


class Order:
    """What the mode, the seed and the user's arguments say about order."""

    def __init__(self, context, shuffle_buffer, repeat):
        if isinstance(shuffle_buffer, bool) or not isinstance(shuffle_buffer, int) or shuffle_buffer < 0:
            raise ModelError(
                f"shuffle_buffer={shown(shuffle_buffer)} is out of range; a number of records is expected, 0 for their own order."
            )
        passes = passes_of(repeat)
        if passes is None:
            raise ModelError(
                f"repeat={shown(repeat)} is out of range; True (for ever), False (one pass) or a number of passes is expected."
            )
        is_training = context.mode == ModeKeys.TRAIN
        self.batch_size, self.seed = context.batch_size, context.seed
        self.buffer = shuffle_buffer if is_training else 0
        self.passes = passes if is_training else 1

    def shuffle(self, data, buffer=None):
        """As `Dataset.shuffle`, anew in each pass; nothing where the order is to be kept."""
        return data.shuffle(buffer or self.buffer, self.seed) if self.buffer and buffer != 1 else data

    def repeat(self, data):
        """As often as wanted."""
        return data if self.passes == 1 else data.repeat(self.passes)

    def batch(self, data):
        """Batches, the last of which may be smaller."""
        return data.batch(self.batch_size)

    def row_batches(self, count, reader=None, read=lambda numbers: numbers):
        """Batches of what `read` gives for the numbers of `count` rows, as a dataset.

        Args:
          count: rows.
          reader: of a work queue; piece p of its n is each n-th row from the p-th on; None: all rows are this worker's.
          read: function of a dataset of numbers: a dataset of as many elements, or of fewer, in that order.
        """
        if reader is None:
            return self.batch(read(self.rows(count)))
        rng = np.random.default_rng(self.seed)

        def rows_of(pieces):
            rows = np.concatenate([np.arange(piece, count, reader.count) for piece in pieces])
            return (rng.permutation(rows) if self.buffer else rows).astype(np.int64)

        def read_pieces(pieces):
            return read(tf.data.Dataset.from_tensor_slices(call(rows_of, [pieces], tf.int64, [None])))

        return reader.batches(read_pieces, self.batch_size)

    def finish(self, data, reader=None):
        """What a helper gives back of batches."""
        return data.prefetch(tf.data.AUTOTUNE) if reader is None else reader.finish(data)

    def rows(self, count):
        """int64 scalars: the numbers of `count` rows, permuted as a whole in each pass, and repeated."""
        if count == 0:
            return tf.data.Dataset.range(0)
        passes = tf.data.Dataset.range(FOR_EVER if self.passes < 0 else self.passes)
        seed: Any = np.random.SeedSequence().entropy if self.seed is None else self.seed

        def permuted(number):
            if not self.buffer:
                return np.arange(count, dtype=np.int64)
            return np.random.default_rng([seed, int(number)]).permutation(count).astype(np.int64)

        @no_autograph
        def numbers(number):
            return tf.data.Dataset.from_tensor_slices(call(permuted, [number], tf.int64, [None]))

        return passes.flat_map(numbers)
