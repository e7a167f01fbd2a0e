"""The reading side of the work queue (--input=workqueue): datasets of what a worker takes from `piece_queue`.

    numbers = reader.numbers()                                 # a dataset of numbers, for code of the user's
    data = reader.batches(read, 32)                            # for a helper: of what `read(numbers)` gives, in batches
    data = reader.finish(data.map(parse))

A dataset's functions run on the worker and reach no other task, so what takes pieces is Python code with a ControlSession on
the queue's ps: its calls have a deadline and are made again until they are answered, the job ends, or the dataset starts anew.

A piece in hand is told as done when a step is done that nothing of it comes after. The worker tells what it asks for and gets
(`following`): with its asking for the first batch of a step, what came before is of steps that are done.

- `batches` numbers the groups of pieces that it reads, one after the other, and notes which group a batch begins with: those before
  have come whole once that batch is the worker's next.
- `numbers` sees no records: a piece has been read once the reader asks for the one after it.

While the worker waits for a batch and nothing is on its way, all that has come is done, in a step that is not full yet, too: it
may never be. An error marks nothing as done, though tf.data reads on after it: a batch that was pulled and not made tells of it.

Where no piece is left to take, yet another worker may be lost with some (`passes` is a number), what there is makes a smaller
batch, and the worker waits. It does not where the other ones wait for its steps, in sync, with --max_lead and between towers: its data ends.
"""

import collections
import random
import threading
import time
from typing import Any

import numpy as np

from ps_train.board import BoardError
from ps_train.compat import tf, tf1
from ps_train.data.calls import call, no_autograph
from ps_train.data.order import FOR_EVER
from ps_train.logs import Throttle, log
from ps_train.piece_queue import OVER, STALE

CALL_SECS = 2.0
RETRY_SECS = 0.1
SILENCE_SECS = 10.0
NEW_PROCESS = (
    "failed_precondition",
    "the server was restarted",
)  # what a ps says that knows nothing of the queue
BUFFERED = 2  # batches that are made ahead
# By a reader that begins anew with a dataset that goes on.
KEPT = ("_number", "_asked", "_made", "_left", "_is_pulling", "_has_failed")


class Reader:
    """Takes the pieces of one queue for one holder, and tells which are done.

    Args:
      count: of pieces.
      make_session: makes the ControlSession.
      place: of the queue, in words.
      waits: whether it waits for pieces that others have in hand and may lose.
      group: see `work.Work.reader`.

    Attributes:
      should_stop: function: whether the worker ends; set when the session is made.
      steps_begun: function: steps of several batches that the worker has begun; None where each batch is one.
      data: the dataset that it has made.
      is_direct: whether a batch of `data` is one of the worker's, in its order, so that `note_came` tells of it.
      passes_errors: whether reading goes on after an error.
    """

    def __init__(self, count, make_session, place, waits, group=1):
        self.count = count
        self._make_session, self._place, self._waits, self._group = make_session, place, waits, group
        self.should_stop = lambda: False
        self.steps_begun: Any = lambda: None
        self.data: Any = None
        self.is_direct = self.passes_errors = False
        self._is_asking = self._is_new_step = (
            False  # whether the worker waits for a batch; whether that is a step's first
        )
        self._step: Any = None
        self._session = None
        self._lock = threading.Condition()
        self._is_paced = False  # whether no more is taken than the reader of `numbers` asks for, and one
        self._reading = 0  # the dataset's start that counts; 0 for none
        self._clear()

    def _clear(self):
        self._run = random.getrandbits(62) | 1
        self._serial, self._has_joined = 0, False
        self._number = self._asked = 0  # of the group that is taken; of the numbers that were asked for
        self._in_hand: Any = collections.deque()  # (group, piece)
        self._finished = []  # pieces of which the queue is to be told
        self._made: Any = collections.deque()  # the first groups of batches that the worker has not got yet
        self._opened: list[int] = []
        self._left = 0  # groups before it have left the reader whole
        self._is_pulling = self._has_failed = False
        self._is_first = self._is_waiting = self._is_over = False

    @property
    def follows_batches(self):
        """Whether it gives batches, and no numbers."""
        return not self._is_paced

    @property
    def is_waiting(self):
        """Whether there was nothing to take when it asked last, as others have the rest in hand."""
        return self._is_waiting

    def stop(self):
        """Takes no more: the worker leaves. A dataset that starts anew goes on."""
        self._reading = 0
        with self._lock:  # a call has come to its end
            if self._session is not None:
                self._session.close()
                self._session = None

    # The datasets.

    def numbers(self):
        """A dataset of the pieces' numbers, int64 scalars."""

        @no_autograph
        def asking(taken):
            # In a thread of its own, a wait does not keep the worker's step from being cancelled.
            asked = counted(lambda _: call(self._note_asked, [], tf.int64, []))
            return tf.data.Dataset.zip((asked, taken.prefetch(1)))

        self._is_paced = True
        second = no_autograph(lambda _, piece: piece)
        each = tf.data.Dataset.from_tensor_slices
        rounds = self._rounds(each, lambda groups: groups.map(second), asking)
        self.data = rounds.map(second)
        return self.data

    def batches(self, read, batch_size):
        """A dataset of batches of what is read; its last one, and those before a wait, may be smaller.

        Args:
          read: function of the numbers of a group, int64 `[pieces]`: a dataset of their records.
          batch_size: records.
        """

        @no_autograph
        def note(_, batch):
            groups, records = batch
            return after(call(self._note_made, [groups[0]], tf.int64, []), records)

        def in_batches(records):
            pulled = counted(lambda _: call(self._note_pulled, [], tf.int64, []))
            return tf.data.Dataset.zip((pulled, records.batch(batch_size))).map(note)

        return self._rounds(read, in_batches)

    def finish(self, data):
        """The dataset that the worker gets its batches from.

        Args:
          data: what became of `batches`, in their order and number.
        """

        @no_autograph
        def left(*batch):
            return after(call(self._note_left, [], tf.int64, []), batch if len(batch) > 1 else batch[0])

        self.data = data.prefetch(BUFFERED).map(left)
        return self.data

    def _rounds(self, read, finish, around=lambda rounds: rounds):
        """All that is read until the queue is over; a round ends where nothing is left to take for now."""

        @no_autograph
        def of_group(number, pieces):
            return read(pieces).map(
                no_autograph(lambda *record: (number, record if len(record) > 1 else record[0]))
            )

        @no_autograph
        def one_round(reading):
            taken = counted(
                lambda _: call(self._take_group, [reading], [tf.int64, tf.int64], [[], [None]])
            ).take_while(no_autograph(lambda _, pieces: tf.size(pieces) > 0))
            return finish(taken.flat_map(of_group))

        @no_autograph
        def all_rounds(reading):
            opened = counted(lambda _: call(self._open_round, [reading], tf.int64, []))
            goes_on = opened.take_while(no_autograph(lambda is_open: is_open > 0))
            return around(goes_on.flat_map(no_autograph(lambda _: one_round(reading))))

        start = tf.data.Dataset.range(1).map(no_autograph(lambda _: call(self._begin, [], tf.int64, [])))
        return start.flat_map(all_rounds)

    # Called by the datasets, in whatever thread they run.

    def _begin(self):
        reading = random.getrandbits(62) | 1
        self._reading = reading  # whoever is at work for an earlier start ends
        with self._lock:
            self._clear()
        return np.int64(reading)

    def _open_round(self, reading):
        """Takes the first piece of a round, or waits for a moment; 0 if all is over."""
        with self._lock:
            self._is_pulling = False
            if reading == self._reading and self._is_asking and self._is_nothing_coming():
                self._finish(lambda group: True)
            self._opened, self._is_first = [], True
            if not self._may_take():
                return np.int64(1)
            answer = self._call(reading, wants=1)
            self._is_over = answer < 0 and (answer == OVER or not self._waits)
            self._opened = [answer] if answer >= 0 else []
        if self._is_over:
            return np.int64(0)
        if answer < 0 and not self._is_waiting:
            log.info("no piece of the data is left for now: waiting for those that others have in hand")
        self._is_waiting = answer < 0
        if answer < 0:
            time.sleep(RETRY_SECS)
        return np.int64(1)

    def _take_group(self, reading):
        """(number of the group, its pieces); none where a round ends."""
        with self._lock:
            pieces, is_first = self._opened, self._is_first
            self._opened, self._is_first = [], False
            while (pieces or not is_first) and len(pieces) < self._group and self._may_take():
                answer = self._call(reading, wants=1)
                if answer < 0:
                    break
                pieces.append(answer)
            number = self._number
            self._number += bool(pieces)
            return np.int64(number), np.array(pieces, np.int64)

    def _may_take(self):
        """Whether the next one is wanted, at once or in a moment; other threads may go on meanwhile."""
        if self._is_paced and self._number > self._asked:
            self._lock.wait(RETRY_SECS)
        return not self._is_paced or self._number <= self._asked

    def _is_nothing_coming(self):
        """At the opening of a round: whether all that was read has left the reader."""
        if self._is_paced:
            return self._is_waiting and self._asked > self._number
        return self.passes_errors or not (self._made or self._has_failed)

    def _note_asked(self):
        """The reader of `numbers` has read what it was given."""
        with self._lock:
            self._left = self._asked
            self._asked += 1
            self._lock.notify_all()
        return np.int64(0)

    def _note_pulled(self):
        with self._lock:
            self._has_failed |= self._is_pulling
            self._is_pulling = True
        return np.int64(0)

    def _note_made(self, group):
        with self._lock:
            self._is_pulling = False
            self._made.append(int(group))
        return np.int64(0)

    def _note_left(self):
        with self._lock:
            if self._made and not self.is_direct:
                self._left = self._made.popleft()
        return np.int64(0)

    # Called by `following`, of what the worker gets in the end.

    def note_asked(self):
        """The worker asks for a batch."""
        begun = self.steps_begun()
        with self._lock:
            self._is_asking, self._is_new_step = True, begun is None or begun != self._step
            self._step = begun
            self._tell_left()

    def note_came(self, takes):
        """The worker gets a batch.

        Args:
          takes: whether it may be of this reader.

        Returns:
          whether it is.
        """
        with self._lock:
            self._is_asking = False
            if not (takes and self.is_direct and self._made):
                return False
            self._left = self._made.popleft()
            self._tell_left()
            return True

    def note_end(self):
        """There are no more batches."""
        with self._lock:
            is_whole = self._is_over and not self._is_paced and self._is_nothing_coming()
            self._finish(lambda group: is_whole or group < self._left)
            self._call(self._reading, wants=0)

    def _tell_left(self):
        """What left the reader before this step's first batch is done."""
        if self._is_new_step and (self.passes_errors or not self._has_failed):
            self._finish(lambda group: group < self._left)
            if self._finished:
                self._call(self._reading, wants=0)

    def _finish(self, is_done):
        while self._in_hand and is_done(self._in_hand[0][0]):
            self._finished.append(self._in_hand.popleft()[1])

    # The calls.

    def _call(self, reading, wants):
        """The queue's answer; OVER for a dataset that nobody reads any more."""
        line_due, started = Throttle(SILENCE_SECS), time.monotonic()
        line_due.is_due(started)
        while reading and reading == self._reading and not self.should_stop():
            try:
                answer = self._try_call(wants)
            except BoardError as error:
                if self._has_joined and any(word in str(error) for word in NEW_PROCESS):
                    self._reading = 0  # the session is lost with that ps, and the dataset with the session
                    break
                if line_due.is_due(time.monotonic()):
                    waited = time.monotonic() - started
                    log.info(
                        "waiting for the work queue on %s: %.0f s so far; %s", self._place, waited, error
                    )
                time.sleep(RETRY_SECS)
                continue
            if answer != STALE:
                if answer >= 0:
                    self._in_hand.append((self._number, answer))
                return answer
            log.warning(
                "what this worker has in hand was given to others, as it was taken for lost: it begins anew"
            )
            kept = {name: getattr(self, name) for name in KEPT}
            self._clear()
            vars(self).update(kept)
        return OVER

    def _try_call(self, wants):
        if self._session is None:
            self._session = self._make_session()
        if not self._has_joined:
            self._session.run({"join_keys:0": [self._run]}, ["join:0"], timeout_secs=CALL_SECS)
            self._has_joined = True
        keys = [self._run, self._serial + 1, wants, *self._finished]
        (answer,) = self._session.run({"turn_keys:0": keys}, ["turn:0"], timeout_secs=CALL_SECS)
        self._serial += 1
        self._finished = []
        return answer


def counted(function):
    """A dataset of what the function gives, again and again."""
    return tf.data.Dataset.range(FOR_EVER).map(no_autograph(function))


def after(first, element):
    """The tensors of an element, once another one is there."""
    with tf1.control_dependencies([first]):
        return tf.nest.map_structure(tf.identity, element, expand_composites=True)
