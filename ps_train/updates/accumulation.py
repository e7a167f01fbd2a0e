"""Gradients of several batches, added up on the worker and sent as one: `--accumulate_steps`.

    accumulation = Accumulation(num_batches=4)
    gradient = accumulation.mean(gradient)          # of the batch of the step and those before it
    accumulation.finish()                           # into the graph's collection ACCUMULATIONS

    session.run(accumulation.start)                 # forgets what is left of an earlier step
    for _ in range(3):
        session.run(accumulation.add)               # a batch
    session.run(step)                               # the fourth, and the push

It is the step of a batch that is four times as large, but for the memory that this would take: all its gradients are of the same
variables, since the worker pulls them once (`prefetch.Kept`).
"""

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError

# Graph collection of whatever has steps of several batches: a `start` and an `add`.
ACCUMULATIONS = "ps_train/accumulations"


class Accumulation:
    """The sums of one optimizer's gradients on this worker.

    Args:
      num_batches: how many batches make a step.

    Attributes:
      start, add: ops, once it is finished.
    """

    def __init__(self, num_batches):
        self.num_batches = num_batches
        self._starts, self._adds = [], []
        self.start = self.add = None

    def mean(self, gradient, name):
        """The mean gradient of a step's batches; for the default device.

        Args:
          gradient: tensor, of the batch that runs.
          name: of the variable, for messages.

        Raises:
          ModelError: the gradient is sparse, or of a shape that is not known.
        """
        if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
            what = "sparse" if isinstance(gradient, tf.IndexedSlices) else "of no known shape"
            raise ModelError(
                f"The gradient of {name} is {what}, and cannot be added up over batches. Leave out --accumulate_steps, or have "
                "each batch hold more examples by --batch_size."
            )
        total = tf1.Variable(
            lambda: tf.zeros(gradient.shape, gradient.dtype), trainable=False, use_resource=True, name="accumulated",
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )  # fmt: skip
        self._starts.append(total.initializer)
        self._adds.append(total.assign_add(gradient, read_value=False))
        return (total.read_value() + gradient) / self.num_batches

    def finish(self):
        """All gradients are known."""
        with tf1.control_dependencies(None):  # a caller's, as UPDATE_OPS, may take a batch
            self.start = tf.group(*self._starts)
        self.add = tf.group(*self._adds)
        tf1.add_to_collection(ACCUMULATIONS, self)
