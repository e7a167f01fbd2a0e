"""Where the open round of a synchronous job stands, who has given its gradient and who owes it; and with --max_lead who waits.

    reader = LedgerReader("10.0.0.1:2222", TaskId("ps", 0), described, ["worker:0", "worker:1"])
    reader.read()[0].owing                   # ('worker:1',)
    read_lead("10.0.0.1:2222", TaskId("ps", 0), place_of(lead.vector), names).waiting

What is read is the ledger's variable and the sizes of its queues, by their names on the ps, with a deadline, and without
TensorFlow in the reading process. Nothing is changed, and nobody waits for the reader. The chief tells the names on the
boards as `describe` makes them (the record "training").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.board import ControlSession
from ps_train.cluster import TaskId
from ps_train.messages import DType, Node, Shape
from ps_train.updates.vector_states import LeadState, LedgerState


class Standing(NamedTuple):
    """The open round of one ledger; tasks by name.

    Attributes:
      round: its number.
      needed: gradients that its update takes.
      members: who is counted.
      pending: who asked to join and is let in when the round completes.
      claimed: who has a place in it, its gradients being on their way to the accumulators, or there.
      arrived: whose gradients are there.
      is_rung: whether the round is full and the chief's update was called for it.
      num_rung: calls that no update has taken yet.
      is_updating: whether the update runs.
      is_paused: whether the chief holds updates back while it saves.
      is_torn: whether a worker was lost halfway through its push, so that the round is to be done again.
      tokens: task -> tokens in its queue, each of which lets it go on by a step.
    """

    round: int
    needed: int
    members: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    arrived: tuple[str, ...] = ()
    is_rung: bool = False
    num_rung: int = 0
    is_updating: bool = False
    is_paused: bool = False
    is_torn: bool = False
    tokens: Mapping[str, int] = {}

    @property
    def owing(self) -> tuple[str, ...]:
        """Who can still give what the round lacks; nobody if it is full.

        >>> Standing(7, needed=2, members=("worker:0", "worker:1"), arrived=("worker:0",)).owing
        ('worker:1',)
        """
        if len(self.arrived) >= self.needed:
            return ()
        are_places_taken = len(self.claimed) >= self.needed
        candidates = self.claimed if are_places_taken else self.members
        return tuple(name for name in candidates if name not in self.arrived)

    @classmethod
    def from_vector(cls, vector: Sequence[int], quorum: int, names: Sequence[str], **more: Any) -> Standing:
        """From the ledger's vector; `names` are the replicas' tasks by number."""
        state = LedgerState.from_vector(vector, len(names))

        def chosen(flags: Sequence[bool]) -> tuple[str, ...]:
            return tuple(name for name, flag in zip(names, flags, strict=True) if flag)

        claimed = [last == state.round for last in state.claimed]
        counted = sum(is_member > 0 or has for is_member, has in zip(state.member, claimed, strict=True))
        return cls(
            round=state.round,
            needed=min(quorum, counted),
            members=chosen([flag > 0 for flag in state.member]),
            pending=chosen([flag > 0 for flag in state.pending]),
            claimed=chosen(claimed),
            arrived=chosen([last == state.round for last in state.arrived]),
            is_rung=state.going >= state.round,
            is_updating=state.updating > 0,
            is_paused=state.paused > 0,
            is_torn=state.torn > 0,
            **more,
        )


class LedgerReader:
    """Reads the ledgers of a job, all of them on one ps.

    Args:
      address: `host:port` of that ps.
      ps: its task.
      described: a dict of `describe` for each ledger.
      names: the training tasks by the numbers of their replicas.
    """

    def __init__(
        self, address: str, ps: TaskId, described: Sequence[Mapping[str, Any]], names: Sequence[str]
    ):
        self._described, self._names = described, names
        nodes = [node for i, one in enumerate(described) for node in self._nodes(i, one)]
        self._session = ControlSession(address, ps, nodes)

    def read(self, timeout_secs: float = 2.0) -> list[Standing]:
        """The present standing of each ledger; raises BoardError as `Board.exchange`."""
        count = len(self._names)
        fetches = [
            f"{what}:0"
            for i in range(len(self._described))
            for what in (f"vector{i}", f"go_size{i}", *(f"token_size{i}_{k}" for k in range(count)))
        ]
        values = iter(self._session.run({}, fetches, timeout_secs=timeout_secs))
        found = []
        for one in self._described:
            vector, num_rung = next(values), next(values)
            tokens = {name: next(values) for name in self._names}
            found.append(
                Standing.from_vector(vector, one["quorum"], self._names, num_rung=num_rung, tokens=tokens)
            )
        return found

    def close(self) -> None:
        """Closes the connection."""
        self._session.close()

    def _nodes(self, i: int, one: Mapping[str, Any]) -> list[Node]:
        shape = Shape([5 + 5 * len(self._names)])
        nodes = _vector_nodes(str(i), one, shape)
        queues = {f"go{i}": f"{one['name']}_go"}
        queues |= {f"token{i}_{k}": f"{one['name']}_token{k}" for k in range(len(self._names))}
        for name, shared_name in queues.items():
            nodes.append(queue_node(name, shared_name, one["container"]))
            nodes.append(Node(name.replace(str(i), f"_size{i}", 1), "QueueSizeV2", [name]))
        return nodes


class LeadStanding(NamedTuple):
    """Who is how far, with --max_lead; tasks by name.

    Attributes:
      steps: member -> its steps.
      waiting: who waits for the slowest.
    """

    steps: Mapping[str, int]
    waiting: tuple[str, ...] = ()

    @property
    def slowest(self) -> tuple[str, ...]:
        """The members that the others wait for.

        >>> LeadStanding({"worker:0": 12, "worker:1": 9}, ("worker:0",)).slowest
        ('worker:1',)
        """
        least = min(self.steps.values(), default=0)
        return tuple(name for name, steps in self.steps.items() if steps == least)


def read_lead(
    address: str, ps: TaskId, place: Mapping[str, Any], names: Sequence[str], timeout_secs: float = 2.0
) -> LeadStanding:
    """The present standing; arguments as `LedgerReader`'s, with one dict of `place_of`; raises BoardError as `Board.exchange`."""
    session = ControlSession(address, ps, _vector_nodes("0", place, Shape([3 * len(names)])))
    try:
        (vector,) = session.run({}, ["vector0:0"], timeout_secs=timeout_secs)
    finally:
        session.close()
    state = LeadState.from_vector(vector, len(names))
    rows = list(zip(names, state.member, state.steps, state.waiting, strict=True))
    return LeadStanding(
        {name: int(steps) for name, is_member, steps, _ in rows if is_member > 0},
        tuple(name for name, _, _, is_waiting in rows if is_waiting > 0),
    )


def _vector_nodes(suffix: str, place: Mapping[str, Any], shape: Shape) -> list[Node]:
    attrs = {"container": place["container"].encode(), "shared_name": place["variable"].encode()}
    return [
        Node(f"variable{suffix}", "VarHandleOp", attrs={**attrs, "dtype": DType.INT64, "shape": shape}),
        Node(f"vector{suffix}", "ReadVariableOp", [f"variable{suffix}"], {"dtype": DType.INT64}),
    ]


def queue_node(name: str, shared_name: str, container: str = "") -> Node:
    """The ledger's queue of this shared name, as the graph of the training has it."""
    return Node(name, "FIFOQueueV2", attrs={
        "component_types": [DType.INT64], "shapes": [Shape()], "capacity": -1, "container": container.encode(),
        "shared_name": shared_name.encode(),
    })  # fmt: skip


def describe(ledger: Any) -> dict[str, Any]:
    """How another process finds a `ledger.Ledger`, as JSON can hold it."""
    return {"name": ledger.name, **place_of(ledger.vector), "quorum": ledger.quorum}


def place_of(vector: Any) -> dict[str, str]:
    """How another process finds a `locked.LockedVector`."""
    handle = vector.variable.handle.op
    return {
        "variable": handle.get_attr("shared_name").decode(),
        "container": handle.get_attr("container").decode(),
    }
