"""What a worker takes pieces of the data with, as `InputContext.work` (--input=workqueue): a queue for each call in `input_fn`.

work = Work(context, holder=1, seed=7)
numbers = work.pieces(24)                                  # `context.pieces(24)`
reader = work.reader(24, passes=-1, shuffle=True)          # for a helper of `ps_train.data`
"""

import random

from ps_train.board import ControlSession
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.piece_queue import queue_of, turn_nodes
from ps_train.pieces import Reader

READERS = "ps_train/piece_readers"
MAX_HELD = 2**23  # elements of a queue's table of who has what, 8 bytes each


class Work:
    """What one worker, or one of its towers, takes its pieces with.

    Args:
      context: TaskContext.
      holder: its number.
      seed: the job's, or None.
    """

    def __init__(self, context, holder, seed):
        self._context, self._holder, self._num_queues = context, holder, 0
        self._seed = random.getrandbits(31) if seed is None else seed
        self._graph = tf1.get_default_graph()

    def pieces(self, count, passes, shuffle):
        """As `InputContext.pieces`, from a queue; arguments as `reader`'s."""
        if count == 0:
            return tf.data.Dataset.range(0)
        return self.reader(count, passes, shuffle).numbers()

    def reader(self, count, passes, shuffle, group=1):
        """A Reader on a new queue.

        Args:
          count: pieces.
          passes: how often all are read; -1: for ever.
          shuffle: whether chance orders the pieces.
          group: how many are read at the same time.
        """
        context = self._context
        holders = context.cluster.num_workers * context.devices.towers
        if tf1.get_default_graph() is not self._graph:
            raise ModelError(
                "context.pieces is called in a function of a dataset. Call it in input_fn itself."
            )
        if count * holders > MAX_HELD:
            raise ModelError(
                f"{count} pieces are too many for a work queue of {holders} workers: no more than {MAX_HELD // holders} are "
                "expected. Join several into one."
            )
        queue = queue_of(self._num_queues, count, context)
        self._num_queues += 1
        if queue.count != count:
            raise ModelError(
                f"input_fn asks for {count} pieces for one tower and for {queue.count} for another. The same are expected for all."
            )
        nodes = turn_nodes(queue, self._holder, passes, self._seed if shuffle else None)
        ps = context.cluster.ps_tasks[0]
        reader = Reader(
            count,
            lambda: ControlSession(context.cluster.address(ps), ps, nodes),
            f"{ps} at {context.cluster.address(ps)}",
            waits=context.update == "async" and context.max_lead is None and context.devices.towers == 1,
            group=group,
        )
        tf1.add_to_collection(READERS, reader)
        return reader

    @property
    def ps(self):
        """The task that has the queues."""
        return self._context.cluster.ps_tasks[0]
