"""Variables that a worker keeps from one step to the next, and does not pull when it needs them.

    kept = Kept()
    value = kept.keep(tensor, "/job:worker/task:0")     # for each tensor that arrives; what the step is to use in its place
    kept.pull                                           # op: the values are those that the ps has now
    kept.pull_during(train_op)                          # --prefetch: the step pulls those of the next one

With `--prefetch`, a step computes with what it has, and from its start on pulls what the next one needs, while it computes and
pushes: on a network, a step takes as long as the longer of the two ways, and not as long as both. The price is that each gradient
is of variables that lack this worker's own last update, and what others did in one more step (staleness). The report counts it.

With `--accumulate_steps`, all batches of a step use what was pulled before the first of them.
"""

from ps_train.compat import tf, tf1


class Kept:
    """The tensors of a graph that are kept.

    Attributes:
      pull: op, once all are known.
    """

    def __init__(self):
        self._pulls, self._pulls_after = [], []

    def keep(self, tensor, device):
        """What was pulled last in place of a tensor.

        Args:
          tensor: of a shape that is known, from a ps.
          device: the worker's.

        Returns:
          tensor on that device.
        """
        with tf1.device(device), tf1.name_scope(None, "ps_train/kept"):
            kept = tf1.Variable(
                lambda: tf.zeros(tensor.shape, tensor.dtype), trainable=False, use_resource=True, collections=[],
            )  # fmt: skip
            value = kept.read_value()
            self._pulls.append(kept.assign(tensor, read_value=False))
            # A read that is done keeps its tensor, whatever the variable is given afterwards.
            with tf1.control_dependencies([value.op]):
                self._pulls_after.append(kept.assign(tensor, read_value=False))
        return value

    @property
    def pull(self):
        """Makes the op."""
        return tf.group(*self._pulls)

    def pull_during(self, step):
        """Has the op of a step pull for the next one, as soon as it has read what it uses itself."""
        step._add_control_inputs(self._pulls_after)
