"""What a session raises when a ps is gone. It stands alone because `board`, which tells it too, needs no TensorFlow."""

from ps_train.compat import tf

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
