"""What counts as done of the work queue's pieces, by what the worker has asked for, against a queue in Python."""

import logging
import time

import numpy as np
import pytest

import ps_train
from ps_train import data as helpers
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.following import follow
from ps_train.piece_queue import OVER, WAIT
from ps_train.pieces import Reader

pytestmark = pytest.mark.graph


class Queue:
    """`piece_queue` for one pass; what others have in hand is WAIT once all else is taken."""

    def __init__(self, count, of_others=()):
        self.free = [i for i in range(count) if i not in of_others]
        self.count, self.of_others, self.done = count, list(of_others), []

    others_are_done = False

    def run(self, feeds, fetches, timeout_secs):
        if fetches == ["join:0"]:
            return [0]
        _, _, wants, *finished = feeds["turn_keys:0"]
        self.done += finished
        if wants and self.free:
            return [self.free.pop(0)]
        is_over = len(self.done) + len(self.of_others) * self.others_are_done == self.count
        return [OVER if wants and is_over else WAIT]

    def close(self):
        """There is nothing to close."""


class Work:
    """`work.Work` on such queues, the pieces in the order of their numbers."""

    ps = "ps:0"

    def __init__(self, waits=True, of_others=()):
        self._waits, self._of_others = waits, of_others
        self.queues, self.readers = [], []

    def reader(self, count, passes, shuffle, group=1):
        self.queues.append(Queue(count, self._of_others))
        self.readers.append(Reader(count, lambda queue=self.queues[-1]: queue, "ps:0", self._waits, group))
        return self.readers[-1]

    def pieces(self, count, repeat, shuffle):
        return self.reader(count, 1, shuffle).numbers()


class Reading:
    """A session that reads what `make(context)` gives, as a worker does."""

    def __init__(self, make, work=None, batch_size=4):
        self.work = work or Work()
        context = ps_train.InputContext(batch_size=batch_size, seed=3, work=self.work)
        with tf.Graph().as_default() as graph:
            data = follow(make(context), self.work.readers)
            iterator = tf1.data.make_initializable_iterator(data)
            self.element = iterator.get_next()
        self.session = tf1.Session(graph=graph)
        self.session.run(iterator.initializer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for reader in self.work.readers:
            reader.stop()
        self.session.close()

    def batch(self):
        return self.session.run(self.element)

    def rest(self):
        found = []
        while True:
            try:
                found += list(self.batch())
            except tf.errors.OutOfRangeError:
                return found

    @property
    def done(self):
        return sorted(self.work.queues[0].done)


def rows(context, count=256):
    """64 pieces, of 4 rows each; piece p is all rows of the remainder p."""
    return helpers.from_numpy(context, np.arange(count), shuffle_buffer=0, repeat=False)


def warnings_of(caplog, monkeypatch, make):
    monkeypatch.setattr(logging.getLogger("ps_train"), "propagate", True)
    caplog.clear()
    with Reading(make):
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    "way",
    [
        lambda data: data,
        lambda data: data.map(lambda x: x + 0).prefetch(8),
        lambda data: data.map(lambda x: x + 0, num_parallel_calls=8),
        lambda data: data.prefetch(tf.data.AUTOTUNE).take(1000),
        lambda data: data.filter(lambda x: True).unbatch().batch(4),
    ],
)
def test_what_is_read_ahead_is_not_done(way):
    with Reading(lambda context: way(rows(context))) as reading:
        got = [reading.batch() for _ in range(6)]
        assert {int(i) % 64 for i in np.concatenate(got)} == {0, 1, 2, 3, 4, 5}
        assert reading.done in ([0, 1, 2, 3], [0, 1, 2, 3, 4])  # with the sixth
        reading.rest()
        assert reading.done == list(range(64))


def test_batches_of_a_step_are_done_with_the_step():
    work, begun = Work(), [0]
    with Reading(rows, work) as reading:
        work.readers[0].steps_begun = lambda: begun[0]
        for step in range(3):
            begun[0] += 1
            for _ in range(4):
                reading.batch()
                assert len(reading.done) in (4 * step, max(4 * step - 1, 0))


def test_two_parts_are_one_after_the_other():
    def make(context):
        return rows(context).concatenate(rows(context).map(lambda x: x + 256)).prefetch(4)

    with Reading(make) as reading:
        for _ in range(65):
            reading.batch()
        assert reading.done == list(range(64))
        assert reading.work.queues[1].done == []
        reading.rest()
        assert sorted(reading.work.queues[1].done) == list(range(64))


@pytest.mark.parametrize("what", ["helpers", "pieces", "itself"])
def test_zipped_parts_are_refused(what):
    def make(context):
        if what == "helpers":
            return tf.data.Dataset.zip((rows(context), rows(context).map(lambda x: -x)))
        data = context.pieces(8) if what == "pieces" else rows(context)
        other = context.pieces(8) if what == "pieces" else data
        return tf.data.Dataset.zip((other, data)).map(lambda x, y: x).prefetch(1)

    with pytest.raises(
        ModelError, match=r"the dataset zips 2 parts of the work queue \(made at .*\.py:\d+\)"
    ):
        Reading(make)


def test_one_part_may_be_zipped_with_something_else():
    def make(context):
        return tf.data.Dataset.zip((rows(context), tf.data.Dataset.range(1000))).map(lambda x, _: x)

    with Reading(make) as reading:
        assert sorted(reading.rest()) == list(range(256))
        assert reading.done == list(range(64))


def test_what_may_be_lost_is_named(caplog, monkeypatch):
    def lines(make):
        return warnings_of(caplog, monkeypatch, make)

    assert lines(lambda context: rows(context).map(lambda x: x, 4).prefetch(3)) == []
    assert lines(lambda context: rows(context).unbatch().filter(lambda x: True).batch(4)) == []
    (line,) = lines(lambda context: rows(context).unbatch().shuffle(100).batch(4))
    assert line.startswith("input: shuffle after a helper of ps_train.data (made at ")
    (line,) = lines(lambda context: context.pieces(8).batch(2).prefetch(3))
    assert line.startswith("input: prefetch after context.pieces (made at ")
    assert lines(lambda context: context.pieces(8).flat_map(tf.data.Dataset.range).map(abs).batch(2)) == []


@pytest.mark.parametrize("way", [lambda data: data, lambda data: data.shuffle(100)])
def test_all_is_done_before_a_wait_for_others(way):
    """Two workers that keep something in hand would wait for one another."""
    with Reading(lambda context: way(rows(context)), Work(of_others=[3])) as reading:
        queue = reading.work.queues[0]
        plain = queue.run

        def run(feeds, fetches, timeout_secs):
            if len(queue.done) == 63:
                queue.others_are_done = True
            return plain(feeds, fetches, timeout_secs)

        queue.run = run
        assert len(reading.rest()) == 252
        assert len(queue.done) == 63


def numbered(context):
    pieces = context.pieces(6, repeat=False).map(lambda i: i * 10)
    return pieces.flat_map(lambda i: tf.data.Dataset.range(i, i + 10)).map(lambda i: i + 0).batch(4)


def test_pieces_are_done_with_the_step_that_had_their_last_record():
    work, begun = Work(), [0]
    with Reading(numbered, work) as reading:
        work.readers[0].steps_begun = lambda: begun[0]
        done = []
        for _ in range(5):
            begun[0] += 1
            for _ in range(2):
                reading.batch()
            done.append(len(reading.done))
        assert done == [0, 0, 1, 2, 3]  # of 0, 8, 16, 24 and 32 records before the step


@pytest.mark.parametrize("waits", [True, False])
def test_pieces_are_done_at_the_end(waits):
    """With others that have pieces in hand: whoever does not wait for them ends without the queue's word."""
    with Reading(numbered, Work(waits, () if waits else (4,))) as reading:
        reading.rest()
        assert reading.done == (list(range(6)) if waits else [0, 1, 2, 3, 5])


def broken(context, path, **options):
    return helpers.from_csv(
        context, str(path), columns={"i": 0}, shuffle_buffer=0, shard_by="file", repeat=False, **options
    ).map(lambda row: row["i"])


@pytest.mark.parametrize("number", [0, 7, 19])
@pytest.mark.parametrize(
    "way", [lambda data: data, lambda data: data.prefetch(50), lambda data: data.shuffle(50)]
)
def test_an_error_marks_nothing_as_done_that_it_hit(tmp_path, number, way):
    for i in range(20):
        (tmp_path / f"{i:02}.csv").write_text("i\n" + ("x\n" if i == number else "1\n") * 6)
    with Reading(lambda context: way(broken(context, tmp_path / "*.csv"))) as reading:
        with pytest.raises(tf.errors.OpError, match="an int64 is expected"):
            while True:
                reading.batch()
        free = reading.work.queues[0].free
        with reading.session.graph.as_default():
            poll(lambda: not free)  # what is read ahead goes on
        assert number not in reading.done


def poll(is_there, secs=1.0):
    """Waits for a moment for something that need not come."""
    deadline = time.monotonic() + secs
    while not is_there() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)


def test_what_is_left_out_on_demand_is_no_error(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02}.csv").write_text("i\n" + ("x\n" if i == 7 else "1\n") * 6)
    for make in (
        lambda context: broken(context, tmp_path / "*.csv", on_broken="skip"),
        lambda context: broken(context, tmp_path / "*.csv").ignore_errors(),
    ):
        with Reading(make) as reading:
            reading.rest()
            assert reading.done == list(range(20))
