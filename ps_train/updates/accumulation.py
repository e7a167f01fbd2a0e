"""Gradients of several batches, added up on the worker and sent as one: `--accumulate_steps`.

    accumulation = Accumulation(num_batches=4)
    gradient = accumulation.mean(gradient, "w")     # of the batch of the step and those before it
    accumulation.finish()                           # into the graph's collection ACCUMULATIONS

    session.run(accumulation.start)                 # forgets what is left of an earlier step
    for _ in range(3):
        session.run(accumulation.add)               # a batch
    session.run(step)                               # the fourth, and the push

It is the step of a batch that is four times as large, without the memory that this would take, if the loss is a mean over
examples and all batches have as many: each counts the same. In a job all their gradients are of the same variables, since the
worker pulls them once (`transport_hook`, `prefetch.Kept`), but for what the model reads after something else. A step that fails, as for NaN, leaves sums behind; `start` clears them.
"""

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError

# Graph collection of whatever has steps of several batches: a `start` and an `add`, each an op.
ACCUMULATIONS = "ps_train/accumulations"


class Accumulation:
    """The sums of one optimizer's gradients on this worker: local variables, one of the size of each gradient.

    Args:
      num_batches: how many batches make a step.

    Attributes:
      start: op that sets the sums to zero; None before `finish`.
      add: op that takes a batch and adds its gradients to the sums; None before `finish`.
    """

    def __init__(self, num_batches):
        self.num_batches = num_batches
        self._starts, self._adds = [], []
        self.start = self.add = None

    def mean(self, gradient, name):
        """The mean gradient of a step's batches, on the device in scope, the worker's.

        Args:
          gradient: dense tensor, of the batch that runs.
          name: of the variable, or of several that travel together, for messages.

        Returns:
          tensor of the gradient's shape and type: the sum so far and this batch's gradient, over `num_batches`.

        Raises:
          ModelError: the gradient is sparse, or its shape is not known.
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
        """All gradients are known: makes `start` and `add`, and adds itself to ACCUMULATIONS."""
        with tf1.control_dependencies(None):  # a caller's, as UPDATE_OPS, may take a batch
            self.start = tf.group(*self._starts)
        self.add = tf.group(*self._adds)
        tf1.add_to_collection(ACCUMULATIONS, self)
