"""The fields of the vectors on a ps, in their order; `ledger` and `lead` say what they mean."""

from typing import Any, NamedTuple


class LedgerState(NamedTuple):
    """The ledger's fields, as tensors in the graph, or as numbers in a snapshot."""

    round: Any
    going: Any
    updating: Any
    paused: Any
    torn: Any
    member: Any
    pending: Any
    waiting: Any
    claimed: Any
    arrived: Any

    @classmethod
    def from_vector(cls, vector: Any, num_replicas: int) -> "LedgerState":
        """From the int64 vector `[5 + 5 * num_replicas]` that the ps holds."""
        rows = [vector[5 + i * num_replicas : 5 + (i + 1) * num_replicas] for i in range(5)]
        return cls(*[vector[i] for i in range(5)], *rows)


class LeadState(NamedTuple):
    """The vector's rows, `[replicas]` each, as tensors or numbers."""

    member: Any
    waiting: Any
    steps: Any

    @classmethod
    def from_vector(cls, vector: Any, num_replicas: int) -> "LeadState":
        """From the int64 vector `[3 * num_replicas]` that the ps holds."""
        return cls(*[vector[i * num_replicas : (i + 1) * num_replicas] for i in range(3)])
