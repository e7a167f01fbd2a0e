"""What the boards of a running job say to someone outside of it, who writes nothing there. Imports no TensorFlow.

    watcher = Watcher([(TaskId("ps", 0), "10.0.0.1:2222")])
    look = watcher.look()                       # takes a second; as often as you like
    watcher.close()

1. Each ps is asked in a thread of its own, with a deadline, so that one that does not answer holds nothing up.
2. It is asked twice, a second apart: a task lives if its record has changed meanwhile. Clocks of hosts are not compared; for
   how long a task has been silent is what the ps tasks say, which look all the time.
3. In sync, the ledger is read twice, too: who owes a gradient is told only if the round has not moved.
4. Long texts of the tasks (`Monitor.publish_text`) are read from one ps, and again only if their digest is another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ps_train.board import Board, BoardError, newest
from ps_train.cluster import Cluster, TaskId
from ps_train.tables import digest, text_key
from ps_train.updates.standing import LedgerReader, Standing

CALL_SECS = 2.0
LOOK_SECS = 1.0
NOT_MADE = "failed_precondition"  # how an error begins while the variables of a job that has just begun are not there yet

Record = dict[str, Any]


@dataclass
class Sight:
    """What one ps has answered.

    Attributes:
      first, second: key -> record, of its board, about `LOOK_SECS` apart.
      rounds: sync: the standings that were read with each of the two.
      reason: why it did not answer, in words.
      note: what else could not be read.
    """

    task: TaskId
    address: str
    first: dict[str, Record] = field(default_factory=dict)
    second: dict[str, Record] = field(default_factory=dict)
    rounds: list[list[Standing]] = field(default_factory=list)
    reason: str = ""
    note: str = ""

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that the ps was started with, as its own record tells."""
        record = self.first.get(str(self.task), {})
        return Cluster.from_record(record) if "cluster" in record else None


class Look(NamedTuple):
    """What all of them have answered; `texts`: (task, name) -> text."""

    sights: list[Sight]
    texts: dict[tuple[str, str], str]


class Watcher:
    """Looks at the same ps tasks again and again; a connection that has answered is kept.

    Args:
      ps: task and `host:port` of each.
      sleep: between the two questions of a look; for tests.
    """

    def __init__(self, ps: Sequence[tuple[TaskId, str]], sleep: Callable[[float], None] = time.sleep):
        self._eyes = [_Eye(task, address, sleep) for task, address in ps]
        self._texts: dict[tuple[str, str], str] = {}

    def look(self) -> Look:
        """Asks all ps tasks at the same time, twice; not from two threads at once."""
        sights = [Sight(eye.task, eye.address) for eye in self._eyes]
        threads = [
            threading.Thread(target=eye.look, args=(sight,), daemon=True)
            for eye, sight in zip(self._eyes, sights, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._read_texts(sights)
        return Look(sights, dict(self._texts))

    def close(self) -> None:
        """Ends the connections."""
        for eye in self._eyes:
            eye.close()

    def _read_texts(self, sights: Sequence[Sight]) -> None:
        wanted = {
            (task, str(name)): known
            for task, record in newest(sight.second for sight in sights).items()
            for name, known in _texts_of(record)
        }
        self._texts = {key: text for key, text in self._texts.items() if digest(text) == wanted.get(key)}
        for eye, sight in zip(self._eyes, sights, strict=True):
            missing = [key for key in wanted if key not in self._texts]
            if missing and not sight.reason:
                found = zip(missing, eye.read_texts(missing), strict=True)
                self._texts.update({key: text for key, text in found if digest(text) == wanted[key]})


def _texts_of(record: Record) -> Iterable[tuple[str, str]]:
    texts = record.get("texts")
    return texts.items() if isinstance(texts, dict) else ()


class _Eye:
    """A connection to one ps."""

    def __init__(self, task: TaskId, address: str, sleep: Callable[[float], None]):
        self.task, self.address, self._sleep = task, address, sleep
        self._board: Board | None = None
        self._reader: LedgerReader | None = None
        self._read: Any = None  # what the reader reads

    def look(self, sight: Sight) -> None:
        """Fills it."""
        try:
            board = self._board = self._board or Board(self.address, self.task)
            sight.first = board.exchange([], CALL_SECS)
            self._make_reader(sight)
            self._read_rounds(sight)
            self._sleep(LOOK_SECS)
            sight.second = board.exchange([], CALL_SECS)
            self._read_rounds(sight)
        except BoardError as error:
            sight.reason = str(error)
        except Exception as error:  # thread boundary
            sight.reason = f"internal error: {error!r}"
        if sight.reason:
            self.close()

    def read_texts(self, keys: Sequence[tuple[str, str]]) -> list[str]:
        """Texts of (task, name); empty ones if it does not answer."""
        try:
            assert self._board is not None
            return self._board.read_texts([text_key(*key) for key in keys], CALL_SECS)
        except BoardError:
            return [""] * len(keys)

    def close(self) -> None:
        """Ends the connection; a later look makes another."""
        board, reader = self._board, self._reader
        self._board = self._reader = self._read = None
        if board is not None:
            board.close()
        if reader is not None:
            reader.close()

    def _make_reader(self, sight: Sight) -> None:
        """What reads the ledgers, if they are on this ps, the first one of the cluster."""
        described, cluster = sight.first.get("training", {}).get("ledgers"), sight.cluster
        if not described or cluster is None or cluster.ps_tasks[0] != sight.task:
            described = None
        if described == self._read:
            return
        if self._reader is not None:
            self._reader.close()
        self._read, self._reader = described, None
        if described is not None:
            assert cluster is not None
            names = [str(task) for task in cluster.training_tasks]
            self._reader = LedgerReader(self.address, self.task, described, names)

    def _read_rounds(self, sight: Sight) -> None:
        if self._reader is None or sight.note:
            return
        try:
            sight.rounds.append(self._reader.read(CALL_SECS))
        except BoardError as error:
            if str(error).startswith(NOT_MADE):
                return
            sight.note = f"the rounds' ledger on {sight.task} cannot be read: {error}"
