"""What optimizers that wrap the user's have in common.

class AsyncOptimizer(WrappedOptimizer):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None): ...    # self._optimizer, self._loss
"""

from typing import Any

from ps_train.compat import tf1
from ps_train.split_variable import parts_of


class WrappedOptimizer(tf1.train.Optimizer):
    """Leaves to the wrapped optimizer all but `apply_gradients`."""

    def __init__(self, optimizer):
        super().__init__(use_locking=False, name=optimizer.get_name())
        self._optimizer = optimizer
        self._loss: Any = None

    def note_loss(self, loss):
        """The loss that is checked for NaN with the gradients: of several losses, their mean; a function is not checked."""
        self._loss = None if callable(loss) else loss

    def compute_gradients(self, loss, var_list=None, *args, **kwargs):
        """As the wrapped optimizer's; remembers the loss, which is checked for NaN with the gradients."""
        self.note_loss(loss)
        if var_list is not None or args:
            args = (parts_of(var_list), *args)
        return self._optimizer.compute_gradients(loss, *args, **kwargs)

    def get_slot(self, *args, **kwargs):
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self):
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot_names()

    def variables(self):
        """As the wrapped optimizer's."""
        return self._optimizer.variables()
