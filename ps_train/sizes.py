"""What TensorFlow cannot send in one message, a tensor or a graph of 2 GB, is refused when the graph is built.

At run time it would be an error without a name, or the end of the process.
"""

from ps_train.compat import tf1
from ps_train.errors import ModelError
from ps_train.explain import made_at
from ps_train.transport import num_bytes

MAX_BYTES = 2**31 - 2**20  # the limit of a protocol buffer, and what surrounds the values
MIN_BYTES = 2**16  # of a constant that is looked at closely
MAX_NAMED = 3


def check_sizes(graph):
    """Raises ModelError for a variable, or constants taken together, that are too large, named with their lines."""
    large = [(num_bytes(v), v.op) for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)]
    large = [(size, op) for size, op in large if size > MAX_BYTES]
    if large:
        raise ModelError(
            f"Variable {_named(large[:1])} is too large: TensorFlow sends no tensor of 2 GB or more. Make it in parts, such as with "
            "tf.compat.v1.get_variable(..., partitioner=tf.compat.v1.fixed_size_partitioner(4))."
        )
    constants = [(_num_const_bytes(op), op) for op in graph.get_operations() if op.type == "Const"]
    total = sum(size for size, _ in constants)
    if total > MAX_BYTES:
        largest = sorted(constants, key=lambda pair: -pair[0])[:MAX_NAMED]
        raise ModelError(
            f"The graph holds {_shown(total)} of constants, and TensorFlow sends no graph of 2 GB or more. The largest are "
            f"{_named(largest)}. Read such data in input_fn, batch by batch, and initial values from a checkpoint or by ops."
        )


def _num_const_bytes(op):
    """As it is sent: one value that stands for all of them is one, whatever the shape."""
    size = num_bytes(op.outputs[0])
    return size if size < MIN_BYTES else op.get_attr("value").ByteSize()


def _named(pairs):
    return ", ".join(f"{op.name} ({_shown(size)}{_place(op)})" for size, op in pairs)


def _place(op):
    place = made_at(op)
    return f", made at {place}" if place else ""


def _shown(size):
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"
