"""The update rule of a job, as an optimizer wrapper: what `--update` and `DistributedOptimizer` turn into.

optimizer = DistributedOptimizer(tf1.train.AdamOptimizer(1e-3))   # in a model_fn that makes its own train_op
train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
"""

from ps_train import task_context
from ps_train.compat import tf1
from ps_train.errors import ModelError
from ps_train.updates import DISTRIBUTED, sync
from ps_train.updates.allreduce import AllReduceOptimizer
from ps_train.updates.local import LocalOptimizer
from ps_train.updates.parcels import in_order, send_gradients
from ps_train.updates.rate import RATED, scale_rate, worker_factor
from ps_train.updates.stale import StalenessGate
from ps_train.updates.wrapped import WrappedOptimizer


class AsyncOptimizer(WrappedOptimizer):
    """Applies each worker's gradients as they come; the wrapped optimizer does all the work."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """As the wrapped optimizer's, of gradients that were checked for NaN and Inf."""
        tf1.add_to_collection(DISTRIBUTED, self)
        context = task_context.current_or_none()
        if context is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        grads_and_vars = list(grads_and_vars)
        parcels = send_gradients(grads_and_vars, self._loss, context)
        if context.watches_staleness:
            return self._apply_unless_old(parcels, grads_and_vars, global_step, context, name)
        return self._apply(parcels, grads_and_vars, global_step, name)

    def _apply(self, parcels, grads_and_vars, global_step, name):
        pieces = []
        for parcel in parcels:
            with tf1.device(parcel.variables[0].device):
                pieces += parcel.unpack(parcel.gradient)
        return self._optimizer.apply_gradients(in_order(pieces, grads_and_vars), global_step, name)

    def _apply_unless_old(self, parcels, grads_and_vars, global_step, context, name):
        if global_step is None:
            raise ModelError(
                "the gradients' staleness is counted in global steps, and an optimizer gets none: pass "
                "global_step=tf1.train.get_global_step(), or leave out --max_staleness and --scale_by_staleness."
            )
        arrived = [parcel.arrive() for parcel in parcels]
        gate = StalenessGate(global_step, context, arrived)
        if context.scale_by_staleness:
            scale_rate(self._optimizer, lambda: gate.rate, "--scale_by_staleness")
        passed = [gate.let_pass(parcel) for parcel in arrived]
        return gate.finish(self._apply(passed, grads_and_vars, None, name))


class _CountedSyncOptimizer(sync.SyncReplicasOptimizer):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        tf1.add_to_collection(DISTRIBUTED, self)
        return super().apply_gradients(grads_and_vars, global_step, name)


def DistributedOptimizer(optimizer):  # noqa: N802, the name that Horovod's users know
    """Wraps an optimizer so that its updates follow the job's rule (`--update`).

    For a `model_fn` that makes its own `train_op`; where `ModelSpec(optimizer=...)` is returned, ps_train wraps it.
    In a single process (evaluation, or no cluster) the optimizer's own behaviour is unchanged.

    Args:
      optimizer: a `tf.compat.v1.train.Optimizer`.

    Raises:
      ModelError: it is something else, as a Keras optimizer.

    Example:
      >>> from ps_train.compat import tf, tf1
      >>> with tf1.Graph().as_default():
      ...     w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
      ...     step = tf1.train.get_or_create_global_step()
      ...     op = DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1)).minimize(w * w, global_step=step)
      ...     with tf1.Session() as session:
      ...         session.run(tf1.global_variables_initializer())
      ...         session.run(op)
      ...         print(round(float(session.run(w)), 3))
      0.8
    """
    if not isinstance(optimizer, tf1.train.Optimizer):
        raise ModelError(
            f"The optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; expected a "
            "tf.compat.v1.train.Optimizer, such as tf.compat.v1.train.AdamOptimizer(1e-3)."
        )
    context = task_context.current_or_none()
    if context is not None and context.scale_rate != "none":
        num_gradients = context.quorum if context.update != "async" else context.cluster.num_workers
        factor = worker_factor(context.scale_rate, num_gradients)
        scale_rate(optimizer, lambda: factor, "--scale_rate")
    tf1.add_to_collection(RATED, optimizer)
    if context is None or context.local_steps == 1:
        return _make_rule(optimizer, context)
    return LocalOptimizer(optimizer, _make_rule(tf1.train.GradientDescentOptimizer(1.0), context))


def _make_rule(optimizer, context):
    if context is not None and context.is_all_reduced:
        return AllReduceOptimizer(optimizer)
    if context is None or context.update != "sync":
        return AsyncOptimizer(optimizer)
    num_workers = context.cluster.num_workers
    return _CountedSyncOptimizer(
        optimizer, context.replicas_to_aggregate or num_workers, total_num_replicas=num_workers
    )
