"""Synchronous updates in lock-step: TensorFlow's SyncReplicasOptimizer with its coordination replaced.

    optimizer = SyncReplicasOptimizer(tf1.train.AdamOptimizer(1e-3), replicas_to_aggregate=2, total_num_replicas=2)
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
    hooks = [optimizer.make_session_run_hook(is_chief)]

What one step does, for a worker (every node but the gradient's computation runs on the ps tasks):

1. gradients are computed from the variables as they stand, and sent to the ps of each variable;
2. when all have got there, the worker claims its place in the open round (`ledger`);
3. the gradients go into one accumulator per variable (small ones of a ps into one together, see `parcels`), stamped with the
   round, or with -1 and so dropped if refused;
4. the worker notes its arrival; the last one needed rings `go`;
5. it waits for its token, which the chief's update hands out, and keeps the token as its next stamp.

And for the chief, in a thread of its own (`UpdateLoop`): wait for `go` -> sums out of the accumulators -> divided by the
number of gradients -> the wrapped optimizer, global_step + 1 -> next round, tokens. The run is issued before the round is
full, so it waits on the ps and no message stands between the last gradient and the update.

Sums, not TensorFlow's accumulator mean, are used because `SparseConditionalAccumulator` divides each row by the number of
gradients which hold that row: rows that only one of N workers touched would move N times too far.

Source of the scheme: Chen et al., "Revisiting Distributed Synchronous SGD", 2016; public API as in
tensorflow/python/training/sync_replicas_optimizer.py.
"""

import contextlib
import time
from typing import Any

from ps_train import task_context
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError, UsageError
from ps_train.split_variable import parts_of
from ps_train.step_trace import LEDGER_PREFIX
from ps_train.updates import SYNC_OPTIMIZERS
from ps_train.updates.ledger import REFUSED, Ledger, LedgerState
from ps_train.updates.parcels import barrier, in_order, send_gradients
from ps_train.updates.rounds import MemberHook


def first_round_now():
    """A round number above all that any earlier generation can have used: milliseconds since 1970."""
    return int(time.time() * 1000)


class SyncReplicasOptimizer(tf1.train.SyncReplicasOptimizer):
    """Averages one fresh gradient of each of `replicas_to_aggregate` workers into each update.

    >>> optimizer = SyncReplicasOptimizer(tf1.train.AdamOptimizer(1e-3), replicas_to_aggregate=2, total_num_replicas=3)
    >>> optimizer.replicas_to_aggregate
    2

    The module shows a whole use, and examples/legacy_script.py a running one.

    Drop-in for `tf.compat.v1.train.SyncReplicasOptimizer`. Differences: updates are exact whatever the workers' speeds;
    with fewer `replicas_to_aggregate` than replicas, the first to come are taken, each at most once a round, and the rest
    are dropped; a worker that ends leaves the quorum; `num_tokens` of the hook is accepted and not needed.

    Args:
      opt: the optimizer that applies the mean gradient.
      replicas_to_aggregate: gradients per update; at most `total_num_replicas`.
      total_num_replicas: workers; default `replicas_to_aggregate`.
      variable_averages: `ExponentialMovingAverage` updated after each update.
      variables_to_average: variables for `variable_averages`.
      use_locking: as in TensorFlow.
      name: name scope; also tells apart several of these in one graph.

    Raises:
      UsageError: more gradients than replicas, or no cluster's task in this process.
    """

    def __init__(
        self, opt, replicas_to_aggregate, total_num_replicas=None, variable_averages=None, variables_to_average=None,
        use_locking=False, name="sync_replicas",
    ):  # fmt: skip
        total_num_replicas = total_num_replicas or replicas_to_aggregate
        if not 1 <= replicas_to_aggregate <= total_num_replicas:
            raise UsageError(
                f"replicas_to_aggregate={replicas_to_aggregate} is not between 1 and the number of workers, "
                f"{total_num_replicas}: a worker gives one gradient to an update. Lower it, or add workers."
            )
        super().__init__(
            opt,
            replicas_to_aggregate,
            total_num_replicas,
            variable_averages,
            variables_to_average,
            use_locking,
            name,
        )
        self.replicas_to_aggregate = replicas_to_aggregate
        self._loss: Any = None
        self.ledger: Any = None  # both are made by apply_gradients
        self.update_op: Any = None
        self.update_loop: Any = None  # on the chief
        # The stamp of this worker's gradient, or REFUSED if it came too late for its update.
        self.granted: Any = None
        self.parcels: Any = None  # what goes to a ps together
        self.accumulators: Any = None  # list of (accumulator, device), one for each parcel
        self.step_after: Any = None  # the global step once this worker's wait is over, read on the ps

    @property
    def replica(self):
        """This task's number in the ledger."""
        return self.ledger.replica

    @property
    def token_queue(self):
        """Shared name of the queue on the ps at which this task waits for its token."""
        return self.ledger.token_queue_names[self.ledger.replica]

    def note_loss(self, loss):
        """The loss that is checked for NaN with the gradients: of several losses, their mean; a function is not checked."""
        self._loss = None if callable(loss) else loss

    def compute_gradients(self, loss, var_list=None, *args, **kwargs):
        """As the wrapped optimizer's; remembers the loss, which is checked for NaN with the gradients."""
        self.note_loss(loss)
        if var_list is not None or args:
            args = (parts_of(var_list), *args)
        return super().compute_gradients(loss, *args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Builds the step and the update; returns the op that a worker runs each step.

        Args:
          grads_and_vars: list of (gradient, variable); a gradient may be None, a tensor or IndexedSlices.
          global_step: int64 variable, raised by one for each update; required.
          name: unused, as in TensorFlow.

        Raises:
          ModelError: no global_step, or no gradient at all.
          UsageError: this process has not said which task it is (make a `ps_train.Server` first).
        """
        grads_and_vars = list(grads_and_vars)
        if global_step is None:
            raise ModelError(
                "SyncReplicasOptimizer needs a global step: pass global_step=tf1.train.get_global_step()."
            )
        if all(gradient is None for gradient, _ in grads_and_vars):
            raise ModelError(
                "No variable gets a gradient: the loss does not depend on any trainable variable. Check model_fn."
            )
        context = task_context.current()
        self._global_step = global_step
        count = len(tf1.get_collection(SYNC_OPTIMIZERS))
        with tf1.device(context.worker_device):
            before = tf.no_op(
                "before_step"
            )  # a caller's control dependencies, as UPDATE_OPS, are the step's alone:
        with tf1.control_dependencies(None), tf1.name_scope(None, self._name):  # the update would read input
            self.ledger = Ledger(
                f"{LEDGER_PREFIX}{count}", self._total_num_replicas, self._replicas_to_aggregate,
                context.replica, context.control_device,
            )  # fmt: skip
            train_op = self._build(grads_and_vars, context, before)
        self._gradients_applied = True
        tf1.add_to_collection(SYNC_OPTIMIZERS, self)
        return train_op

    def _build(self, grads_and_vars, context, before):
        with tf1.device(context.worker_device):
            self._stamp = tf1.Variable(
                lambda: tf.constant(REFUSED, tf.int64), trainable=False, use_resource=True, name="stamp",
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            )  # fmt: skip
            self._new_stamp = tf1.placeholder(tf.int64, [], "new_stamp")
            self._set_stamp = self._stamp.assign(self._new_stamp).op
            stamp = self._stamp.read_value()
        arrived, accumulators = [], []
        self.parcels = send_gradients(grads_and_vars, self._loss, context)
        for parcel in self.parcels:
            device = parcel.variables[0].device
            arrived.append(parcel.arrive().gradient)
            with tf1.device(device):
                accumulators.append((_accumulator_for(self.ledger, parcel), device))
        with tf1.control_dependencies([barrier(arrived), before]):
            granted = self.granted = self.ledger.claim(stamp)
        pushes = []
        for gradient, (accumulator, device) in zip(arrived, accumulators, strict=True):
            with tf1.device(device):
                pushes.append(_push(accumulator, gradient, granted))
        with tf1.control_dependencies([tf.group(*pushes)]):
            arrival = self.ledger.arrive(granted)
        with tf1.control_dependencies([arrival]):
            token = self.ledger.wait_for_token()
        with tf1.control_dependencies([token]), tf1.device(self._global_step.device):
            self.step_after = self._global_step.read_value()
        with tf1.device(context.worker_device):
            train_op = self._stamp.assign(token).op
        self.accumulators = accumulators
        self.update_op = self._build_update(grads_and_vars, [a for a, _ in accumulators])
        self._build_discard(accumulators)
        return train_op

    def _build_update(self, grads_and_vars, accumulators):
        count = self.ledger.wait_for_go()
        means = []
        for parcel, accumulator in zip(self.parcels, accumulators, strict=True):
            with tf1.device(parcel.variables[0].device), tf1.control_dependencies([count]):
                means += parcel.unpack(_take_mean(accumulator, count))
        mean = in_order(means, grads_and_vars)
        with tf1.device(self.ledger.device), tf1.name_scope(""):
            update = self._opt.apply_gradients(mean, self._global_step)
        if self._variable_averages is not None:
            with tf1.control_dependencies([update]), tf1.name_scope(""):
                update = self._variable_averages.apply(self._variables_to_average)
        with tf1.control_dependencies([update]):
            return self.ledger.complete()

    def _build_discard(self, accumulators):
        self._open_round = tf1.placeholder(tf.int64, [], "open_round")
        moved, counts, self._takes = [], [], []
        for accumulator, device in accumulators:
            with tf1.device(device):
                moved.append(accumulator.set_global_step(self._open_round))
                counts.append(accumulator.num_accumulated())
                self._takes.append(_take_sum(accumulator))
        self._move_accumulators, self._counts = tf.group(*moved), counts

    # Run by the chief between sessions or from its update loop; every call takes a raw tf1.Session.

    def _empty_accumulators(self, session, round_number):
        move = {self._open_round: round_number}
        session.run(self._move_accumulators, move)  # from here on, older gradients are dropped
        for take, count in zip(self._takes, session.run(self._counts), strict=True):
            if count:
                session.run(take)
        session.run(self._move_accumulators, move)  # taking moved some of them one round on

    def reset(self, session, members=None):
        """Starts a new generation of rounds: nothing that an earlier one left on the ps tasks is ever counted.

        Called by the chief when it has initialized or restored the variables, before any worker trains.

        Args:
          session: raw session on the cluster.
          members: int 0 or 1 for each replica, `[total_num_replicas]`; default all ones.
        """
        first_round = first_round_now()
        self._empty_accumulators(session, first_round)
        members = [1] * self._total_num_replicas if members is None else members
        feed = {self.ledger.first_round: first_round, self.ledger.first_members: members}
        session.run(self.ledger.reset, feed)

    def discard_round(self, session):
        """Drops the open round's gradients and has everyone compute a new one: a worker died halfway through its push."""
        round_number = session.run(self.ledger.freeze)
        self._empty_accumulators(session, round_number)
        session.run(self.ledger.thaw)

    @contextlib.contextmanager
    def paused(self, session):
        """Within it no update changes the variables: what is saved is the model of one step. Called by the chief."""
        is_paused = False
        while self.update_loop is not None and self.update_loop.is_running and not is_paused:
            is_paused = session.run(self.ledger.pause) > 0
            if not is_paused:
                time.sleep(0.002)  # an update is running; it is short
        try:
            yield
        finally:
            if is_paused:
                session.run(self.ledger.resume)

    def remove(self, session, replica):
        """Takes a lost replica out of the quorum."""
        session.run(self.ledger.leave, {self.ledger.leaver: replica})

    def forget_push(self, session, replica):
        """Has the open round done again if a lost replica's push to it is half-made; the replica stays in the quorum."""
        session.run(self.ledger.lose, {self.ledger.leaver: replica})

    def is_torn(self, session):
        """Whether the variables are unusable for a new chief: no ledger, or an update was cut off halfway."""
        if not session.run(self.ledger.is_initialized):
            return True
        return bool(self.snapshot(session).updating)

    def snapshot(self, session):
        """The ledger as a `LedgerState` of NumPy values."""
        return LedgerState.from_vector(session.run(self.ledger.snapshot), self._total_num_replicas)

    def get_init_tokens_op(self, num_tokens=-1):
        """An op that does nothing: tokens are handed out by the ledger. Kept for scripts that run it."""
        return tf.no_op()

    def get_chief_queue_runner(self):
        """Not there any more: the hook runs the update. Raises UsageError."""
        raise UsageError(
            "get_chief_queue_runner: the update has its own thread. Delete this call and add "
            "optimizer.make_session_run_hook(is_chief) to the session's hooks."
        )

    def make_session_run_hook(self, is_chief, num_tokens=-1):
        """The hook that joins and leaves the rounds; on the chief, `UpdateLoop` runs the updates besides.

        Args:
          is_chief: ignored in favour of the task that this process is; kept for TensorFlow's signature.
          num_tokens: ignored; tokens are not needed.
        """
        return MemberHook(self)


def _accumulator_for(ledger, parcel):
    is_sparse = isinstance(parcel.gradient, tf.IndexedSlices)
    make = tf1.SparseConditionalAccumulator if is_sparse else tf1.ConditionalAccumulator
    return make(
        parcel.variables[0].dtype.base_dtype,
        shape=parcel.variables[0].shape if is_sparse else parcel.shape,
        shared_name=f"{ledger.name}_{parcel.name}",
        reduction_type="SUM",
    )


def _push(accumulator, gradient, stamp):
    if isinstance(gradient, tf.IndexedSlices):
        indices = tf.cast(gradient.indices, tf.int64)
        return accumulator.apply_grad(indices, gradient.values, local_step=stamp)
    return accumulator.apply_grad(gradient, local_step=stamp)


def _take_sum(accumulator):
    """Op or tensor that empties an accumulator with at least one gradient in it."""
    if isinstance(accumulator, tf1.SparseConditionalAccumulator):
        return accumulator.take_indexed_slices_grad(1).values
    return accumulator.take_grad(1)


def _take_mean(accumulator, count):
    if isinstance(accumulator, tf1.SparseConditionalAccumulator):
        total = accumulator.take_indexed_slices_grad(1)
        return tf.IndexedSlices(
            total.values / tf.cast(count, total.values.dtype), total.indices, total.dense_shape
        )
    total = accumulator.take_grad(1)
    return total / tf.cast(count, total.dtype)
