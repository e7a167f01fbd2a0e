"""A flat variable on a ps, whose pieces stand in for other variables, its members; see `fusing`.

flat = FlatVariable(handle, members)            # handle: the resource, of as many elements as all members
session.run(flat.fill())                        # the members' values, as they were initialized or restored
session.run(flat.clear())
flat.pieces(flat.read(), {0, 2})                # number -> tensor of the member's shape
"""

import itertools
from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.transport import unpack


class FlatVariable(NamedTuple):
    """One flat variable; `handle` is the resource, `members` are the variables in their order."""

    handle: Any
    members: list

    @property
    def device(self):
        """The ps."""
        return self.members[0].device

    @property
    def dtype(self):
        """Of all members."""
        return self.members[0].dtype.base_dtype

    @property
    def sizes(self):
        """Elements of each member."""
        return [member.shape.num_elements() for member in self.members]

    def read(self):
        """The whole, `[elements]`."""
        with tf1.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def pieces(self, whole, indices):
        """Of a tensor of all elements, those of some members: number -> tensor of the member's shape."""
        shapes, wanted = [member.shape for member in self.members], sorted(set(indices))
        if len(wanted) == len(shapes):
            return dict(enumerate(unpack(whole, shapes)))
        starts = [0, *itertools.accumulate(self.sizes)]
        return {i: tf.reshape(whole[starts[i] : starts[i + 1]], shapes[i]) for i in wanted}

    def fill(self):
        """Op that copies the members' values."""
        with tf1.device(self.device):
            values = [tf.reshape(member.read_value(), [-1]) for member in self.members]
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.concat(values, 0))

    def clear(self):
        """Op that leaves the members an empty value, so that whoever missed a read fails and gets no old one.

        Not in one run with a read: TensorFlow's optimizer takes the shape that is assigned for the one that is read.
        """
        with tf1.device(self.device):
            # Of no shape that is known: TensorFlow refuses another than the variable's when the graph is built.
            empty = tf1.placeholder_with_default(tf.zeros([0], self.dtype), None)
            clear = [
                tf.raw_ops.AssignVariableOp(resource=member.handle, value=empty) for member in self.members
            ]
            return tf.group(*clear)

    def initializers(self):
        """For each member's initializer an op that does the same to its piece."""
        ops, start = {}, 0
        for member, size in zip(self.members, self.sizes, strict=True):
            value = member.initializer.inputs[1]
            with tf1.device(self.device):
                ops[member.initializer] = tf.raw_ops.ResourceStridedSliceAssign(
                    ref=self.handle,
                    begin=[start],
                    end=[start + size],
                    strides=[1],
                    value=tf.reshape(value, [-1]),
                )
            start += size
        return ops
