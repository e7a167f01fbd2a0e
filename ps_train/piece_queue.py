"""The work queue of the input (--input=workqueue): which pieces of the data have been read how often, and who reads which now.

    queue = PieceQueue("ps_train/input_queue_0", count=24, num_holders=2, device="/job:ps/task:0/device:CPU:0")
    taken = queue.build_turn(holder=1, passes=3, seed=7)      # int64 scalar: a piece, WAIT, OVER or STALE
    hooks = [PiecesHook(queue, readers)]                      # gives back at the end what is not done

On one ps, changed under a lock:

    done[i]       passes of piece i that are done; a variable of the model, so that checkpoints have it
    held[k][i]    passes of piece i that holder k (a worker, or one of its towers) has in hand
    run[k]        which of holder k's readers takes part; another one's calls are STALE
    serial[k]     of its last call, so that a call whose answer was lost can be made once more
    answer[k]     what that call was answered

The rule: taken is a piece of those that have been begun least often, `done[i] + sum(held[:, i])` times; among them chance
chooses, anew for each pass. So nothing is handed out twice within a pass, the next pass begins when all pieces of this one
are handed out, and nobody waits at its end. What a lost worker held (the chief's `roster` sees to it) has not been begun, and
comes first. With a number of passes there is an end: OVER once all are done, and WAIT while another one has the last.

A checkpoint has `done` alone: what was in hand when it was saved is free when it is restored.
"""

from typing import Any, NamedTuple

from ps_train.compat import tf, tf1
from ps_train.logs import log
from ps_train.messages import parse
from ps_train.updates.locked import while_locked
from ps_train.updates.rounds import MemberHook

QUEUES = "ps_train/piece_queues"
NAME = "ps_train/input_queue"
WAIT, OVER, STALE = -1, -2, -3
RUN, SERIAL, ANSWER = 0, 1, 2  # columns after those of the pieces
HEAD = 3  # elements of a turn's vector before the pieces that are done: run, serial, whether to take
_MIX = -7046029254386353131  # splitmix64's


class State(NamedTuple):
    """The two variables, as tensors.

    Attributes:
      done: int64 `[pieces]`.
      held: int64 `[holders, pieces + 3]`: the passes in hand, run, serial and answer.
    """

    done: Any
    held: Any


class PieceQueue:
    """Graph nodes of a queue, as one task's graph has them; in the training's graph, or in one of `turn_nodes`.

    Args:
      name: the same in every task's graph; names the resources on the ps.
      count: pieces.
      num_holders: workers, or towers of all workers.
      device: of the ps.
      replica, towers: which worker's graph it is, and how many holders each worker is.

    Attributes:
      position: the variable `done`, in GLOBAL_VARIABLES.
      parcels: as a synchronous optimizer's: what the tasks' graphs have to have alike.
    """

    parcels = ()

    def __init__(self, name, count, num_holders, device, replica=0, towers=1):
        self.name, self.count, self.num_holders, self.device = name, count, num_holders, device
        self.replica, self._towers = replica, towers
        with tf1.control_dependencies(None), tf1.device(device), tf1.name_scope(None):
            self.position: Any = self._variable(name, [count], [tf1.GraphKeys.GLOBAL_VARIABLES])
            self._held: Any = self._variable(f"{name}_held", [num_holders, count + 3], [])
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"{name}_mutex")
            self._is_initialized = self._held.is_initialized()
            self._reset = self._held.assign(tf.zeros_like(self._held), read_value=False)
            self._leaver = tf1.placeholder(tf.int64, [], f"{name}_leaver")
            self._release = self._change(lambda state: self._without(state, self._leaver, 0)).op
            self._loaded = tf1.placeholder(tf.int64, [count], f"{name}_loaded")
            self._load = self.position.assign(self._loaded, read_value=False)

    def _variable(self, name, shape, collections):
        return tf1.Variable(
            lambda: tf.zeros(shape, tf.int64), trainable=False, collections=collections, use_resource=True, name=name
        )  # fmt: skip

    def build_turn(self, holder, passes, seed):
        """A holder's call: tells what is done, and takes a piece.

        Args:
          holder: its number.
          passes: how often the data is read; -1: for ever.
          seed: int, of the order; None: that of the numbers.

        Returns:
          int64 scalar. It feeds `turn_keys`, int64 `[HEAD + done]`: run, serial, 1 to take a piece, pieces that are done.
        """
        with tf1.device(self.device):
            fed = tf1.placeholder(tf.int64, [None], "turn_keys")
            return tf.identity(
                self._change(lambda state: self._turn(state, holder, passes, seed, fed)), "turn"
            )

    def build_join(self, holder):
        """A holder's reader begins: what an earlier one had in hand is free. It feeds `join_keys`, int64 `[1]`: the run."""
        with tf1.device(self.device):
            fed = tf1.placeholder(tf.int64, [1], "join_keys")
            return tf.identity(self._change(lambda state: self._without(state, holder, fed[0])), "join")

    def reset(self, session, members):
        """Frees everything that was in hand, for a model that was brought up anew."""
        session.run(self._reset)

    def remove(self, session, replica):
        """Frees what a worker has in hand."""
        for holder in range(replica * self._towers, (replica + 1) * self._towers):
            session.run(self._release, {self._leaver: holder})

    forget_push = remove  # who was merely taken for lost begins anew with its next call

    def is_torn(self, session):
        """Whether a chief that comes back has to begin anew."""
        return not session.run(self._is_initialized)

    def load(self, session, reader):
        """Takes over the position that a checkpoint has; one that is of other pieces, or none, is no position.

        Args:
          session: the chief's, which has initialized all.
          reader: `tf.train.load_checkpoint`'s.
        """
        name, there = self.position.op.name, 0
        if reader.has_tensor(name):
            value = reader.get_tensor(name)
            if value.shape == (self.count,):
                session.run(self._load, {self._loaded: value})
                return
            there = value.size
        told = (
            f"the checkpoint is of other data: its work queue has {there} pieces and the data has {self.count}"
            if there
            else f"the checkpoint has no position of {name}: it was written with --input=shard, or input_fn asked for less"
        )
        log.warning("input: the data is read from its beginning, as %s", told)
        session.run(self._load, {self._loaded: [0] * self.count})

    # Transitions.

    def _change(self, transition):
        def work():
            new, value = transition(State(self.position.read_value(), self._held.read_value()))
            value = tf.identity(value)
            with tf1.control_dependencies([value]):
                assigned = [self.position.assign(new.done).op, self._held.assign(new.held).op]
            return [value], assigned

        (value,) = while_locked(self._mutex, work)
        return value

    def _row(self, holder):
        return tf.one_hot(holder, self.num_holders, dtype=tf.int64)[:, tf.newaxis]

    def _without(self, state, holder, run):
        """Nothing is in the holder's hand, and `run` is its reader's."""
        row = tf.concat([tf.zeros([self.count], tf.int64), [run, 0, WAIT]], 0)
        mine = self._row(holder)
        return state._replace(held=state.held * (1 - mine) + mine * row), tf.zeros([], tf.int64)

    def _turn(self, state, holder, passes, seed, fed):
        run, serial, wants, finished = fed[0], fed[1], fed[2], fed[HEAD:]
        own = state.held[holder]
        is_own = tf.equal(own[self.count + RUN], run)
        is_new = is_own & tf.equal(own[self.count + SERIAL] + 1, serial)
        is_again = is_own & tf.equal(own[self.count + SERIAL], serial)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(finished), finished, self.count)
        done, in_hand = state.done + counts, own[: self.count] - counts
        begun = done + tf.reduce_sum(state.held[:, : self.count], 0) - counts
        answer = tf.where(wants > 0, _choose(begun, done, passes, seed), tf.constant(WAIT, tf.int64))
        row = tf.concat(
            [in_hand + tf.one_hot(answer, self.count, dtype=tf.int64), tf.stack([run, serial, answer])], 0
        )
        mine = self._row(holder)
        new = State(
            tf.where(is_new, done, state.done),
            tf.where(is_new, state.held * (1 - mine) + mine * row, state.held),
        )
        before = tf.where(is_again, own[self.count + ANSWER], tf.constant(STALE, tf.int64))
        return new, tf.where(is_new, answer, before)


def _choose(begun, done, passes, seed):
    """The piece that is begun next, WAIT or OVER."""
    count, least = tf.shape(begun, tf.int64)[0], tf.reduce_min(begun)
    order = tf.range(count)
    if seed is not None:
        mixed = (order + 1) * _MIX + (least * 2 + 1) * (seed * 2 + 1)
        for shift in (29, 32):  # products and shifts of int64 wrap
            mixed = (
                tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(shift, tf.int64)))
                * _MIX
            )
        order = tf.bitwise.right_shift(mixed, tf.constant(1, tf.int64))
    chosen = tf.argmin(tf.where(tf.equal(begun, least), order, tf.fill([count], tf.constant(tf.int64.max))))
    if passes < 0:
        return chosen
    none = tf.where(tf.reduce_all(done >= passes), tf.constant(OVER, tf.int64), tf.constant(WAIT, tf.int64))
    return tf.where(least < passes, chosen, none)


def queue_of(index, count, context):
    """The queue with this number of the default graph, which has it once for all towers of a worker.

    Args:
      index: the number of the call in `input_fn` that it belongs to.
      count: pieces.
      context: TaskContext.
    """
    queues = tf1.get_collection(QUEUES)
    if index < len(queues):
        return queues[index]
    towers = context.devices.towers
    queue = PieceQueue(
        f"{NAME}_{index}", count, context.cluster.num_workers * towers, context.control_device, context.replica, towers
    )  # fmt: skip
    tf1.add_to_collection(QUEUES, queue)
    return queue


def turn_nodes(queue, holder, passes, seed):
    """NodeDefs, for a `board.ControlSession`, of a graph that has a holder's `turn` and `join` of a queue.

    That session's calls have a deadline, which those of TensorFlow's have not while a ps is frozen.
    """
    with tf1.Graph().as_default() as graph:
        alike = PieceQueue(queue.name, queue.count, queue.num_holders, "")
        alike.build_turn(holder, passes, seed)
        alike.build_join(holder)
        return [parse("NodeDef", node.SerializeToString()) for node in graph.as_graph_def().node]


class PiecesHook(MemberHook):
    """Ends the reading when the task leaves, and gives back what is in hand.

    Args:
      queue: PieceQueue.
      readers: what reads, each with a `stop`.
    """

    def __init__(self, queue, readers):
        super().__init__(queue)
        self._readers = readers

    def begin(self):
        """The nodes are there."""

    def after_create_session(self, session, coord):
        """A reader joins by itself when its dataset starts."""
        self._has_left = self.stays = False

    def leave(self, session):
        """As MemberHook's; the reading ends even if the task is to come back."""
        for reader in self._readers:
            reader.stop()
        super().leave(session)
