"""A vector of numbers on one ps that several tasks change, each change as a whole, under a mutex there."""

from typing import Any

from ps_train.compat import tf, tf1


class LockedVector:
    """Graph nodes of the vector, as one task's graph has them; made in the device scope of its ps.

    Args:
      name: the same in every task's graph; names the resources on the ps.
      size: elements, int64.
      from_vector: makes a state, a NamedTuple, of the vector.
      to_vector: the reverse.

    Attributes:
      variable: in no collection.
      snapshot: tensor, the vector as it is.
      is_initialized: bool scalar.
    """

    def __init__(self, name, size, from_vector, to_vector):
        self._from_vector, self._to_vector = from_vector, to_vector
        self.variable: Any = tf1.Variable(
            initial_value=lambda: tf.zeros([size], tf.int64),
            trainable=False, collections=[], use_resource=True, name=name,
        )  # fmt: skip
        self._mutex = tf.raw_ops.MutexV2(shared_name=name + "_mutex")
        self.snapshot = self.variable.read_value()
        self.is_initialized = self.variable.is_initialized()

    def change(self, transition):
        """A tensor that is there once a change is made.

        Args:
          transition: function of the state: the new state, the value to return, and a function that makes the ops to be run
            under the lock after the change.
        """
        lock = tf.raw_ops.MutexLock(mutex=self._mutex)
        with tf1.control_dependencies([lock]):
            new, value, make_effects = transition(self._from_vector(self.variable.read_value()))
            vector = self._to_vector(new)
            value = tf.identity(value)
        assigned = self.variable.assign(vector).op
        with tf1.control_dependencies([value, assigned]):
            effects = make_effects()
        with tf1.control_dependencies([*effects, assigned]):
            unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf1.control_dependencies([unlock]):
            return tf.identity(value)
