"""An update that is made or left out as a whole, on every ps: what applies it is switched off as a branch of `tf.cond` is.

gate = Gate(is_open, device)
parcels = [gate.let_pass(parcel) for parcel in parcels]      # dead, if it is shut
step = gate.finish(optimizer.apply_gradients(...))           # done in either case
"""

from ps_train.compat import tf, tf1


class Gate:
    """A bool scalar and what hangs on it.

    Args:
      is_open: tensor.
      device: where it is.
    """

    def __init__(self, is_open, device):
        self.is_open, self._device = is_open, device

    def let_pass(self, parcel):
        """A Parcel that has arrived as it is to be applied: dead, as what is in a branch not taken, if the gate is shut."""
        with tf1.device(parcel.variables[0].device):
            return parcel.map(lambda tensor: tf.raw_ops.Switch(data=tensor, pred=self.is_open).output_true)

    def finish(self, applied, device=None):
        """An op, where the gate is or on another device, that is done when the op `applied` is, or is left out."""
        with tf1.device(device or self._device):
            switched = tf.raw_ops.Switch(data=self.is_open, pred=self.is_open)
            with tf1.control_dependencies([applied]):
                taken = tf.identity(switched.output_true)
            return tf.raw_ops.Merge(inputs=[switched.output_false, taken]).output.op
