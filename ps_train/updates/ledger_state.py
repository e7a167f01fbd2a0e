"""The fields of the ledger of a synchronous job, in the order of its vector; `ledger` says what they mean."""

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
