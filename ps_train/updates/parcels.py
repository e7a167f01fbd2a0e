"""Gradients that go to a ps together: small dense ones are joined on the worker, and taken apart where they are applied.

    parcels = send_gradients(grads_and_vars, loss, context)     # checked, joined, in the form in which they travel
    parcel.gradient                                             # of one variable, or of several, [elements]
    parcel.unpack(mean)                                         # [(its part of the mean, variable)]

A synchronous update then needs one accumulator for all of them on a ps and not one for each: sums are the same, element by
element.

What `int8` takes off a gradient, and what `--topk` leaves out, is kept on the worker and added to its next one (error feedback:
Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Lin et al., "Deep Gradient Compression", 2018), so that nothing is lost
for good but with a gradient that is not applied: one of a backup worker that came late, or of a step that `--on_nan=skip` drops.
It is gone with the worker's session, too, as when a ps was lost, and with a setting that `--autotune` does not keep.
"""

import collections
import functools
from dataclasses import replace
from typing import Any, NamedTuple

from ps_train.autotune import wire_dtypes
from ps_train.compat import tf, tf1
from ps_train.transport import chunks, map_gradient, num_bytes, reroute, task_of, unpack
from ps_train.updates.accumulation import Accumulation
from ps_train.updates.finite import check_all, check_gradients
from ps_train.wire import EXACT, decode, encode, is_lossy, joined, select, spread

GRADIENTS = "ps_train/gradients"


class Parcel(NamedTuple):
    """One gradient that is sent.

    Attributes:
      gradient: a tensor, or IndexedSlices; on the worker, or, once it is sent in another form, on the ps.
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

    def map(self, function):
        """The same with a function of tensors applied to the gradient; of a sparse one, to its values and its indices."""
        gradient = self.gradient
        if isinstance(gradient, tf.IndexedSlices):
            mapped = tf.IndexedSlices(
                function(gradient.values), function(gradient.indices), gradient.dense_shape
            )
        else:
            mapped = function(gradient)
        return self._replace(gradient=mapped)

    def arrive(self):
        """The same once it has got to its ps."""
        with tf1.device(self.variables[0].device):
            return self.map(tf.identity)

    def unpack(self, tensor):
        """Pieces of a tensor like the gradient, with their variables."""
        if len(self.variables) == 1:
            return [(tensor, self.variables[0])]
        pieces = unpack(tensor, [variable.shape for variable in self.variables])
        return list(zip(pieces, self.variables, strict=True))


def send_gradients(grads_and_vars, loss, context):
    """Checks gradients for NaN and Inf and brings them to their ps.

    Args:
      grads_and_vars: list of (gradient, variable); a gradient may be None, which is left out, a tensor or IndexedSlices.
      loss: scalar tensor, checked, too, or None.
      context: TaskContext.

    Returns:
      list of Parcel. What travels as it is is still on the worker: TensorFlow sends it to whoever takes it.
    """
    # With --record a step is pushed to every ps or to none, as it has a line of its own in a record or has not.
    policy = "skip" if context.record and context.on_nan == "stop" else context.on_nan
    checked = check_gradients(grads_and_vars, loss, policy)
    max_bytes = max(context.pack_bytes, context.fuse_bytes)
    parcels = make_parcels(checked, max_bytes, context.bucket_bytes, context.worker_device)
    if context.accumulate_steps > 1:
        parcels = _accumulate(parcels, context)
    forms = {wire: _send(parcels, replace(context, wire_dtype=wire)) for wire in wire_dtypes(context)}
    if len(forms) > 1:
        tf1.add_to_collection(GRADIENTS, Gradients(forms, context.wire_dtype))
    return forms[context.wire_dtype]


def barrier(gradients):
    """One op that runs when all gradients are on their ps; grouped by device, so one message from each ps."""
    return tf.group(*[g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients])


def _send(parcels, context):
    """What arrives on the ps, in the form that a context says."""
    encoded = [_encode(parcel, context) for parcel in parcels]
    if context.wire_dtype == "float16" and context.on_nan != "ignore":  # it holds no more than 65504
        named = [
            (parts[0], f"the gradient of {parcel.name}, as float16")
            for parcel, parts in zip(parcels, encoded, strict=True)
            if not _stays(parcel, context)
        ]
        with tf1.device(context.worker_device):
            checked = iter(check_all(named, context.on_nan))
        encoded = [
            parts if _stays(parcel, context) else [next(checked), *parts[1:]]
            for parcel, parts in zip(parcels, encoded, strict=True)
        ]
    return [_decode(parcel, parts, context) for parcel, parts in zip(parcels, encoded, strict=True)]


class Gradients:
    """What is sent by one optimizer, in several forms, of which the graph uses one; in the collection GRADIENTS.

    Args:
      forms: type in which it travels -> list of Parcel, all of them for the same variables.
      used: the form that the optimizer is given.
    """

    def __init__(self, forms, used):
        self._values = {wire: [_values(parcel) for parcel in parcels] for wire, parcels in forms.items()}
        self._used = used
        # What makes the other forms of it may take it, too.
        self._makers = {tensor.ref(): set(tensor.consumers()) for tensor in self._values[used]}

    @functools.cached_property
    def _uses(self):
        """Of each tensor that the optimizer was given; before another way of the graph has uses of its own."""
        return [
            [
                (op, i)
                for op in set(tensor.consumers()) - self._makers[tensor.ref()]
                for i, taken in enumerate(op.inputs)
                if taken is tensor
            ]
            for tensor in self._values[self._used]
        ]

    def reroute(self, wire_dtype):
        """Has what takes the form that the optimizer was given take another; called as long as the graph is as it was built."""
        for uses, tensor in zip(self._uses, self._values[wire_dtype], strict=True):
            reroute(uses, tensor)


def _values(parcel):
    gradient = parcel.gradient
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _accumulate(parcels, context):
    accumulation = Accumulation(context.accumulate_steps)
    with tf1.device(context.worker_device):
        means = [
            parcel._replace(gradient=accumulation.mean(parcel.gradient, parcel.name)) for parcel in parcels
        ]
        accumulation.finish()
    return means


def in_order(pieces, grads_and_vars):
    """What was unpacked of all parcels, in the order in which the gradients were given, None for None.

    Args:
      pieces: list of (tensor, variable).
      grads_and_vars: list of (gradient, variable).
    """
    found: dict[Any, list[Any]] = collections.defaultdict(list)
    for piece, variable in pieces:
        found[variable.op].append(piece)
    return [(None if g is None else found[variable.op].pop(0), variable) for g, variable in grads_and_vars]


def _encode(parcel, context):
    """What is sent: tensors, or IndexedSlices, as a list."""
    gradient, wire_dtype = parcel.gradient, context.wire_dtype
    if _stays(parcel, context):
        return [gradient]
    with tf1.device(context.worker_device):
        if isinstance(gradient, tf.IndexedSlices):
            # Rows, and single elements, have no blocks.
            return [map_gradient(lambda values: encode(values, joined(wire_dtype))[0], gradient)]
        if not (_is_selected(gradient, context) or (wire_dtype == "int8" and is_lossy(gradient, wire_dtype))):
            return encode(gradient, wire_dtype)
        left = tf1.Variable(
            lambda: tf.zeros(gradient.shape, gradient.dtype), trainable=False, use_resource=True, name="left_over",
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )  # fmt: skip
        wanted = gradient + left.read_value()
        if _is_selected(gradient, context):
            places, values, rest = select(wanted, context.topk)
            parts = [tf.cast(values, _type_of_values(gradient, wire_dtype)), places]
        else:
            parts = encode(wanted, wire_dtype)
            rest = wanted - decode(parts, gradient.shape, gradient.dtype)
        with tf1.control_dependencies([left.assign(rest).op]):
            return [parts[0], tf.identity(parts[1])]


def _stays(parcel, context):
    """Whether a gradient's ps is in this worker's process (`--colocate_ps`)."""
    return task_of(parcel.variables[0].device) == context.worker_device


def _is_selected(gradient, context):
    is_large = is_lossy(gradient, "int8")  # of MIN_QUANTIZED elements or more
    return context.topk < 1 and is_large


def _type_of_values(gradient, wire_dtype):
    return gradient.dtype if wire_dtype == EXACT else joined(wire_dtype)


def _decode(parcel, parts, context):
    variable, sent = parcel.variables[0], parcel.gradient
    if _stays(parcel, context):
        return parcel
    dtype = variable.dtype.base_dtype
    with tf1.device(variable.device):
        if isinstance(parts[0], tf.IndexedSlices):
            gradient = map_gradient(lambda values: decode([values], None, dtype), parts[0])
        elif _is_selected(sent, context):
            gradient = spread(parts[1], tf.cast(parts[0], dtype), sent.shape)
        else:
            gradient = decode(parts, sent.shape, dtype)
    return parcel._replace(gradient=gradient)


def make_parcels(grads_and_vars, max_bytes, bucket_bytes, worker_device):
    """Puts gradients together.

    Args:
      grads_and_vars: list of (gradient, variable); a gradient may be None, which is left out, a tensor or IndexedSlices.
      max_bytes: the size of a variable up to which its gradient goes with others; 0: none does.
      bucket_bytes: the size of those that go together, at most.
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
        for part in chunks(group, lambda pair: num_bytes(pair[1]), bucket_bytes):
            gradients, variables = [gradient for gradient, _ in part], [variable for _, variable in part]
            gradient = gradients[0]
            if len(part) > 1:
                with tf1.device(worker_device):
                    gradient = tf.concat([tf.reshape(one, [-1]) for one in gradients], 0)
                gradient.set_shape([sum(variable.shape.num_elements() for variable in variables)])
            parcels.append(Parcel(gradient, variables))
    return parcels
