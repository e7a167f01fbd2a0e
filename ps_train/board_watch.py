"""One ps's board as a launcher sees it: read again and again with a deadline, in a thread that holds nobody up.

    watch = BoardWatch(TaskId("ps", 0), "127.0.0.1:2222", names=["worker:0", "worker:1"])
    watch.look(now)                      # as often as you like: reads if the last read is over
    watch.records, watch.answered_at
    watch.tell({"worker:1": {"state": "failed", ...}})

In sync the ledger, which is on the first ps, is read with the board: `rounds` says who was waited for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.cluster import ENDED, TaskId

CALL_SECS = 1.0
NUM_ROUNDS = 40
# Looks at one round that are kept, the last ones: one that stood still for long is one of many.
MAX_OF_A_ROUND = 4

Record = dict[str, Any]


class Round(NamedTuple):
    """Who owed a gradient to the open round and who had given one, of how many members; the round's number."""

    owing: tuple[str, ...]
    arrived: tuple[str, ...]
    num_members: int
    number: int = 0


class BoardWatch:
    """Reads one board.

    Args:
      ps: whose.
      address: of it.
      names: the training tasks by the numbers of their replicas, where the board's ps has the ledgers; else empty.
      start: runs a function in a thread.

    Attributes:
      records: key -> record, as they were seen last.
      answered_at: when the last look that was answered began; None: never.
      changed_at: key -> when its record was first seen as it is.
      rounds: sync: what was seen of the first ledger, oldest first.
    """

    def __init__(
        self, ps: TaskId, address: str, names: Sequence[str] = (), start: Callable[[Callable[[], None]], None] | None = None
    ):  # fmt: skip
        self._ps, self._address, self._names = ps, address, list(names)
        self._start = start or _start_thread
        self._board: Any = None
        self._reader: Any = None
        self._is_busy = self._is_closed = False
        self.answered_at: float | None = None
        self._untold: dict[str, Record] = {}
        self.records: dict[str, Record] = {}
        self.changed_at: dict[str, float] = {}
        self.rounds: deque[Round] = deque(maxlen=NUM_ROUNDS)

    def tell(self, ends: Mapping[str, Record]) -> None:
        """Has the next look write that these tasks, by name, have ended, unless the board knows it or never heard of them."""
        self._untold |= ends

    def look(self, now: float) -> None:
        """Begins to read; nothing if the last read is still under way."""
        if not self._is_busy and not self._is_closed:
            self._is_busy = True
            self._start(lambda: self._look(now))

    def close(self) -> None:
        """Ends the connection."""
        self._is_closed = True
        if not self._is_busy:
            self._disconnect()

    def _look(self, now: float) -> None:
        from ps_train.board import Board, BoardError

        try:
            self._board = self._board or Board(self._address, self._ps)
            self._note(self._exchange(), now)
            self._read_round()
        except BoardError:
            pass
        finally:
            self._is_busy = False
            if self._is_closed:  # `close` may have come before that, and have left it to this
                self._disconnect()

    def _exchange(self) -> dict[str, Record]:
        """Reads, and writes what lost tasks cannot say any more."""
        ends, records = dict(self._untold), self._board.exchange([], timeout_secs=CALL_SECS)
        written = [
            {**records[name], **end, "beat": max(time.time_ns() // 1000, records[name].get("beat", 0) + 1)}
            for name, end in ends.items()
            if name in records and records[name]["state"] not in ENDED
        ]
        if written:
            records = self._board.exchange(written, timeout_secs=CALL_SECS)
        for name in ends:
            self._untold.pop(name, None)
        return records

    def _note(self, records: dict[str, Record], now: float) -> None:
        for key, record in records.items():
            if self.records.get(key, {}).get("beat") != record.get("beat"):
                self.changed_at[key] = now
        self.records, self.answered_at = {**self.records, **records}, now

    def _read_round(self) -> None:
        from ps_train.updates.standing import LedgerReader

        described = self.records.get("training", {}).get("ledgers")
        if not described or not self._names:
            return
        if self._reader is None:
            self._reader = LedgerReader(self._address, self._ps, described, self._names)
        seen = self._reader.read(CALL_SECS)[0]
        if [one.number for one in self.rounds][-MAX_OF_A_ROUND:] == [seen.round] * MAX_OF_A_ROUND:
            self.rounds.pop()
        self.rounds.append(Round(seen.owing, seen.arrived, len(seen.members), seen.round))

    def _disconnect(self) -> None:
        for one in (self._board, self._reader):
            if one is not None:
                with contextlib.suppress(Exception):  # it is over
                    one.close()


def _start_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True, name="ps_train-board").start()
