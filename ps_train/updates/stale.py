"""Old gradients in async: how old each one is, in updates, and what becomes of it: `--max_staleness`, `--scale_by_staleness`.

    gate = StalenessGate(global_step, context, arrived)      # once the gradients are on their ps
    parcels = [gate.let_pass(parcel) for parcel in parcels]
    step = gate.finish(optimizer.apply_gradients(...))       # without a global step, which the gate has raised
    session.run([step, gate.granted])                        # the gradient's staleness, or DROPPED

A gradient is computed from variables that were pulled at one global step, and applied at another. The difference, less its own
update, is its staleness: the updates that others have made meanwhile.

1. When a step begins, the global step is read on its ps, and what the worker pulls is read after that (`pull_later`).
2. When all gradients have got to their ps, the gate, on the ps of the global step and under a mutex, reads the step once more,
   and raises it by one if the gradient is to be applied. So each gradient has a place of its own in the order of the updates,
   and two that come together are not both counted as the first.
3. One that is too old is not applied anywhere (`gate`). No slot changes, and neither does the global step.

With `--prefetch`, and with steps of several batches, variables are pulled before the run that pushes: what the global step was
then is kept on the worker.

Where nothing depends on how old a gradient is, there is no gate: `watch` has the global step read when the step begins and when it
is done. With one batch a step that costs no message, as both come to the worker in the one that it gets anyway. What is pulled is not
held back until then, so that an update that comes in that moment may be counted or not.

Dividing the rate by the staleness is from Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", 2016.
"""

from typing import Any

from ps_train.compat import tf, tf1
from ps_train.transport import ancestors, is_in_control_flow, task_of
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.gate import Gate
from ps_train.updates.locked import while_locked
from ps_train.updates.parcels import barrier

GATES = "ps_train/staleness_gates"
NEVER = -1
DROPPED = -1
_PULLS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


class StalenessGate:
    """Decides on a step's gradients, once they have arrived.

    Args:
      global_step: int64 resource variable, raised by one for each step that passes.
      context: TaskContext; `max_staleness` None: every step passes.
      arrived: list of Parcel, on their ps.

    Attributes:
      begun: op that reads the global step when a step begins.
      note: op that keeps the global step that `begun` reads, for the gradient of what is pulled in the same run; None if nothing is
        pulled before its step.
      tasks: the ps tasks that the gradients go to.
      staleness: int64 scalar, of this step's gradient, dropped or not; `StepHook.staleness` has it of each step that counts.
      granted: int64 scalar: the staleness, or DROPPED.
      rate: float32 scalar, 1 over the staleness, and 1 for a fresh one.
      gate: Gate that is shut for what is too old; with no `max_staleness` nothing hangs on it.
    """

    def __init__(self, global_step, context, arrived):
        self._device, self._max = global_step.device, context.max_staleness
        self.tasks = {task_of(parcel.variables[0].device) for parcel in arrived}
        with (
            tf1.control_dependencies(None),
            tf1.device(self._device),
        ):  # a caller's dependencies may take a while
            now = global_step.read_value()
        self.begun = now.op
        (begun, self.note), all_there = (
            _begun_at(now, context),
            barrier([parcel.gradient for parcel in arrived]),
        )
        with tf1.device(self._device):
            self.staleness, self.fresh = self._decide(global_step, begun, [all_there])
            self.granted = tf.where(self.fresh, self.staleness, tf.constant(DROPPED, tf.int64))
            self.gate = Gate(self.fresh, self._device)
            self.rate = 1.0 / tf.cast(tf.maximum(self.staleness, 1), tf.float32)
        tf1.add_to_collection(GATES, self)

    def _decide(self, global_step, begun, arrived):
        def work():
            now = global_step.read_value()
            staleness = tf.maximum(now - begun, 0)  # the model may have gone back
            fresh = tf.constant(True) if self._max is None else staleness <= self._max
            with tf1.control_dependencies([now]):  # `fresh` may be a constant, which waits for nothing
                raised = global_step.assign_add(tf.cast(fresh, tf.int64), read_value=False)
            return [staleness, fresh], [raised]

        mutex = tf.raw_ops.MutexV2(shared_name="ps_train/staleness_mutex")
        with tf1.control_dependencies(arrived):
            return while_locked(mutex, work)

    def let_pass(self, parcel):
        """A Parcel that has arrived as it is to be applied; see `gate`."""
        return parcel if self._max is None else self.gate.let_pass(parcel)

    def finish(self, applied):
        """An op that is done when the gradients are applied, or dropped."""
        return applied if self._max is None else self.gate.finish(applied)


def watch(train_op, global_step, context):
    """Has a step of async that has no gate tell how old its gradient is.

    Args:
      train_op: op, raises `global_step` by one.
      global_step: int64 resource variable.
      context: TaskContext.

    Returns:
      int64 scalars on the worker, as `StepHook` knows them: "global_step", after the step; "begun", when its run began; with steps
      of several batches "first_begun", when the run of the first one did.
    """
    with tf1.device(global_step.device):
        with tf1.control_dependencies(None):
            begun = global_step.read_value()
        with tf1.control_dependencies([train_op]):
            both = tf.stack([global_step.read_value(), begun])
    with tf1.device(context.worker_device):
        found = dict(zip(("global_step", "begun"), tf.unstack(both), strict=True))
    return found if context.step_batches == 1 else found | {"first_begun": _kept_at_start(begun, context)}


class _Beginning:
    """Notes the global step when the first of a step's batches begins; in ACCUMULATIONS."""

    def __init__(self, start):
        self.start, self.add = start, tf.no_op()


def _begun_at(now, context):
    """The global step at which the variables of this step's gradients were pulled, int64 scalar on a ps or the worker, and `note`."""
    if not context.prefetch:
        return (now if context.step_batches == 1 else _kept_at_start(now, context)), None
    with tf1.control_dependencies(None), tf1.device(context.worker_device):
        kept = _kept()
        begun = kept.read_value()
        with tf1.control_dependencies([begun.op]):
            noted = kept.assign(now, read_value=False)
        with tf1.control_dependencies([noted]):
            return tf.identity(begun), noted


def _kept_at_start(now, context):
    """What `now` was when the first of a step's batches began, on the worker."""
    with tf1.control_dependencies(None), tf1.device(context.worker_device):
        kept = _kept()
        tf1.add_to_collection(ACCUMULATIONS, _Beginning(kept.assign(now, read_value=False)))
        return kept.read_value()


def _kept() -> Any:
    with tf1.name_scope(None, "ps_train/staleness"):
        return tf1.Variable(
            lambda: tf.constant(NEVER, tf.int64), trainable=False, use_resource=True, name="begun",
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )  # fmt: skip


def noting(graph, pull):
    """An op that pulls what a later run's gradient is of, and has the graph's gates keep the global step of now for that."""
    return tf.group(pull, *(gate.note for gate in graph.get_collection(GATES) if gate.note is not None))


def pull_later(graph, runs):
    """Has variables be read after the global step of the moment, so that no gradient is taken for a fresher one than it is.

    On the ps of the global step that costs nothing; the others are sent a word. Reads in loops and branches of the model's are
    left as they are.

    Args:
      graph: not finalized; everything else is done to it.
      runs: see `transport.pack`.
    """
    gates = graph.get_collection(GATES)
    for op in ancestors(fetch for run in runs for fetch in run) if gates else ():
        if op.type not in _PULLS or not op.get_attr("dtype").is_floating or is_in_control_flow(op):
            continue
        for gate in gates:
            if task_of(op.device) in gate.tasks and gate.begun not in op.control_inputs:
                op._add_control_input(gate.begun)
