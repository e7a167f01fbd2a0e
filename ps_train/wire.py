"""In what form a tensor travels: as it is, rounded to 16 bits, or as 8-bit numbers with a scale for each block.

    parts = encode(tensor, "int8")                  # where the tensor is; the list of tensors that are sent
    tensor = decode(parts, shape, tf.float32)       # where it is wanted
    tensor = send(tensor, "/job:ps/task:0", "/job:worker/task:0", "bfloat16")      # both

| `--wire_dtype` | sent for each element | largest error |
|---|---|---|
| `float32` | as it is, whatever its type | none |
| `bfloat16`, `float16` | 2 bytes | 1/256, 1/2048 of the element (`float16`: of no more than 65504, no less than 6e-5) |
| `int8` | 1 byte, and 4 for each BLOCK of them | 1/254 of the largest of its block; what is below TINY is 0 |

`select` and `spread` are for gradients of which only the largest elements travel.

Tensors of integers always travel as they are, and so does, with `int8`, what has fewer than MIN_QUANTIZED elements. Variables
that travel together take bfloat16 in place of int8 (`joined`).
"""

import math

from ps_train.compat import tf, tf1

EXACT = "float32"  # of the types in which tensors travel, the one that means: as they are
BLOCK = 256
MIN_QUANTIZED = 1024
LEVELS = 127.0
SAMPLE = 2**16
TINY = 1e-30  # a scale that is no less, so that a block of zeros is not divided by zero


def joined(wire_dtype):
    """The form for several tensors as one: a block of int8 might hold small numbers of one beside large ones of another."""
    return "bfloat16" if wire_dtype == "int8" else wire_dtype


def is_lossy(tensor, wire_dtype):
    """Whether a tensor of a known shape is changed by the way."""
    if wire_dtype == EXACT or not tensor.dtype.base_dtype.is_floating:
        return False
    return wire_dtype != "int8" or (tensor.shape.num_elements() or 0) >= MIN_QUANTIZED


def encode(tensor, wire_dtype):
    """The tensors that are sent for one.

    Args:
      tensor: of any type and of a shape that is known, at least if `wire_dtype` is int8.
      wire_dtype: "float32": as it is; "bfloat16", "float16" or "int8".

    Returns:
      list of one tensor, or of int8 `[blocks, BLOCK]` and the scales `[blocks, 1]`.
    """
    if not is_lossy(tensor, wire_dtype):
        return [tensor]
    if wire_dtype != "int8":
        return [tf.cast(tensor, wire_dtype)]
    # Float16 does not hold what the scales may be.
    flat = tf.cast(tf.reshape(tensor, [-1]), tf.float32 if tensor.dtype.size < 4 else tensor.dtype)
    missing = -tensor.shape.num_elements() % BLOCK
    if missing:
        flat = tf.pad(flat, [[0, missing]])
    blocks = tf.reshape(flat, [-1, BLOCK])
    scales = tf.maximum(tf.reduce_max(tf.abs(blocks), 1, keepdims=True) / LEVELS, TINY)
    return [tf.cast(tf.round(blocks * (1.0 / scales)), tf.int8), scales]


def decode(parts, shape, dtype):
    """The tensor that `encode` got, but for what was lost.

    Args:
      parts: what `encode` gave.
      shape: the tensor's.
      dtype: its type.
    """
    first, *scales = parts
    if not scales:
        return tf.cast(first, dtype)
    flat = tf.cast(tf.reshape(tf.cast(first, scales[0].dtype) * scales[0], [-1]), dtype)
    return tf.reshape(flat[: math.prod(shape)] if math.prod(shape) % BLOCK else flat, shape)


def select(tensor, fraction):
    """The elements of a tensor that are the largest, whatever their sign.

    Args:
      tensor: of floating point and of a shape that is known.
      fraction: of all elements; about so many are selected, as the bound is that of a sample if there are more than SAMPLE.

    Returns:
      (int32 `[selected]`, their places in the flat tensor; their values; the tensor with zeros in their places).
    """
    flat = tf.reshape(tensor, [-1])
    size = tensor.shape.num_elements()
    stride = -(-size // SAMPLE)
    sample = tf.abs(flat[::stride])
    count = max(1, round(fraction * -(-size // stride)))
    # A zero is never worth sending.
    bound = tf.maximum(tf.math.top_k(sample, count, sorted=True).values[-1], TINY)
    is_large = tf.abs(flat) >= bound
    places = tf.reshape(tf.where(is_large), [-1])
    rest = tf.reshape(tf.where(is_large, tf.zeros_like(flat), flat), tensor.shape)
    return tf.cast(places, tf.int32), tf.gather(flat, places), rest


def spread(places, values, shape):
    """A tensor of zeros with these values in these places, as of `select`."""
    flat = tf.scatter_nd(places[:, tf.newaxis], values, [math.prod(shape)])
    return tf.reshape(flat, shape)


def send(tensor, source, target, wire_dtype=EXACT):
    """A tensor that is on the device `source`, on the device `target`."""
    with tf1.device(source):
        parts = encode(tensor, wire_dtype)
    with tf1.device(target):
        return decode(parts, tensor.shape, tensor.dtype.base_dtype)
