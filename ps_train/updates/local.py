"""Local SGD: a worker trains on copies of its own for some batches, and pushes what came of it: `--local_steps`.

    optimizer = LocalOptimizer(tf1.train.AdamOptimizer(1e-3), rule)     # rule: of tf1.train.GradientDescentOptimizer(1.0)
    step = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
    redirect(graph)                                # once the graph is built: the worker computes with the copies

    session.run(optimizer.start)                   # the copies are what the ps has now
    for _ in range(3):
        session.run(optimizer.add)                 # a batch, and the user's optimizer on the copies
    session.run(step)                              # the fourth, and the push of the difference

Pushed is where the copies started minus where they are, as if it were a gradient, so that all that holds for gradients (rounds,
types on the way, error feedback, checks) holds for it. The ps subtracts it: in async at once, in sync the mean of the workers',
which leaves the mean of their copies (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", 2017; Stich, "Local SGD Converges Fast and Communicates Little", 2019). The slots of the user's optimizer, as its
momentum, are local variables of the worker: kept from round to round, gone with the worker's session, in no checkpoint.
"""

import contextlib
from typing import Any, NamedTuple

from ps_train import task_context
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.transport import ancestors, is_in_control_flow, reroute
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.finite import check_gradients
from ps_train.updates.wrapped import WrappedOptimizer

COPIES = "ps_train/local_copies"
_SHAPES = ("VariableShape", "VarIsInitializedOp")  # the same for a copy
_CALLS = (
    "While",
    "StatelessWhile",
    "If",
    "StatelessIf",
    "Case",
    "PartitionedCall",
    "StatefulPartitionedCall",
)


class _Copy(NamedTuple):
    """A worker's copy of a variable.

    Attributes:
      variable: on a ps.
      begun, now: local variables: what the round began with, and what came of it.
      value: tensor, what a batch computes with.
    """

    variable: Any
    begun: Any
    now: Any
    value: Any


class LocalOptimizer(WrappedOptimizer):
    """Applies an optimizer to the worker's copies, and a rule to the difference.

    Args:
      optimizer: the user's.
      rule: the job's, of an optimizer that subtracts what it is given.

    Attributes:
      start, add, push: ops, once gradients are applied.
      results: the tensors that are made of the copies: gradients, and the loss if it is known.
    """

    def __init__(self, optimizer, rule):
        super().__init__(optimizer)
        self._rule = rule
        self._copies: dict[Any, Any] = {}
        self.start: Any = None
        self.add: Any = None
        self.push: Any = None
        self.results: Any = None

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """The op of a round's last batch, which pushes; see the module for those before it.

        Raises:
          ModelError: a gradient is sparse, or a variable cannot have a copy.
        """
        context = task_context.current()
        # In sync, a caller's control dependencies, as UPDATE_OPS, are the step's alone.
        apart = tf1.control_dependencies(None) if context.update == "sync" else contextlib.nullcontext()
        with apart, tf1.name_scope(None, "ps_train/local"), tf1.device(context.worker_device):
            checked = check_gradients(list(grads_and_vars), self._loss, context.on_nan)
            differences = self._train_copies([pair for pair in checked if pair[0] is not None])
        tf1.add_to_collection(ACCUMULATIONS, self)
        self.push = self._rule.apply_gradients(differences, global_step=global_step, name=name)
        return self.push

    def _train_copies(self, pairs):
        copies = [_copy(gradient, variable) for gradient, variable in pairs]
        self._copies = {copy.variable.ref(): copy.now for copy in copies}
        # All is computed with the same copies: none is changed before.
        before = [copy.value.op for copy in copies] + [gradient.op for gradient, _ in pairs]
        with tf1.control_dependencies(before), tf1.variable_creator_scope(_make_local):
            self.add = self._optimizer.apply_gradients(
                [(gradient, copy.now) for (gradient, _), copy in zip(pairs, copies, strict=True)]
            )
        with tf1.control_dependencies(None):
            self.start = tf.group(*map(_start, copies))
        self.results = [gradient for gradient, _ in pairs] + ([] if self._loss is None else [self._loss])
        with tf1.control_dependencies([self.add]):
            return [(copy.begun.read_value() - copy.now.read_value(), copy.variable) for copy in copies]

    def get_slot(self, var, name):
        """As the wrapped optimizer's, of the worker's copy of a variable."""
        return self._optimizer.get_slot(self._copies.get(var.ref(), var), name)


def _copy(gradient, variable):
    name = variable.op.name
    if isinstance(gradient, tf.IndexedSlices):
        raise ModelError(
            f"The gradient of {name} is sparse, and with --local_steps a worker would copy and send all of {name}. Leave out "
            "--local_steps."
        )
    if not variable.shape.is_fully_defined() or not hasattr(variable, "handle"):
        why = "is no resource variable" if variable.shape.is_fully_defined() else "has no known shape"
        raise ModelError(f"{name} {why}, so that no worker can have a copy of it. Leave out --local_steps.")
    if any(variable is copy.variable for copy in tf1.get_collection(COPIES)):
        raise ModelError(
            f"{name} is trained by two optimizers, and with --local_steps its difference would be pushed twice. Give each "
            "its own var_list, or leave out --local_steps."
        )
    with tf1.control_dependencies(None):
        begun, now = (_zeros_like(variable, what) for what in (f"begun/{name}", name))
        copy = _Copy(variable, begun, now, now.read_value())
    tf1.add_to_collection(COPIES, copy)
    return copy


def _zeros_like(variable, name):
    return tf1.Variable(
        lambda: tf.zeros(variable.shape, variable.dtype.base_dtype), trainable=False, use_resource=True, name=name,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip


def _start(copy):
    pulled = copy.variable.read_value()
    return tf.group(copy.begun.assign(pulled, read_value=False), copy.now.assign(pulled, read_value=False))


def _make_local(next_creator, **kwargs):
    kwargs["collections"], kwargs["trainable"] = [tf1.GraphKeys.LOCAL_VARIABLES], False
    return next_creator(**kwargs)


def redirect(graph):
    """Has losses and gradients be computed of the copies; whatever else reads a variable gets what the ps has.

    Args:
      graph: not finalized. The one beside the checkpoints is written before: each head of a model runs without copies there.

    Raises:
      ModelError: a variable is used in a way that a copy cannot serve, or two optimizers wait for one another.
    """
    optimizers = [one for one in graph.get_collection(ACCUMULATIONS) if isinstance(one, LocalOptimizer)]
    copies = graph.get_collection(COPIES)
    if not copies:
        return
    used = _makers(tensor for optimizer in optimizers for tensor in optimizer.results)
    for copy in copies:
        for op in copy.variable.handle.consumers():
            if op in used and op.type not in _SHAPES:
                _redirect_one(op, copy)
    _check_batches(optimizers)


def _redirect_one(op, copy):
    if op.type == "ReadVariableOp" and not is_in_control_flow(op):
        takers = op.outputs[0].consumers()
        uses = [(taker, i) for taker in takers for i, t in enumerate(taker.inputs) if t.op is op]
        reroute(uses, copy.value)
    elif op.type in _CALLS:
        reroute([(op, i) for i, t in enumerate(op.inputs) if t is copy.variable.handle], copy.now.handle)
    else:
        name = copy.variable.op.name
        raise ModelError(
            f"{name} is used by {op.name} ({op.type}), which with --local_steps cannot take this worker's copy of it. Give "
            f"it tf.identity({name}), or leave out --local_steps."
        )


def _makers(tensors):
    """The ops that make these tensors what they are: those of their inputs, and theirs, but not what they wait for."""
    pending = [tensor.op for tensor in tensors]
    found = set(pending)
    while pending:
        new = {tensor.op for tensor in pending.pop().inputs} - found
        found |= new
        pending += new
    return found


def _check_batches(optimizers):
    """A batch before the last may push nothing."""
    pushes = {optimizer.push for optimizer in optimizers}
    if pushes & set(ancestors(optimizer.add for optimizer in optimizers)):
        raise ModelError(
            "one optimizer's gradients wait for another's update, and with --local_steps there is none before the last batch "
            "of a round. Run both together by tf.group, or leave out --local_steps."
        )
