"""How many gradients each accumulator of a synchronous optimizer holds, read from outside of the training session.

    reader = AccumulatorReader(address, TaskId("ps", 0), accumulators)       # those that live on that ps
    reader.read()                            # [1, 1, 0]

The read is an op of its own on the ps, with a deadline; it takes nothing out.
"""

from ps_train.board import ControlSession
from ps_train.messages import Node, read_node

_COUNT_OPS = {
    "ResourceConditionalAccumulator": "ResourceAccumulatorNumAccumulated",
    "ConditionalAccumulator": "AccumulatorNumAccumulated",
    "SparseConditionalAccumulator": "AccumulatorNumAccumulated",
}


class AccumulatorReader:
    """Counts the gradients in the accumulators on one ps.

    Args:
      address: `host:port` of the ps.
      ps: its task.
      accumulators: `tf1.ConditionalAccumulator`s and sparse ones of the graph that trains.
    """

    def __init__(self, address, ps, accumulators):
        nodes = []
        for number, accumulator in enumerate(accumulators):
            op = accumulator.accumulator_ref.op
            nodes.append(read_node(op.node_def.SerializeToString()))
            nodes.append(Node(f"count{number}", _COUNT_OPS[op.type], [op.name]))
        self._fetches = [f"count{number}:0" for number in range(len(accumulators))]
        self._session = ControlSession(address, ps, nodes)

    def read(self, timeout_secs=2.0):
        """Gradients in each, a list of int in the order of the accumulators.

        Args:
          timeout_secs: for the whole call.

        Raises:
          BoardError: no answer in time, or nothing there.
        """
        return self._session.run({}, self._fetches, timeout_secs=timeout_secs)

    def close(self):
        """Closes the connection."""
        self._session.close()
