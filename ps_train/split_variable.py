"""A large variable whose rows lie on several ps tasks, and which a model uses as if it were one.

    split = Split("table", parts)              # parts: variables along axis 0, in their order; `splitting` makes them
    tf.matmul(features, split)                 # the whole: its parts are pulled and joined on the worker
    tf.nn.embedding_lookup(split, ids)         # rows: only those wanted are pulled, each from the ps that has it

What is read is what the unsplit variable would give, for a lookup, too (TensorFlow's own PartitionedVariable gives another order
of rows by default, and the whole table to `tf.gather`). Parts are variables like others: gradients, optimizers, slots and
checkpoints know them one by one. What only a single variable has, such as `handle`, is refused in words.
"""

import inspect
import itertools
import typing

import numpy as np

from ps_train.compat import register_dispatchable, tf, tf1
from ps_train.errors import ModelError


class ShardedVariable:
    """By this name of a class, tf_keras knows that a variable has parts, and takes these one by one."""


@register_dispatchable
class Split(ShardedVariable):
    """Stands for a variable in parts along axis 0.

    Iterated, it gives its parts.

    Args:
      name: the variable's, with no index of an output.
      parts: variables, in their order.

    Attributes:
      parts: tuple of them.
    """

    __array_priority__ = 100  # so that NumPy leaves an operator to this class

    def __init__(self, name, parts):
        self.parts = tuple(parts)
        self._name = name
        rows = [part.shape[0] for part in self.parts]
        self._starts = np.array([0, *itertools.accumulate(rows)])
        self._shape = tf.TensorShape([self._starts[-1], *self.parts[0].shape[1:]])
        with tf.init_scope(), tf1.name_scope(f"ps_train/split/{name}/"):
            self._fetched = self.read_value()  # made before the graph is finalized

    name = property(lambda self: f"{self._name}:0")
    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self.parts[0].dtype.base_dtype)
    graph = property(lambda self: self.parts[0].graph)
    trainable = property(lambda self: True)
    initializer = property(lambda self: tf.group(*(part.initializer for part in self.parts)))
    initial_value = property(lambda self: tf.concat([part.initial_value for part in self.parts], 0))

    @property
    def op(self):
        """Something with the name of the variable's op, and nothing else."""
        return _OpName(self)

    def __iter__(self):
        return iter(self.parts)

    def __repr__(self):
        return f"<Split {self.name!r} shape={self.shape} dtype={self.dtype.name} in {len(self.parts)} parts>"

    def __getattr__(self, name):
        if name in ("handle", "_lazy_read") or (name[:1] != "_" and hasattr(tf.Variable, name)):
            raise self._refusal("an update of its rows" if name == "_lazy_read" else f"its {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refusal(self, what):
        return ModelError(
            f"The variable {self._name} is split in {len(self.parts)} parts by --partition=auto, and {what} needs a whole one. "
            "Leave out --partition=auto, or split it by hand and use its parts: "
            "tf.compat.v1.get_variable(..., partitioner=tf.compat.v1.fixed_size_partitioner(2))."
        )

    def get_shape(self):
        """The shape of the whole."""
        return self.shape

    def value(self):
        """The whole, as of the moment when the step comes to it."""
        return tf.concat([part.value() for part in self.parts], 0)

    def read_value(self):
        """As `value`, read anew."""
        return tf.concat([part.read_value() for part in self.parts], 0)

    def initialized_value(self):
        """The whole, initialized before."""
        return tf.concat([part.initialized_value() for part in self.parts], 0)

    def eval(self, session=None):
        """The whole as an array."""
        return self._fetched.eval(session=session)

    def _as_graph_element(self):
        return self._fetched  # `Session.run` fetches it

    def assign(self, value, use_locking=False, name=None, read_value=True):
        """Gives all parts their rows of a value; returns the new value, or an op without `read_value`."""
        return self._change("assign", value, use_locking, read_value)

    def assign_add(self, delta, use_locking=False, name=None, read_value=True):
        """As `assign`, adding."""
        return self._change("assign_add", delta, use_locking, read_value)

    def assign_sub(self, delta, use_locking=False, name=None, read_value=True):
        """As `assign`, subtracting."""
        return self._change("assign_sub", delta, use_locking, read_value)

    def _change(self, method, value, use_locking, read_value):
        pieces = tf.split(tf.convert_to_tensor(value, self.dtype), np.diff(self._starts))
        changes = [
            getattr(part, method)(piece, use_locking=use_locking, read_value=False)
            for part, piece in zip(self.parts, pieces, strict=True)
        ]
        if not read_value:
            return tf.group(*changes)
        with tf1.control_dependencies(changes):
            return self.read_value()

    def gather_nd(self, indices, name=None):
        """As `tf.gather_nd`, of the whole."""
        return tf.gather_nd(self.value(), indices, name=name)

    def sparse_read(self, indices, name=None):
        """Rows by their numbers, each pulled from the ps that has it; what `tf.gather` calls.

        Args:
          indices: int32 or int64, of any shape.
          name: of the op.

        Returns:
          tensor `[*indices.shape, *shape[1:]]`, whose gradient for each part is IndexedSlices.
        """
        with tf1.name_scope(name, f"{self._name.rpartition('/')[2]}_rows"):
            indices = tf.convert_to_tensor(indices)
            flat = tf.reshape(indices, [-1])
            starts = tf.constant(self._starts[:-1], flat.dtype)
            numbers = tf.searchsorted(starts[1:], flat, side="right")  # of the parts
            local = tf.dynamic_partition(flat - tf.gather(starts, numbers), numbers, len(self.parts))
            places = tf.dynamic_partition(tf.range(tf.size(flat)), numbers, len(self.parts))
            rows = []
            for part, wanted in zip(self.parts, local, strict=True):
                # A lookup is with its variable, whatever the caller is colocated with.
                with tf1.colocate_with(None, ignore_existing=True), tf1.device(part.device):
                    rows.append(part.sparse_read(wanted))
            found = tf.raw_ops.ParallelDynamicStitch(indices=places, data=rows)
            found = tf.reshape(found, tf.concat([tf.shape(indices), self.shape[1:].as_list()], 0))
            found.set_shape(indices.shape.concatenate(self.shape[1:]))
            return found


class _OpName:
    """What `Split.op` gives."""

    def __init__(self, split):
        self._split = split
        self.name = split._name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._split._refusal("its op" if name == "_as_graph_element" else f"its op.{name}")


def parts_of(variables):
    """A list of variables, or one, with the parts of each Split in its place; None for None."""
    if variables is None:
        return None
    found: list[typing.Any] = []
    for variable in tf.nest.flatten(variables):
        found += variable.parts if isinstance(variable, Split) else [variable]
    return found


def _to_tensor(split, dtype=None, name=None, as_ref=False):
    if as_ref:
        raise split._refusal("tf.gradients or colocate_with of it")
    if dtype is not None and not dtype.is_compatible_with(split.dtype):
        raise ValueError(f"{split!r} cannot be made a tensor of {dtype.name}")
    return split.value()


def _overload(operator):
    run = getattr(tf.Tensor, operator)

    def method(self, *args, **kwargs):
        return run(self.value(), *args, **kwargs)

    setattr(Split, operator, method)


# Two are equal if they are the same, as with variables in a graph.
for _operator in sorted(tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}):
    _overload(_operator)
tf.register_tensor_conversion_function(Split, _to_tensor)


# Lookups make a tensor of what is no variable of TensorFlow's own, which would pull the whole table.

_ONE = typing.Union[Split, list[Split]]  # noqa: UP007, as TensorFlow's dispatch reads it
_IDS = typing.Union[  # noqa: UP007
    tf.Tensor, tf.Variable, np.ndarray, np.generic, int, list, tuple
]  # fmt: skip


def _bound(api, args, kwargs, table):
    """The arguments of a call by their names, and the only Split among the tables that it is given."""
    bound = inspect.signature(api).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    tables = arguments[table] if isinstance(arguments[table], list) else [arguments[table]]
    if len(tables) > 1:
        raise tables[0]._refusal("a lookup in several variables together")
    return arguments, tables[0]


@tf.experimental.dispatch_for_api(tf1.nn.embedding_lookup, {"params": _ONE, "ids": _IDS})
def _lookup(*args, **kwargs):
    arguments, split = _bound(tf1.nn.embedding_lookup, args, kwargs, "params")
    ids, max_norm = tf.convert_to_tensor(arguments["ids"]), arguments["max_norm"]
    rows = split.sparse_read(ids, name=arguments["name"])
    if max_norm is None:
        return rows
    rank = split.shape.rank - 1
    return tf.clip_by_norm(rows, max_norm, axes=[-1 - axis for axis in range(rank)] if rank else [])


@tf.experimental.dispatch_for_api(tf1.nn.embedding_lookup_sparse, {"params": _ONE, "sp_ids": tf.SparseTensor})
def _lookup_sparse(*args, **kwargs):
    arguments, split = _bound(tf1.nn.embedding_lookup_sparse, args, kwargs, "params")
    rows, places = _rows(split, arguments["sp_ids"].values)
    arguments |= {"params": rows, "sp_ids": arguments["sp_ids"].with_values(places)}
    return tf1.nn.embedding_lookup_sparse(**arguments)


@tf.experimental.dispatch_for_api(
    tf1.nn.safe_embedding_lookup_sparse, {"embedding_weights": _ONE, "sparse_ids": tf.SparseTensor}
)
def _safe_lookup_sparse(*args, **kwargs):
    """Reads the rows that TensorFlow would, and no other: an optimizer with a memory changes each that has a gradient, even of zeros."""
    arguments, split = _bound(tf1.nn.safe_embedding_lookup_sparse, args, kwargs, "embedding_weights")
    ids, weights, default = (arguments[name] for name in ("sparse_ids", "sparse_weights", "default_id"))
    is_kept = ids.values >= 0
    if weights is not None:
        if arguments["combiner"] != "sum":
            is_kept &= weights.values > 0
        weights = tf.sparse.retain(weights, is_kept)
    ids = tf.sparse.retain(ids, is_kept)
    by_entry = tf.sparse.reshape(ids, tf.stack([tf.reduce_prod(ids.dense_shape[:-1]), ids.dense_shape[-1]]))
    _, is_empty = tf.sparse.fill_empty_rows(by_entry, tf.zeros([], ids.dtype))
    # What an entry without ids gets is first, so that TensorFlow finds it there.
    num_first = tf.cast(tf.reduce_any(is_empty), tf.int32)
    first = tf.fill([num_first], tf.cast(0 if default is None else default, ids.dtype))
    rows, places = _rows(split, tf.concat([first, ids.values], 0))
    arguments |= {
        "embedding_weights": rows,
        "sparse_ids": ids.with_values(places[num_first:]),
        "sparse_weights": weights,
        "default_id": None if default is None else 0,
    }
    return tf1.nn.safe_embedding_lookup_sparse(**arguments)


def _rows(split, ids):
    """The rows wanted, each once, and for each id the place of its row among them."""
    distinct, places = tf.unique(ids)
    return split.sparse_read(distinct), places
