"""A graph that is wired in several ways, one at a time: what each op takes and waits for, noted and put back.

    wiring = Wiring(graph)            # as it is
    ...                               # changes inputs of ops, adds other ops
    one = wiring.note()               # what is another now
    wiring.restore()                  # as it was; what was added stays, and nothing leads to it
    wiring.apply(one)                 # for sessions that are made from now on

TensorFlow reads the wiring when a session is made; a session that has run is not to run anything more once it was changed.
"""

from typing import Any, NamedTuple


class Changes(NamedTuple):
    """What differs from the wiring that was there first.

    Attributes:
      ops: op -> (its inputs, what it waits for).
      fetches: what stands in the place of the graph's `as_graph_element`.
    """

    ops: dict
    fetches: Any


class Wiring:
    """The wiring of a graph's ops as they are now.

    Args:
      graph: with all ops but those that a way of its own adds.
    """

    def __init__(self, graph):
        self._graph = graph
        self._none = self._now = Changes({}, graph.as_graph_element)
        self._first = {op: _read(op) for op in graph.get_operations()}

    def note(self):
        """The Changes that were made since the last `restore`."""
        ops = {op: now for op, before in self._first.items() if not _is_same(now := _read(op), before)}
        self._now = Changes(ops, self._graph.as_graph_element)
        return self._now

    def restore(self):
        """Takes back what was noted, or applied, last."""
        for op in self._now.ops:
            _write(op, self._first[op])
        self._graph.as_graph_element = self._none.fetches
        self._now = self._none

    def apply(self, changes):
        """Makes changes that were noted in the place of those that are there."""
        self.restore()
        for op, wired in changes.ops.items():
            _write(op, wired)
        self._graph.as_graph_element = changes.fetches
        self._now = changes


def _read(op):
    return tuple(op.inputs), tuple(op.control_inputs)


def _is_same(one, other):
    """Tensors do not compare by `==`, which makes an op."""
    pairs = zip([*one[0], *one[1]], [*other[0], *other[1]], strict=False)
    return len(one[0]) == len(other[0]) and len(one[1]) == len(other[1]) and all(a is b for a, b in pairs)


def _write(op, wired):
    inputs, before = wired
    for index, (tensor, there) in enumerate(zip(inputs, op.inputs, strict=True)):
        if tensor is not there:
            op._update_input(index, tensor)
    if set(before) != set(op.control_inputs):
        op._remove_all_control_inputs()
        op._add_control_inputs(list(before))
