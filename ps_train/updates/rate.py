"""The learning rate of an optimizer of TensorFlow 1: times a factor (`--scale_rate`, `--scale_by_staleness`), and to be shown.

scale_rate(optimizer, lambda: factor, "--scale_rate")       # before its apply_gradients
rates(graph)                                                # once all are applied
"""

import contextlib
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.transport import ancestors, is_in_control_flow
from ps_train.updates import SYNC_OPTIMIZERS

RATED = "ps_train/rated_optimizers"
"""Graph collection of the user's optimizers that the job's rule was made of."""

# What TensorFlow's optimizers call the tensor, once `_prepare` has made it.
_RATES = ("_learning_rate_tensor", "_lr_t")
_INNER = ("_optimizer", "_opt")  # of one that wraps another
_CONSTANT = ("Const", "Cast", "Identity", "Mul")


def worker_factor(scale, num_gradients):
    """By what the rate is multiplied when an update is the mean of so many gradients, or so many workers make them.

    The linear rule is from Goyal et al., "Accurate, Large Minibatch SGD", 2017; the square root keeps the variance of a step
    (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014).

    >>> worker_factor("linear", 4), worker_factor("sqrt", 4), worker_factor("none", 4)
    (4.0, 2.0, 1.0)
    """
    return {"none": 1.0, "linear": float(num_gradients), "sqrt": num_gradients**0.5}[scale]


def scale_rate(optimizer, make_factor, flag):
    """Has an optimizer use its learning rate times a factor.

    Args:
      optimizer: `tf1.train.Optimizer`; one that wraps another in TensorFlow's way has that one scaled.
      make_factor: gives the factor, a float or float32 scalar tensor, when gradients are applied.
      flag: that asks for it, for messages.

    Raises:
      ModelError: when gradients are applied: the optimizer has no learning rate that is known.
    """
    optimizer = _innermost(optimizer)
    prepare = optimizer._prepare

    def prepare_scaled():
        prepare()
        factor = make_factor()
        names = _names(optimizer)
        if not names:
            raise ModelError(
                f"{flag} cannot scale the learning rate of a {type(optimizer).__name__}, which keeps it in none of the places "
                "where TensorFlow's optimizers do. Leave the flag out, and scale the rate in model_fn."
            )
        place = tf1.device(factor.device) if isinstance(factor, tf.Tensor) else contextlib.nullcontext()
        for name in names:
            rate = getattr(optimizer, name)
            with place:
                setattr(optimizer, name, rate * tf.cast(factor, rate.dtype))

    optimizer._prepare = prepare_scaled


class Rate(NamedTuple):
    """A learning rate, with all factors, as an update takes it.

    Attributes:
      name: of the optimizer.
      tensor: float scalar; what the update took is what it is in the same run.
      rule: the synchronous optimizer that the optimizer is in, whose update is a run of its own; None: it is part of a step.
    """

    name: str
    tensor: Any
    rule: Any

    @property
    def is_constant(self):
        """Whether it is the same in each run."""
        return all(op.type in _CONSTANT for op in ancestors([self.tensor]))


def rates(graph):
    """A Rate for each of the graph's optimizers whose rate is known, once gradients are applied.

    A script's optimizer is known if it is in a `ps_train.SyncReplicasOptimizer`.
    """
    rules = {id(rule._opt): rule for rule in graph.get_collection(SYNC_OPTIMIZERS)}
    optimizers = graph.get_collection(RATED) or [rule._opt for rule in rules.values()]
    found = []
    for optimizer in optimizers:
        inner = _innermost(optimizer)
        for name in _names(inner)[:1]:
            rate = getattr(inner, name)
            if rate.graph is graph and not is_in_control_flow(rate.op):
                found.append(Rate(inner.get_name(), rate, rules.get(id(optimizer))))
    return found


def _innermost(optimizer):
    for name in _INNER:
        inner = getattr(optimizer, name, None)
        if isinstance(inner, tf1.train.Optimizer):
            return _innermost(inner)
    return optimizer


def _names(optimizer):
    return [name for name in _RATES if isinstance(getattr(optimizer, name, None), tf.Tensor)]
