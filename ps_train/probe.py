"""What a link gives: the time that one large tensor takes from a ps to this worker and back, alone, by TensorFlow's gRPC.

    probe = LinkProbe(context)               # in the graph, before it is finalized; touches no variable of the model
    rates = probe.run(raw_session)           # {"ps:0": (bytes a second from there, and to there)}

The tensor is grown from START_BYTES, fourfold, until it takes ENOUGH_SECS or has MAX_BYTES, and then sent again; the best time
counts. Each direction takes PROBE_SECS at most, and one transfer. The probe's tensors are deleted at its end.
"""

import time

from ps_train.compat import tf, tf1

START_BYTES, MAX_BYTES = 2**16, 2**24
ENOUGH_SECS = 0.25
PROBE_SECS = 1.0
REPEATS = 5


class LinkProbe:
    """Graph nodes for each ps.

    Args:
      context: TaskContext of this worker.
    """

    def __init__(self, context):
        here = f"{context.worker_device}/device:CPU:0"
        self._ways = {}
        with tf1.name_scope("ps_train/probe"), tf1.control_dependencies(None):
            self._size = tf1.placeholder(tf.int32, [], "size")
            for task in context.cluster.ps_tasks:
                if task == context.cluster.server_task(context.task):
                    continue  # it is this process
                there = f"/job:ps/task:{task.index}/device:CPU:0"
                name = f"ps_train_probe_{context.task}_{task}"
                self._ways[str(task)] = (
                    self._make_way(name + "_from", there, here),
                    self._make_way(name + "_to", here, there),
                )

    def _make_way(self, name, source, target):
        """(fill, move, delete): ops of one direction."""
        with tf1.device(source):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.uint8, shape=[None], shared_name=name)
            zeros = tf.zeros([self._size], tf.uint8)
            fill = tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.uint8)
            delete = tf.raw_ops.DestroyResourceOp(resource=handle)
        with tf1.device(target):
            move = value[0].op
        return fill, move, delete

    def run(self, session, clock=time.perf_counter):
        """Name of each ps -> (bytes a second from it, to it)."""
        return {
            ps: tuple(self._measure(session, way, clock) for way in ways) for ps, ways in self._ways.items()
        }

    def _measure(self, session, way, clock):
        fill, move, delete = way
        size, until, best = START_BYTES, clock() + PROBE_SECS, float("inf")
        try:
            session.run(fill, {self._size: size})
            session.run(move)  # makes the connection
            for _ in range(REPEATS):
                start = clock()
                session.run(move)
                secs = clock() - start
                while secs < ENOUGH_SECS and size < MAX_BYTES:
                    size, best = 4 * size, float("inf")
                    session.run(fill, {self._size: size})
                    start = clock()
                    session.run(move)
                    secs = clock() - start
                best = min(best, secs)
                if clock() > until:
                    break
        finally:
            session.run(delete)
        return size / best
