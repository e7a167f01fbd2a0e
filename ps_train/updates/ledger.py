"""The ledger of a synchronous job: who is a member, who owes which round. It lives on one ps, under a lock.

Synchronous training goes in rounds. A worker *claims* a place in the open round once its gradients have reached the ps
tasks, adds them to the accumulators if the claim was granted, and *arrives*. When everyone needed has arrived, the ledger
rings `go`; the chief's pre-armed update (blocked on `go` on the ps, so that no message is needed to wake it) takes the
accumulators, applies the mean, and *completes* the round: everyone who waits gets a token with the next round's number.

Why not the stock design (tokens in one shared queue, `take_grad(n)`): a fast worker can take two tokens of a round and
stand for its slow peer, a worker that dies halfway through its push leaves half a gradient, and nobody can leave or join.
Here a place is claimed by name and only once a round, a half-made push is seen (claimed, never arrived) and its round is
discarded, and members come and go. Alternatives that were rejected: one gradient buffer per worker (memory grows with the
workers); a Python coordinator that grants each claim (two more messages a round).

Everything is one int64 vector, changed only by the transitions below, each under one mutex on the ps:

    round       number of the open round; increases for ever, never reused, unrelated to global_step
    going       last round for which `go` was rung
    updating    1 while the chief's update runs (a chief that finds a 1 knows that the variables are torn)
    paused      1 while the chief saves: a full round is not rung before it is 0 again
    torn        1 from when a half-made push was seen until its round is discarded
    member[k]   1 if replica k is counted
    pending[k]  1 if it asked to join while a round was in progress
    waiting[k]  1 if it is owed a token when the round completes
    claimed[k]  last round in which it claimed a place
    arrived[k]  last round in which its gradients were complete

A round needs `min(quorum, members and contributors)` gradients. A refused gradient (late, or the places are taken) is
dropped by the accumulators, since its stamp is -1.
"""

from ps_train.compat import tf, tf1
from ps_train.updates.locked import LockedVector
from ps_train.updates.vector_states import LedgerState

ATTENTION = -2  # rung on `go` instead of a round: the chief must look at the ledger
REFUSED = -1


def _as_int(condition):
    return tf.cast(condition, tf.int64)


class Ledger:
    """Graph nodes of the ledger of one synchronous optimizer, as seen by replica `replica`.

    Args:
      name: unique per optimizer in the graph, the same in every task's graph; names the resources on the ps.
      num_replicas: replicas that are members at the start.
      quorum: gradients that an update needs while there are enough members.
      replica: this task's number, 0 to num_replicas - 1.
      device: the ps that holds the ledger.
    """

    def __init__(self, name, num_replicas, quorum, replica, device):
        self.name, self.num_replicas, self.quorum, self.replica, self.device = (
            name, num_replicas, quorum, replica, device,
        )  # fmt: skip
        self.token_queue_names = [f"{name}_token{i}" for i in range(num_replicas)]
        with tf1.device(device), tf1.name_scope(name):
            self.vector = LockedVector(
                name,
                5 + 5 * num_replicas,
                lambda vector: LedgerState.from_vector(vector, num_replicas),
                lambda state: tf.concat([tf.stack(state[:5]), *state[5:]], 0),
            )
            self._locked = self.vector.change
            self._go = tf1.FIFOQueue(-1, tf.int64, shapes=[()], shared_name=name + "_go")
            self._tokens = [
                tf1.FIFOQueue(-1, tf.int64, shapes=[()], shared_name=n) for n in self.token_queue_names
            ]
            self.snapshot, self.is_initialized = self.vector.snapshot, self.vector.is_initialized
            self.first_round = tf1.placeholder(tf.int64, [], "first_round")
            self.first_members = tf1.placeholder(tf.int64, [num_replicas], "first_members")
            self.reset = self._build_reset()
            self.leaver = tf1.placeholder(tf.int64, [], "leaver")
            self.leave = self._locked(lambda s: self._leave(s, self.leaver)).op
            self.lose = self._locked(lambda s: self._lose(s, self.leaver)).op
            self.join = self._build_join()
            self.token = self._tokens[replica].dequeue(name="token")
            self.attach = self._build_attach()
            self.wake = self._go.enqueue(tf.constant(ATTENTION, tf.int64), name="wake")
            self.pause = self._locked(self._pause)
            self.resume = self._locked(self._resume).op
            self.freeze = self._locked(self._freeze)
            self.thaw = self._locked(self._pay_waiting).op

    def claim(self, stamp):
        """Claims a place in round `stamp` for this replica; the stamp for its gradients, or REFUSED."""
        with tf1.device(self.device), tf1.name_scope(self.name + "_claim"):
            return self._locked(lambda s: self._claim(s, stamp))

    def arrive(self, granted):
        """Notes that all gradients stamped `granted` are in their accumulators; an op."""
        with tf1.device(self.device), tf1.name_scope(self.name + "_arrive"):
            return self._locked(lambda s: self._arrive(s, granted)).op

    def wait_for_token(self):
        """Blocks until this replica is paid its token, the number of the next round; returns that."""
        with tf1.device(self.device), tf1.name_scope(self.name + "_token"):
            return self._tokens[self.replica].dequeue()

    def wait_for_go(self):
        """Blocks until the round is full; the number of gradients in it. Marks the update as running.

        Fails with InvalidArgumentError if ATTENTION was rung instead.
        """
        with tf1.device(self.device), tf1.name_scope(self.name + "_go"):
            rung = self._go.dequeue()
            with tf1.control_dependencies([tf1.Assert(rung >= 0, ["ps_train: the round needs attention"])]):
                return self._locked(self._begin_update)

    def complete(self):
        """Ends the update: opens the next round and gives everyone who waits its token; an op."""
        with tf1.device(self.device), tf1.name_scope(self.name + "_complete"):
            return self._locked(self._complete).op

    # Transitions, for `LockedVector.change`.

    def _mine(self, replica):
        return tf.one_hot(replica, self.num_replicas, dtype=tf.int64)

    def _needed(self, state):
        contributors = _as_int(tf.equal(state.claimed, state.round))
        return tf.minimum(
            tf.constant(self.quorum, tf.int64), tf.reduce_sum(tf.maximum(state.member, contributors))
        )

    def _ring_if_full(self, state):
        """(state, effects) after ringing `go` if the open round has all that it needs and was not rung before."""
        arrived = tf.reduce_sum(_as_int(tf.equal(state.arrived, state.round)))
        is_full = (
            (arrived > 0)
            & (arrived >= self._needed(state))
            & (state.going < state.round)
            & (state.updating < 1)
            & (state.paused < 1)
        )
        state = state._replace(going=tf.where(is_full, state.round, state.going))
        return state, lambda: [self._go.enqueue_many([tf.fill([tf.cast(is_full, tf.int32)], state.round)])]

    def _ring_attention(self, condition):
        return self._go.enqueue_many(
            [tf.fill([tf.cast(condition, tf.int32)], tf.constant(ATTENTION, tf.int64))]
        )

    def _claim(self, state, stamp):
        mine = self._mine(self.replica)
        is_member = tf.reduce_sum(state.member * mine) > 0
        is_current = tf.equal(stamp, state.round) & (state.updating < 1)
        is_first = tf.reduce_sum(state.claimed * mine) < state.round
        has_place = tf.reduce_sum(_as_int(tf.equal(state.claimed, state.round))) < self._needed(state)
        granted = is_member & is_current & is_first & has_place
        # A gradient of an old round gets its token at once; of the open round, when that completes.
        pays_now = is_member & ~tf.equal(stamp, state.round) & (state.updating < 1)
        new = state._replace(
            claimed=tf.where((mine > 0) & granted, tf.fill(tf.shape(mine), state.round), state.claimed),
            waiting=tf.maximum(state.waiting, mine * _as_int(~pays_now)),
            pending=tf.maximum(state.pending, mine * _as_int(~is_member)),
        )
        new, pays_newcomer = self._admit_if_idle(new, mine, ~is_member)
        pay = tf.cast(pays_now | pays_newcomer, tf.int32)
        value = tf.where(granted, stamp, tf.constant(REFUSED, tf.int64))
        return new, value, lambda: [self._tokens[self.replica].enqueue_many([tf.fill([pay], state.round)])]

    def _admit_if_idle(self, state, mine, wants):
        """Makes a pending replica a member at once when nobody has claimed a place in the open round yet."""
        is_idle = (tf.reduce_sum(_as_int(tf.equal(state.claimed, state.round))) < 1) & (state.updating < 1)
        admitted = wants & is_idle
        keep = 1 - mine * _as_int(admitted)
        state = state._replace(
            member=tf.maximum(state.member, 1 - keep),
            pending=state.pending * keep,
            waiting=state.waiting * keep,
        )
        return state, admitted

    def _arrive(self, state, granted):
        mine = self._mine(self.replica)
        counts = (mine > 0) & (granted >= 0) & tf.equal(granted, state.round)
        state = state._replace(arrived=tf.where(counts, tf.fill(tf.shape(mine), state.round), state.arrived))
        state, effects = self._ring_if_full(state)
        return state, state.round, effects

    def _leave(self, state, replica):
        mine = self._mine(replica)
        is_torn = self._is_torn(state, mine)
        keep = 1 - mine
        state = state._replace(
            member=state.member * keep,
            pending=state.pending * keep,
            waiting=state.waiting * keep,
            torn=tf.maximum(state.torn, _as_int(is_torn)),
        )
        state, effects = self._ring_if_full(state)
        return state, state.round, lambda: [*effects(), self._ring_attention(is_torn)]

    def _lose(self, state, replica):
        """Has the round discarded if the replica's push is half-made; it stays a member."""
        is_torn = self._is_torn(state, self._mine(replica))
        state = state._replace(torn=tf.maximum(state.torn, _as_int(is_torn)))
        return state, state.round, lambda: [self._ring_attention(is_torn)]

    def _is_torn(self, state, mine):
        return tf.reduce_any(
            (mine > 0) & tf.equal(state.claimed, state.round) & (state.arrived < state.round)
        )

    def _build_join(self):
        """Joins this replica, empties its token queue; its token, or REFUSED when it must wait for one."""
        mine = self._mine(self.replica)
        queue = self._tokens[self.replica]

        def transition(state):
            is_member = tf.reduce_sum(state.member * mine) > 0
            contributed = tf.reduce_any((mine > 0) & tf.equal(state.claimed, state.round))
            is_torn = self._is_torn(state, mine)
            pays_member = is_member & ~contributed & (state.updating < 1)
            new = state._replace(
                waiting=tf.where(mine > 0, _as_int(tf.fill(tf.shape(mine), ~pays_member)), state.waiting),
                pending=tf.maximum(state.pending, mine * _as_int(~is_member)),
                torn=tf.maximum(state.torn, _as_int(is_torn)),
            )
            new, pays_newcomer = self._admit_if_idle(new, mine, ~is_member)
            token = tf.where(pays_member | pays_newcomer, state.round, tf.constant(REFUSED, tf.int64))
            return new, token, lambda: [queue.dequeue_many(queue.size()).op, self._ring_attention(is_torn)]

        return self._locked(transition)

    def _begin_update(self, state):
        count = tf.reduce_sum(_as_int(tf.equal(state.arrived, state.round)))
        return state._replace(updating=tf.ones_like(state.updating)), count, lambda: []

    def _complete(self, state):
        state = state._replace(
            round=state.round + 1,
            torn=tf.zeros_like(state.torn),
            member=tf.maximum(state.member, state.pending),
            pending=tf.zeros_like(state.pending),
        )
        return self._pay_waiting(state)

    def _pay_waiting(self, state):
        waiting = state.waiting
        new = state._replace(updating=tf.zeros_like(state.updating), waiting=tf.zeros_like(waiting))

        def effects():
            counts = tf.unstack(tf.cast(waiting, tf.int32))
            return [
                queue.enqueue_many([tf.fill([count], state.round)])
                for queue, count in zip(self._tokens, counts, strict=True)
            ]

        return new, state.round, effects

    def _pause(self, state):
        """Holds back updates, unless one is rung or running; 1 if they are held back now."""
        is_idle = (state.going < state.round) & (state.updating < 1)
        state = state._replace(paused=tf.maximum(state.paused, _as_int(is_idle)))
        return state, state.paused, lambda: []

    def _resume(self, state):
        state, effects = self._ring_if_full(state._replace(paused=tf.zeros_like(state.paused)))
        return state, state.round, effects

    def _freeze(self, state):
        """Opens the next round but pays nobody: the chief empties the accumulators before it lets them go on."""
        state = state._replace(
            round=state.round + 1,
            updating=tf.ones_like(state.updating),
            torn=tf.zeros_like(state.torn),
            member=tf.maximum(state.member, state.pending),
            pending=tf.zeros_like(state.pending),
        )
        return state, state.round, lambda: [self._go.dequeue_many(self._go.size()).op]

    def _build_attach(self):
        """For a chief that (re)joins a living ledger: rings anew, as the old chief may have taken what was rung.

        A call for attention is repeated as long as its round is not discarded (`torn`), unless what was missing has come
        since then, so that the round is full. A push that is merely going on is
        left alone: if its worker is lost, its return or its removal says so.
        """

        def transition(state):
            state, ring = self._ring_if_full(
                state._replace(going=state.round - 1, paused=tf.zeros_like(state.paused))
            )

            def effects():
                emptied = self._go.dequeue_many(self._go.size()).op
                with tf1.control_dependencies([emptied]):
                    return [*ring(), self._ring_attention((state.torn > 0) & (state.going < state.round))]

            return state, state.round, effects

        return self._locked(transition)

    def _build_reset(self):
        """Starts a new generation at `first_round` with `first_members`; an op. Nobody may be training."""
        zeros = tf.zeros([self.num_replicas], tf.int64)
        never = tf.fill([self.num_replicas], self.first_round - 1)
        zero = tf.zeros([], tf.int64)
        head = tf.stack([self.first_round, self.first_round - 1, zero, zero, zero])
        assign = self.vector.variable.assign(
            tf.concat([head, self.first_members, zeros, zeros, never, never], 0)
        ).op
        # A worker of the old generation may still wait for a token: REFUSED sends it on, to find its session gone.
        emptied = [queue.dequeue_many(queue.size()).op for queue in [self._go, *self._tokens]]
        with tf1.control_dependencies([assign, *emptied]):
            return tf.group(*[queue.enqueue(tf.constant(REFUSED, tf.int64)) for queue in self._tokens])
