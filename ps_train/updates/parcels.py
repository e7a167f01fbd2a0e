"""Gradients that go to a ps together: small dense ones are joined on the worker, and taken apart where they are applied.

    parcels = make_parcels(grads_and_vars, max_bytes)        # lists of (gradient, variable), Nones left out
    parcel.gradient                                          # of one variable, or joined, [elements]
    parcel.unpack(mean)                                      # [(its part of the mean, variable)]

A synchronous update then needs one accumulator for all of them on a ps and not one for each: sums are the same, element by
element.
"""

import collections
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.transport import chunks, num_bytes, unpack


class Parcel(NamedTuple):
    """One gradient that is sent.

    Attributes:
      gradient: a tensor on the worker, or IndexedSlices.
      variables: list of those that it is for.
    """

    gradient: Any
    variables: list

    @property
    def name(self):
        """The same on all workers that put the same together."""
        first, *others = (variable.op.name for variable in self.variables)
        return f"{first}_and_{len(others)}" if others else first

    @property
    def shape(self):
        """Of the gradient, when it is dense."""
        return self.variables[0].shape if len(self.variables) == 1 else self.gradient.shape

    def unpack(self, tensor):
        """Pieces of a tensor like the gradient, with their variables."""
        if len(self.variables) == 1:
            return [(tensor, self.variables[0])]
        pieces = unpack(tensor, [variable.shape for variable in self.variables])
        return list(zip(pieces, self.variables, strict=True))


def make_parcels(grads_and_vars, max_bytes, worker_device):
    """Puts gradients together.

    Args:
      grads_and_vars: list of (gradient, variable); a gradient may be None, which is left out, a tensor or IndexedSlices.
      max_bytes: the size of a variable up to which its gradient goes with others; 0: none does.
      worker_device: where the gradients are.

    Returns:
      list of Parcel.
    """
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    for gradient, variable in grads_and_vars:
        if gradient is None:
            continue
        is_small = not isinstance(gradient, tf.IndexedSlices) and 0 < num_bytes(variable) <= max_bytes
        key = (variable.device, variable.dtype.base_dtype, gradient.dtype) if is_small else len(groups)
        groups[key].append((gradient, variable))
    parcels = []
    for group in groups.values():
        for part in chunks(group, lambda pair: num_bytes(pair[1])):
            gradients, variables = [gradient for gradient, _ in part], [variable for _, variable in part]
            gradient = gradients[0]
            if len(part) > 1:
                with tf1.device(worker_device):
                    gradient = tf.concat([tf.reshape(one, [-1]) for one in gradients], 0)
                gradient.set_shape([sum(variable.shape.num_elements() for variable in variables)])
            parcels.append(Parcel(gradient, variables))
    return parcels
