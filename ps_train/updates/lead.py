"""Bounded lead, the stale synchronous parallel scheme: in async, no worker is more than so many steps ahead of the slowest.

    lead = Lead(context)                          # in the graph
    step = lead.follow(update)                    # done when this worker may begin its next step
    hooks = [LeadHook(lead)]                      # joins when a session is made, leaves at the end

On one ps a vector, changed under a lock, has each worker's number of steps. When its update is done a worker counts its step, and
waits there for a token, on the ps, if it is `max_lead` steps ahead of the slowest. The slowest one's next step lets it go on. So
no message says that it may, and nobody asks twice.

    member[k]   1 if replica k is counted
    waiting[k]  1 if it is owed a token
    steps[k]    steps that it has made, counted from those of the slowest when it joined

A worker that has used up its data, or is lost (the chief's `roster` sees to it), is counted no more, and gets its token if it
waits: one that was merely taken for lost goes on and joins again with its next step. Nobody's wait depends on a worker that never
joined. Nothing removes a lost chief: the others wait for it until they end, as without a bound, `peer_timeout_secs` later.

Source of the scheme: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013. There a
worker may begin a step if it is no more than s ahead, and so may end s + 1 ahead; here no one is ever more than `max_lead` ahead.
"""

from ps_train.compat import tf, tf1
from ps_train.step_trace import LEDGER_PREFIX
from ps_train.updates.locked import LockedVector
from ps_train.updates.rounds import MemberHook
from ps_train.updates.vector_states import LeadState

LEADS = "ps_train/leads"
NAME = LEDGER_PREFIX + "lead"
_FAR = tf.int64.max


class Lead:
    """Graph nodes of the scheme for this task's replica; adds itself to LEADS.

    Args:
      context: TaskContext with `max_lead`.

    Attributes:
      replica: this task's number.
      token_queue: shared name of the queue on the ps that this task waits at.
      parcels: as a synchronous optimizer's: what the tasks' graphs have to have alike.
    """

    parcels = ()

    def __init__(self, context):
        num = self._num = context.cluster.num_workers
        self._max, self.replica, self._device = context.max_lead, context.replica, context.control_device
        names = [f"{NAME}_token{i}" for i in range(num)]
        self.token_queue = names[self.replica]
        with tf1.control_dependencies(None), tf1.device(self._device), tf1.name_scope("ps_train/lead"):
            self.vector = LockedVector(
                NAME,
                3 * num,
                lambda vector: LeadState.from_vector(vector, num),
                lambda state: tf.concat(state, 0),
            )
            self._queues = [tf1.FIFOQueue(-1, tf.int64, shapes=[()], shared_name=name) for name in names]
            self._leaver = tf1.placeholder(tf.int64, [], "leaver")
            self._leave = self.vector.change(lambda state: self._without(state, self._leaver)).op
            self.join = self._build_join()
            self._reset = self._build_reset()
        tf1.add_to_collection(LEADS, self)

    def follow(self, update):
        """The op of a whole step: counts it once its update is done, and waits until the next one may begin."""
        with tf1.device(self._device), tf1.name_scope("ps_train/lead"):
            with tf1.control_dependencies([update]):
                counted = self.vector.change(self._count)
            with tf1.control_dependencies([counted]):
                return self._queues[self.replica].dequeue().op

    def reset(self, session, members):
        """Begins anew, for a model that was brought up anew: everyone joins by itself."""
        session.run(self._reset)

    def remove(self, session, replica):
        """Counts a replica no more."""
        session.run(self._leave, {self._leaver: replica})

    forget_push = remove  # nothing is half-made, and it joins again by itself

    def is_torn(self, session):
        """Whether a chief that comes back has to begin anew."""
        return not session.run(self.vector.is_initialized)

    # Transitions, for `LockedVector.change`.

    def _mine(self, replica):
        return tf.one_hot(replica, self._num, dtype=tf.int64)

    def _slowest(self, state):
        return tf.reduce_min(tf.where(state.member > 0, state.steps, tf.fill([self._num], tf.constant(_FAR))))

    def _let_go(self, state):
        """Pays those that wait no longer, or are counted no more: (new state, 0, effects)."""
        is_near = state.steps - self._slowest(state) < self._max
        may = (state.waiting > 0) & (is_near | (state.member < 1))
        paid = tf.cast(may, tf.int64)
        counts = tf.unstack(tf.cast(may, tf.int32))
        zero = tf.zeros([], tf.int64)

        def effects():
            return [
                queue.enqueue_many([tf.fill([count], zero)])
                for queue, count in zip(self._queues, counts, strict=True)
            ]

        return state._replace(waiting=state.waiting * (1 - paid)), zero, effects

    def _admit(self, state):
        """Makes this replica a member, as far as the slowest, unless it is one."""
        mine = self._mine(self.replica)
        is_new = (mine > 0) & (state.member < 1)
        start = tf.where(tf.reduce_any(state.member > 0), self._slowest(state), tf.zeros([], tf.int64))
        steps = tf.where(is_new, tf.fill([self._num], start), state.steps)
        return state._replace(member=tf.maximum(state.member, mine), steps=steps)

    def _count(self, state):
        mine, state = self._mine(self.replica), self._admit(state)
        return self._let_go(state._replace(steps=state.steps + mine, waiting=tf.maximum(state.waiting, mine)))

    def _without(self, state, replica):
        return self._let_go(state._replace(member=state.member * (1 - self._mine(replica))))

    def _build_join(self):
        """Joins anew, with what is left of an earlier process of this replica thrown away."""
        queue = self._queues[self.replica]

        def transition(state):
            state, zero, pay = self._without(state, self.replica)

            def effects():
                with tf1.control_dependencies(pay()):  # its own token among them
                    return [queue.dequeue_many(queue.size()).op]

            return self._admit(state), zero, effects

        return self.vector.change(transition)

    def _build_reset(self):
        assigned = self.vector.variable.assign(tf.zeros([3 * self._num], tf.int64), read_value=False)
        # Whoever still waits for a token goes on, to find its session gone.
        return tf.group(assigned, *(queue.enqueue(tf.zeros([], tf.int64)) for queue in self._queues))


class LeadHook(MemberHook):
    """Joins when a session is made, leaves at a clean end."""

    def begin(self):
        """The nodes are there."""

    def after_create_session(self, session, coord):
        """Joins."""
        self._has_left = self.stays = False
        session.run(self.optimizer.join)
