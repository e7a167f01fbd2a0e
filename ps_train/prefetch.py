"""Variables that were pulled during the step before: a worker's step neither waits for them nor for its own last update.

    prefetch = Prefetch()
    kept = prefetch.keep(tensor, "/job:worker/task:0")     # for each tensor that arrives; what the step is to use in its place
    first_pull = prefetch.finish(train_op)                 # to be run once before the first step of each session

The worker keeps what it pulled in variables of its own. A step computes with them, and from its start on pulls those of the next
step, while it computes and pushes: on a network, a step takes as long as the longer of the two ways, and not as long as both.
The price is that each gradient is of variables that lack this worker's own last update, and what others did in one more step
(staleness). The report counts it.
"""

from ps_train.compat import tf, tf1


class Prefetch:
    """The tensors of a graph that are kept from one step to the next."""

    def __init__(self):
        self._first, self._next = [], []

    def keep(self, tensor, device):
        """What the last step pulled in place of a tensor.

        Args:
          tensor: of a shape that is known, from a ps.
          device: the worker's.

        Returns:
          tensor on that device.
        """
        with tf1.device(device), tf1.name_scope(None, "ps_train/prefetch"):
            kept = tf1.Variable(
                lambda: tf.zeros(tensor.shape, tensor.dtype), trainable=False, use_resource=True, collections=[],
            )  # fmt: skip
            value = kept.read_value()
            self._first.append(kept.assign(tensor, read_value=False))
            # A read that is done keeps its tensor, whatever the variable is given afterwards.
            with tf1.control_dependencies([value.op]):
                self._next.append(kept.assign(tensor, read_value=False))
        return value

    def finish(self, step):
        """Has the op of a step pull for the next one; returns the op that pulls for the first."""
        step._add_control_inputs(self._next)
        return tf.group(*self._first)
