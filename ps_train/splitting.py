"""`--partition=auto`: large variables of `get_variable` are split over the ps tasks, without a word in the model.

    getter = Splitter(num_ps=2, is_on=True, setter=setter)       # the device function of `placement.scope`
    with tf1.variable_scope(tf1.get_variable_scope(), custom_getter=getter):
        table = tf1.get_variable("table", [10_000_000, 64])          # a Split of two parts, each on the ps that holds least

Split is a trainable variable of one of TYPES whose parts have MIN_PART_BYTES or more on average, in as many parts as there are ps
tasks or fewer. TensorFlow's partitioner makes the parts, along axis 0; so a checkpoint has the whole variable and its whole slots under
their own names, and any number of ps restores them. Left as it is is what the user has placed (a device scope that names a task,
a partitioner), what is not a resource variable, and what has a `constraint` or no shape that is known.

Initial values are those of the whole: an initializer that TensorFlow can ask for a part is asked so (each part is then made by
itself), any other is called once for the whole, of which each part takes its rows.
"""

import inspect

import numpy as np

from ps_train.compat import tf, tf1
from ps_train.split_variable import Split

NONE, AUTO = "none", "auto"
MIN_PART_BYTES = 4 * 2**20
TYPES = (tf.float32, tf.float64, tf.bfloat16)  # TensorFlow restores no parts of a float16 variable
SPLIT_PARTS = "ps_train/split_parts"  # collection: names of the parts that were made here
SPLITTABLE = "ps_train/splittable"  # collection: names of variables that AUTO would have split


class Splitter:
    """A custom getter for a variable scope, one for a graph.

    Args:
      num_ps: of the cluster.
      is_on: False only notes in SPLITTABLE what would be split.
      setter: tells what device scopes of the user's say: `is_overruled()`, whether one names the task of what would be made
        now, `is_placed(name)`, whether one did for a variable.
    """

    def __init__(self, num_ps, is_on, setter):
        self._num_ps, self._is_on, self._setter = num_ps, is_on, setter
        self._made = {}
        self._whole = set()  # names of those that were left as they are

    def __call__(self, getter, name, **kwargs):
        """What `get_variable` returns."""
        if name in self._made and kwargs.get("partitioner") is None:
            return self._again(getter, name, kwargs)
        shape, dtype = _shape_and_type(kwargs)
        num_parts = self._count(shape, dtype, kwargs)
        if num_parts < 2 or kwargs.get("reuse") is True or name in self._whole:
            return getter(name=name, **kwargs)
        if not self._is_on or self._setter.is_overruled():
            self._whole.add(name)
            made = getter(name=name, **kwargs)
            if not self._is_on and not self._setter.is_placed(name):
                tf1.add_to_collection(SPLITTABLE, name)
            return made
        return self._split(getter, name, kwargs | {"shape": shape, "dtype": dtype}, num_parts)

    def _split(self, getter, name, kwargs, num_parts):
        initializer, regularizer = kwargs["initializer"], kwargs["regularizer"]
        if not _can_make_parts(initializer):
            initializer = _Rows(initializer, kwargs["shape"], kwargs["dtype"])
        parts = getter(name=name, **kwargs | {
            "initializer": initializer, "regularizer": None, "partitioner": tf1.fixed_size_partitioner(num_parts)
        })  # fmt: skip
        split = self._made[name] = Split(name, parts)
        for part in parts:
            tf1.add_to_collection(SPLIT_PARTS, part.op.name)
        if regularizer is not None:
            with tf1.name_scope(f"{name}/Regularizer/"):
                loss = regularizer(split)
            if loss is not None:
                tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, loss)
        return split

    def _again(self, getter, name, kwargs):
        """The same object once more, if TensorFlow's rules of reuse allow it."""
        split = self._made[name]
        shape, dtype = _shape_and_type(kwargs)
        if shape.rank is None:
            shape = split.shape
        partitioner = tf1.fixed_size_partitioner(len(split.parts))
        getter(name=name, **kwargs | {
            "shape": shape, "dtype": dtype, "initializer": None, "regularizer": None, "partitioner": partitioner
        })  # fmt: skip
        return split

    def _count(self, shape, dtype, kwargs):
        """Into how many parts a variable goes; 1: it is left whole."""
        collections = kwargs.get("collections")
        is_ours = (
            kwargs.get("trainable") is not False
            and (collections is None or tf1.GraphKeys.GLOBAL_VARIABLES in collections)
            and dtype in TYPES
            and shape.rank
            and shape.is_fully_defined()
        )
        is_special = (
            kwargs.get("partitioner") is not None
            or kwargs.get("constraint") is not None
            or kwargs.get("caching_device") is not None
            or not kwargs.get("validate_shape", True)
        )
        if not is_ours or is_special or not _makes_resources(kwargs):
            return 1
        return max(1, min(self._num_ps, shape[0], shape.num_elements() * dtype.size // MIN_PART_BYTES))


def _makes_resources(kwargs):
    use_resource = kwargs.get("use_resource")
    return tf1.resource_variables_enabled() if use_resource is None else use_resource


def _shape_and_type(kwargs):
    """Those of the variable that is asked for, as TensorFlow takes them from its initial value."""
    shape, dtype, initializer = kwargs.get("shape"), kwargs.get("dtype"), kwargs.get("initializer")
    if isinstance(initializer, (tf.Tensor, np.ndarray)):
        return tf.TensorShape(initializer.shape), tf.as_dtype(initializer.dtype).base_dtype
    if shape is None or (initializer is not None and not callable(initializer)):
        return tf.TensorShape(None), tf.as_dtype(dtype or tf.float32)
    return tf.TensorShape(shape), tf.as_dtype(dtype or tf.float32).base_dtype


def _can_make_parts(initializer):
    """Whether an initializer gives a part what it would give those rows of the whole, or as good."""
    if initializer is None:
        return True
    kinds = (
        tf1.zeros_initializer, tf1.ones_initializer, tf1.random_uniform_initializer, tf1.random_normal_initializer,
        tf1.truncated_normal_initializer, tf1.variance_scaling_initializer, tf1.glorot_uniform_initializer,
        tf1.glorot_normal_initializer,
    )  # fmt: skip
    # With a seed of its own every part would be the same.
    return type(initializer) in kinds and getattr(initializer, "seed", None) is None


class _Rows:
    """An initializer for parts: their rows of one value, which is made when the first part asks for it."""

    def __init__(self, initializer, shape, dtype):
        self._initializer, self._shape, self._dtype = initializer, shape.as_list(), dtype
        self._whole = None

    def __call__(self, shape, dtype=None, partition_info=None):
        """The rows of the part that `partition_info` names."""
        start = partition_info.var_offset[0]
        if isinstance(self._initializer, np.ndarray):
            return tf.constant(self._initializer[start : start + shape[0]], dtype)
        if self._whole is None:
            self._whole = self._make()
        return self._whole[start : start + shape[0]]

    def _make(self):
        initializer = self._initializer
        if isinstance(initializer, tf.Tensor):
            return initializer
        if inspect.isclass(initializer):
            initializer = initializer()
        # The function of an object; what cannot be looked into is TensorFlow's or Keras's.
        named = inspect.signature(initializer).parameters
        more = {"partition_info": None} if "partition_info" in named else {}
        return tf.convert_to_tensor(initializer(self._shape, dtype=self._dtype, **more), self._dtype)
