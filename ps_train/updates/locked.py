"""What several tasks change on one ps, each change as a whole, under a mutex there: anything, or a vector of numbers."""

from typing import Any

from ps_train.compat import tf, tf1


def while_locked(mutex, work):
    """What is done while nobody else has the mutex.

    Args:
      mutex: resource tensor; the lock is taken on its device, once a caller's control dependencies are there.
      work: makes the ops: gives (tensors, ops that have to be done before others are let in).

    Returns:
      list of the tensors, which are there once the lock is given back.
    """
    lock = tf.raw_ops.MutexLock(mutex=mutex)
    with tf1.control_dependencies([lock]):
        tensors, last = work()
    with tf1.control_dependencies(last):
        unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf1.control_dependencies([unlock]):
        return [tf.identity(tensor) for tensor in tensors]


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

        def work():
            new, value, make_effects = transition(self._from_vector(self.variable.read_value()))
            value = tf.identity(value)
            assigned = self.variable.assign(self._to_vector(new)).op
            with tf1.control_dependencies([value, assigned]):
                return [value], [*make_effects(), assigned]

        (value,) = while_locked(self._mutex, work)
        return value
