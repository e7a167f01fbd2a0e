"""Lays the ways for tensors to travel in a task's graph, the last thing that happens to it: one, or all that `--autotune` tries.

    hook = TransportHook([[step], *([update] for update in updates)], context, creator, runner)     # the last of a session's hooks
    runner.transport.use(setting)           # --autotune: for the sessions that are made from now on

It comes after all other hooks have made their ops, among them the one that keeps the graph beside the checkpoints: there is
nothing of it in the `.meta` of a checkpoint.
"""

from typing import Any, NamedTuple

from ps_train import autotune, fusing
from ps_train.compat import tf, tf1
from ps_train.failing import fail_together
from ps_train.logs import log
from ps_train.prefetch import Kept
from ps_train.rewiring import Wiring
from ps_train.traffic import traffic
from ps_train.transport import pack
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.local import redirect
from ps_train.updates.parcels import GRADIENTS
from ps_train.updates.stale import noting, pull_later

# Resources of these ops have the op's name on their task, whatever the session.
NAMED = ("VarHandleOp", "Variable", "VariableV2")


class _Way(NamedTuple):
    """What one setting has made of the graph.

    Attributes:
      changes: rewiring.Changes; None if it is the only one.
      fused: fusing.Fused, or None.
      first_pull: op to be run before the first step of a session, or None.
      batches: arguments of `StepRunner.accumulate`, or None.
      lines: what a step sends, as `traffic.traffic` has it, or None.
    """

    changes: Any
    fused: Any
    first_pull: Any
    batches: Any
    lines: Any


class TransportHook(tf1.train.SessionRunHook):
    """Changes the graph in its `begin`.

    Args:
      runs: see `transport.pack`; the step's is the first.
      context: TaskContext.
      creator: SessionCreator, which gets to know what has to be run before the first step.
      runner: StepRunner, or None.
      publish: is given what a step sends by the way in use, a list of `tables.Line`.
    """

    def __init__(self, runs, context, creator, runner, publish=lambda lines: None):
        self._publish = publish
        self._runs, self._context, self._creator, self._runner = runs, context, creator, runner
        self._wiring: Any = None
        self._ways: dict[Any, _Way] = {}

    def begin(self):
        """Changes the default graph, which is not finalized yet."""
        graph = tf1.get_default_graph()
        redirect(graph)
        fail_together(graph, self._runs[0], self._context.worker_device)
        first, *others = autotune.settings(self._context)
        bound = _bound_to_a_session(graph) if others else None
        if bound is not None:
            log.info("autotune: nothing is tried, as %s, a %s, lives in one session", bound.name, bound.type)
        if bound is not None or not others:
            self._take(self._lay(graph, first, self._creator.cold_ops))
            return
        cold = list(self._creator.cold_ops)
        self._wiring = Wiring(graph)
        for setting in (first, *others):
            self._reroute_gradients(graph, setting)
            way = self._lay(graph, setting, cold)
            self._ways[setting] = way._replace(changes=self._wiring.note())
            self._wiring.restore()
            # These are not to be changed by the next one, as restores are not.
            cold += way.fused.load if way.fused else ()
        self._creator.fused = self._ways[first].fused
        self.use(first)
        self._runner.transport = self

    def use(self, setting):
        """Wires the graph for sessions that are made from now on; those that have run keep what they have."""
        way = self._ways[setting]
        with self._creator.rewiring:
            self._wiring.apply(way.changes)
        self._take(way._replace(fused=self._creator.fused))

    def make_session(self):
        """A session for the setting in use, on the living model."""
        return self._creator.make_raw_session()

    @property
    def first_pull(self):
        """Op to be run before the first step with the setting in use, or None."""
        return self._creator.first_pull

    def _take(self, way):
        self._creator.fused, self._creator.first_pull = way.fused, way.first_pull
        if way.batches is not None and self._runner is not None:
            self._runner.accumulate(*way.batches)
        if way.lines is not None:
            self._publish(way.lines)

    def _reroute_gradients(self, graph, setting):
        for gradients in graph.get_collection(GRADIENTS):
            gradients.reroute(setting.wire_dtype)

    def _lay(self, graph, setting, cold):
        context = self._context
        kept = Kept() if setting.prefetch or context.accumulate_steps > 1 else None
        worker, wire_dtype = context.worker_device, setting.wire_dtype
        bucket_bytes = context.bucket_bytes
        fused = fusing.fuse(
            graph, self._runs, worker, context.fuse_bytes, bucket_bytes, wire_dtype, cold, kept
        )
        pack(graph, self._runs, worker, setting.pack_bytes, bucket_bytes, wire_dtype, kept)
        pull = None if kept is None else kept.pull
        if kept is not None and setting.prefetch:
            kept.pull_during(self._runs[0][0])
            pull = noting(graph, pull)
        accumulations, batches = graph.get_collection(ACCUMULATIONS), None
        if accumulations:
            pulls = [] if pull is None or setting.prefetch else [pull]
            start = tf.group(*(accumulation.start for accumulation in accumulations), *pulls)
            add = tf.group(*(accumulation.add for accumulation in accumulations))
            batches = start, add, context.step_batches - 1
        pull_later(graph, [*self._runs, *([batches[:2]] if batches else [])])
        return _Way(None, fused, pull, batches, self._lines(graph, setting, accumulations, batches))

    def _lines(self, graph, setting, accumulations, batches):
        """What a step sends; None if it is not known what a script runs in one."""
        adds = [accumulation.add for accumulation in accumulations]
        step = [fetched for fetched in self._runs[0] if not any(fetched is add for add in adds)]
        if not step:
            return None
        runs = [(1, step)]
        if batches:
            start, add, count = batches
            runs += [(1, [start]), (count, [add])]
        return traffic(graph, runs, self._context, setting)


def _bound_to_a_session(graph):
    """An op whose resource another session has not, as a queue or a table without a name that is shared; None if there is none."""
    attributes: dict[str, set[str]] = {}  # of a type of op
    for op in graph.get_operations():
        if op.type not in attributes:
            attributes[op.type] = {attribute.name for attribute in op.op_def.attr}
        known = attributes[op.type]
        if op.type in NAMED or "shared_name" not in known or op.get_attr("shared_name"):
            continue
        if "use_node_name_sharing" not in known or not op.get_attr("use_node_name_sharing"):
            return op
    return None
