"""Towers: copies of the model on one worker, each with batches and a device of its own: `--towers`.

    devices = tower_devices(context)
    for number, device in enumerate(devices):
        with tower(number, device):                     # ops go to its device, variables are the first one's
            ...                                         # input_fn, model_fn, gradients
    gradients = mean_gradients([gradients of each tower])

This is in-graph replication within a worker, between-graph replication goes on around it: the worker pulls the variables once for
all its towers, and pushes the mean of their gradients once. It is the step of a batch that is as many times as large.

Of the first tower alone are UPDATE_OPS (moving averages follow its batches), summaries, training hooks and the optimizer.
"""

import contextlib

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.server import num_gpus

# What a model adds to, and finds again by itself; one tower's must not be another's.
_OF_A_TOWER = (tf1.GraphKeys.UPDATE_OPS, tf1.GraphKeys.SUMMARIES, tf1.GraphKeys.LOSSES)
MAX_NAMED = 3


def tower_devices(context):
    """The device of each tower, without its task; the only tower of a worker goes where TensorFlow puts its ops.

    Raises:
      UsageError: more towers than GPUs.
    """
    return context.devices.tower_devices(num_gpus()) if context.devices.towers > 1 else ("",)


@contextlib.contextmanager
def tower(number, device):
    """The scope in which a tower is built, within `placement.scope`.

    Raises:
      ModelError: another tower than the first makes variables of its own.
    """
    if number == 0:
        with tf1.device(_on(device)):
            yield
        return
    graph, before = tf1.get_default_graph(), len(tf1.global_variables())
    kept = {key: graph.get_collection(key) for key in _OF_A_TOWER}
    for key in kept:
        graph.clear_collection(key)
    with (
        tf1.device(_on(device)),
        tf1.name_scope(f"tower_{number}"),
        tf1.variable_scope(tf1.get_variable_scope(), reuse=True, auxiliary_name_scope=False),
    ):
        yield
    for key, values in kept.items():
        graph.clear_collection(key)
        for value in values:
            graph.add_to_collection(key, value)
    _check_no_more(tf1.global_variables()[before:], number)


def _check_no_more(variables, number):
    if not variables:
        return
    names = ", ".join(variable.op.name for variable in variables[:MAX_NAMED])
    raise ModelError(
        f"tower {number} makes variables of its own: {names}. With --towers all have to be made by "
        "tf.compat.v1.get_variable, which gives each tower the same (layers of Keras 3 and tf.Variable do not). Change that, or "
        "leave out --towers."
    )


def _on(device):
    """A device function that puts what is not on a ps, and was not put anywhere by the model, on a device of the worker's."""

    def place(op):
        spec = tf.DeviceSpec.from_string(op.device)
        if not device or op.type == "VarHandleOp" or spec.job is not None or spec.device_type is not None:
            return op.device
        return spec.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()

    return place


def mean_gradients(found):
    """The mean over the towers of each variable's gradient.

    Args:
      found: list of lists of (gradient, variable), one for each tower, the variables in the same order. A gradient is a tensor,
        IndexedSlices, or None, which counts as zero where another tower has one.

    Returns:
      list of (gradient, variable).
    """
    if len(found) == 1:
        return found[0]
    means = []
    for pairs in zip(*found, strict=True):
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        means.append((_mean(gradients, len(found)) if gradients else None, pairs[0][1]))
    return means


def _mean(gradients, count):
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        values = tf.concat([gradient.values for gradient in gradients], 0)
        indices = tf.concat([gradient.indices for gradient in gradients], 0)
        return tf.IndexedSlices(values / count, indices, gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in gradients]) / count
