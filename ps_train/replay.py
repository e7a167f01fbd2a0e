"""Re-applies a recorded asynchronous run in one process, so that what happened in it happens again; see `recorded`.

    findings = Replay(read("DIR"), "DIR", configs, cluster, model).run()
    findings.lines()                                # how true it was, and where numbers went wrong

1. The graph of each worker is built as it was in the run, with its own seed and shard, and cut where messages went (`sections`).
   Nothing has a device any more: all copies are in one graph and session, where those of a ps variable are one by their name.
   Each session of a worker is a copy of its own, whose random numbers and input start anew.
2. The events of each ps are gone through in its order. Each runs one piece of one step: it is fed what the pieces before it
   gave, and what it gives is kept for those after it. A worker's pieces run as soon as their inputs are there. So a step
   computes with what it pulled when it pulled it, and is applied when it was applied: no old version of the model has to
   be kept, but for each worker what its one step has in hand, as in the run.
3. Each loss, and the global step and the staleness where they were noted, is compared with what the worker had noted; each checkpoint
   that is still there with the model at that moment, as a save has its place in the orders, too.

An event whose step lacks something is left until another ps has got that far. At the end of the record, steps are left over of which
some ps tasks had written more than others.

The alternative to feeding what was pulled was a snapshot of each ps for each version that is still to be used (up to the highest
staleness + 1 of them); to copies in one session, servers for all tasks in this process, which run steps only as a whole.
"""

import itertools
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ps_train import graph, server, task_context, worker
from ps_train.bring_up import SessionCreator
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError, UsageError
from ps_train.explain import as_model_error
from ps_train.findings import Findings
from ps_train.inputs import build_input_init
from ps_train.logs import Throttle, log
from ps_train.recorded import ModelEvent, SaveEvent
from ps_train.sections import WORKER, cut
from ps_train.session import Saving
from ps_train.startup import make_context
from ps_train.transport_hook import TransportHook
from ps_train.updates.finite import is_bad_number

SAYING_SECS = 10.0


class Part(NamedTuple):
    """A piece of a step, by names.

    Attributes:
      inputs, outputs: of tensors that are fed and fetched.
      ends: of ops that are run.
      section: its number, or None for a piece that has none.
      needs: numbers of the sections that have to be done before it can be.
      pushed: those of `outputs` that a ps takes from a worker.
    """

    inputs: list
    outputs: list
    ends: list
    section: int | None
    needs: frozenset
    pushed: list


class Built(NamedTuple):
    """One worker's graph in pieces.

    Attributes:
      graph: the graph itself, which keeps Python functions alive.
      graph_def: its nodes without devices, and without what pieces wait for of others.
      parts: list of Part, each after those that it takes something of.
      fetches: figure -> name of a tensor.
      start: names of the ops that begin a session.
    """

    graph: Any
    graph_def: Any
    parts: list
    fetches: dict
    start: list


class Keeper(NamedTuple):
    """What initializes, restores and saves the model: nodes and names of the chief's graph."""

    graph_def: Any
    parts: list
    saver_def: Any
    init: str
    load: list
    read_step: str


def build(context, config, model, start):
    """(Built, Keeper; None but for the chief) of a worker.

    Args:
      context: TaskContext.
      config: TrainConfig, with the worker's seed.
      model: Model.
      start: what the worker wrote when it started.

    Raises:
      ModelError: it is another graph than in the run.
    """
    task_context.set_current(context)
    if "keras" in sys.modules or "tf_keras" in sys.modules:  # which counts its layers, over all graphs
        tf.keras.backend.clear_session()
    ops = graph.build_train(context, config, model)
    named = worker.make_fetches(context, ops)
    step = [ops.step, *named.values()]
    with ops.graph.as_default():
        saving = Saving(config.record)  # whatever it is: there is a saver then
        creator: Any = SessionCreator(SimpleNamespace(context=context), [], saving, tf1.train.Scaffold())
        with tf1.device(f"{context.worker_device}/device:CPU:0"):
            begin = [tf.group(tf1.train.Scaffold.default_local_init_op()), build_input_init()]
            read_step = ops.global_step.read_value()
        TransportHook([step], context, creator, None).begin()
        init = creator.cold_ops[0].name
    parts = cut(step)
    if parts.digest != start["digest"]:
        raise ModelError(
            f"{model.source} gives another graph than in the run: variables, updates or their places differ. Check out the model, "
            "ps_train and TensorFlow of then."
        )
    if parts.seeds != start["seeds"]:
        log.warning("%s: its random ops have other seeds than in the run", context.task)
    definition = ops.graph.as_graph_def()
    fetches = {name: tensor.name for name, tensor in named.items()}
    built = Built(ops.graph, _apart(definition, parts), _parts(parts), fetches, [op.name for op in begin])
    if not context.is_chief:
        return built, None
    saves = cut([ops.graph.as_graph_element(creator.saver.saver_def.save_tensor_name)])
    load = [op.name for op in creator.fused.load] if creator.fused else []
    keeper = Keeper(
        _apart(definition, saves), _parts(saves), creator.saver.saver_def, init, load,
        read_step.name,
    )  # fmt: skip
    return built, keeper


def _parts(found):
    """A Part for each piece of a Cut."""
    parts: list[Part] = []
    needs: dict[Any, frozenset[int]] = {}
    for key in found.pieces:
        inputs, outputs = found.inputs(key), found.outputs(key)
        section = found.sections.index(key) if key in found.sections else None
        before = [found.key_of(tensor.op) for tensor in inputs]
        needs[key] = frozenset().union(*(needs[one] for one in before)) | (
            frozenset() if section is None else {section}
        )
        pushed = [
            t.name for t in outputs
            if key.task == WORKER and t.dtype.is_floating
            and any((found.key_of(c) or key).task != WORKER for c in found.consumers[t.op] if t in [*c.inputs])
        ]  # fmt: skip
        names = [t.name for t in inputs], [t.name for t in outputs], [op.name for op in found.ends(key)]
        parts.append(Part(*names, section, needs[key] - {section}, pushed))
    return parts


def _apart(definition, found):
    """A GraphDef without tasks, whose pieces wait for nothing of one another."""
    made = tf1.GraphDef()
    made.CopyFrom(definition)
    keys = {op.name: key for key, ops in found.pieces.items() for op in ops}
    fed = {}
    taken = {tensor.name: tensor for key in found.pieces for tensor in found.inputs(key)}
    for key in found.pieces:
        for tensor in found.inputs(key):
            fed[key, tensor.name.removesuffix(":0")] = _fed(tensor.name).removesuffix(":0")
    for node in made.node:
        device = tf.DeviceSpec.from_string(node.device)
        is_on_ps = device.job == "ps"
        node.device = "/device:CPU:0" if is_on_ps else device.replace(job=None, task=None).to_string()
        if "shared_name" in node.attr and "container" in node.attr:
            node.attr["shared_name"].s = node.attr["shared_name"].s or node.name.encode()
            if not is_on_ps:
                node.attr["container"].s = _OWN + node.attr["container"].s
        key = keys.get(node.name)
        kept = [name for name in node.input if name[0] != "^" or keys.get(name[1:]) == key]
        node.input[:] = [fed.get((key, name), name) for name in kept]
    for name, tensor in taken.items():
        node = made.node.add(name=_fed(name).removesuffix(":0"), op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    for function in made.library.function:
        for node in function.node_def:
            node.device = ""
    return made


def _fed(name):
    """The placeholder in place of a tensor of another piece: TensorFlow's optimizer may go round an op whose tensor is fed."""
    op, _, index = name.partition(":")
    return f"ps_train/fed/{op}/{index}:0"


_OWN = b"own."  # leads the container of what belongs to one copy, whose name comes in its place


class _Step:
    """A step that has begun and is not over: what its parts gave, and the numbers of those that were run, if in vain."""

    def __init__(self):
        self.values: dict[str, Any] = {}
        self.done: set[int] = set()


class Replay:
    """Goes through a record.

    Args:
      record: recorded.Record.
      directory: where it is.
      configs: worker -> list of TrainConfigs, one for each of its starts.
      cluster: Cluster.
      model: Model.
      until: the global step to end at, or None.
      train_dir: where checkpoints are looked for that are no more where they were written, or None.
    """

    def __init__(self, record, directory, configs, cluster, model, until=None, train_dir=None):
        self._record, self._directory, self._configs = record, directory, configs
        self._cluster, self._model, self._train_dir = cluster, model, train_dir
        self._built: dict[tuple[int, int], Built] = {}
        self._keepers: dict[int, Any] = {}  # by the start of the chief's process that brings a model up
        self._keeper: Any = None
        self._keeper_prefix = ""
        self._copies: dict[tuple[int, int], str] = {}
        self._steps: dict[tuple[int, int, int], _Step] = {}
        self._saves: dict[tuple[int, int], _Step] = {}
        self._brought_up: set[int] = set()
        self._graph = tf1.Graph()
        self.findings = Findings(record)
        self._limits = {ps: record.limit(ps, until) for ps in record.orders}
        self._recorded = record.sections_of_steps(self._limits)
        # The worker's step before each, and the one after it.
        in_turn = list(itertools.pairwise(sorted(self._recorded)))
        self._before = {two: one for one, two in in_turn if one[:2] == two[:2]}
        self._after = {one: two for two, one in self._before.items()}
        self._session: Any = None
        self._next = dict.fromkeys(record.orders, 0)

    def run(self, out=None):
        """Goes through all of it; the Findings.

        Args:
          out: directory for a checkpoint at the end, or None.

        Raises:
          ModelError: the model is another one than in the run, or fails in another way than for NaN.
          UsageError: a checkpoint that is needed is not there.
        """
        task = self._cluster.training_tasks[0]
        options = make_context(task, self._cluster, self._configs[0][0]).devices
        # Not as a context, which would make the graph the default one while others are built.
        self._session = tf1.Session(graph=self._graph, config=server.device_config(options, task))
        try:
            self._go()
            if self._keeper_prefix:
                self.findings.global_step = int(self._run_keeper([self._keeper.read_step])[0])
                if out:
                    self.findings.checkpoint = self._save_as(os.path.join(out, "model.ckpt"))
        finally:
            self._session.close()
        return self.findings

    def _go(self):
        line_due, total = Throttle(SAYING_SECS, wait_first=True), sum(self._limits.values())
        has_moved = True
        while has_moved:
            has_moved = False
            for ps, events in self._record.orders.items():
                while self._next[ps] < self._limits[ps] and self._apply(ps, events[self._next[ps]]):
                    self._next[ps] += 1
                    has_moved = True
                    if line_due.is_due():
                        log.info("%d of %d events", sum(self._next.values()), total)
        self.findings.end(total - sum(self._next.values()), self._record.skipped)

    def _apply(self, ps, event):
        """Makes an event happen; False if it cannot yet."""
        if isinstance(event, ModelEvent):
            return event.number in self._brought_up or self._bring_up(event.number)
        if isinstance(event, SaveEvent):
            self._save_part(event)
            return True
        step = self._step(event.step)
        built = self._built_for(event.step[:2])
        number = next(n for n, part in enumerate(built.parts) if part.section == event.section)
        if not self._is_ready(step, built.parts[number]):
            return False
        self._run_part(event.step, step, built, number)
        self.findings.note_event(event)
        self._advance(event.step)
        return True

    # A worker's steps.

    def _step(self, name):
        if name not in self._steps:
            self._steps[name] = _Step()
            self._advance(name)
        return self._steps[name]

    def _is_ready(self, step, part):
        return all(name in step.values for name in part.inputs)

    def _advance(self, name):
        """Runs what a step of a worker can do by itself now, and then the worker's next one, if that has begun."""
        step, built = self._steps.get(name), self._built_for(name[:2])
        if step is None:
            return
        for number, part in enumerate(built.parts):
            if part.section is None and number not in step.done and self._is_ready(step, part):
                if self._is_turn(name, number, part):
                    self._run_part(name, step, built, number)
        if self._is_over(name, step, built):
            self.findings.note_step(name, step.values, built.fetches)
            del self._steps[name]
        if name in self._after:
            self._advance(self._after[name])

    def _is_turn(self, name, number, part):
        """Whether the worker's step before has done this part, or never came to it: its input and random numbers are in order."""
        before = self._before.get(name)
        if before is None or not part.needs <= self._recorded[before]:
            return True
        step = self._steps.get(before)
        return before in self.findings.seen if step is None else number in step.done

    def _is_over(self, name, step, built):
        """Whether there is nothing left to do of it."""
        left = [part for number, part in enumerate(built.parts) if number not in step.done]
        return not any(
            self._is_ready(step, part) if part.section is None else part.section in self._recorded[name]
            for part in left
        )

    def _run_part(self, name, step, built, number):
        part, prefix = built.parts[number], self._copy_for(name[:2], built)
        step.done.add(number)
        try:
            feeds = {_fed(tensor): step.values[tensor] for tensor in part.inputs}
            values = self._run(prefix, [*part.outputs, *part.ends], feeds)
        except tf.errors.InvalidArgumentError as error:
            if not is_bad_number(error):
                raise as_model_error(error, built.graph) from error
            self.findings.note_failure(name, error.message)
        except tf.errors.OutOfRangeError:
            pass  # the data is used up, as it was
        except tf.errors.OpError as error:
            raise as_model_error(error, built.graph) from error
        else:
            step.values.update(zip(part.outputs, values, strict=False))
            bad = [n for n in part.pushed if not np.isfinite(np.asarray(step.values[n], np.float64)).all()]
            self.findings.note_pushed(name, bad)

    def _run(self, prefix, names, feeds):
        fetches = [f"{prefix}/{name}" for name in names]
        elements = [self._graph.as_graph_element(name) for name in fetches]
        return self._session.run(elements, {f"{prefix}/{name}": value for name, value in feeds.items()})

    # Graphs.

    def _built_for(self, session):
        key = session[0], self._record.sessions[session]
        if key not in self._built:
            self._built[key], keeper = self._build(*key)
            self._keepers |= {key[1]: keeper} if keeper else {}
        return self._built[key]

    def _build(self, number, start):
        context = make_context(
            self._cluster.training_tasks[number], self._cluster, self._configs[number][start]
        )
        return build(context, self._configs[number][start], self._model, self._record.starts[number][start])

    def _copy_for(self, session, built):
        if session not in self._copies:
            prefix = self._copies[session] = "worker{}-session{}".format(*session)
            self._import(built.graph_def, prefix)
            for name in built.start:
                self._run(prefix, [name], {})
        return self._copies[session]

    def _import(self, definition, prefix):
        own = tf1.GraphDef()
        own.CopyFrom(definition)
        for node in own.node:
            if "container" in node.attr and node.attr["container"].s.startswith(_OWN):
                node.attr["container"].s = f"{prefix}.".encode() + node.attr["container"].s[len(_OWN) :]
        with self._graph.as_default():
            tf1.import_graph_def(own, name=prefix)

    # The model.

    def _bring_up(self, number):
        """Initializes or restores, once every ps has come to that."""
        heads = [
            events[self._next[ps]]
            for ps, events in self._record.orders.items()
            if self._next[ps] < self._limits[ps]
        ]
        if [*heads] != [ModelEvent(number)] * len(self._record.orders):
            return False
        noted = self._record.models[number]
        start = noted["start"]  # initial values are those of its seed
        if start not in self._keepers:
            self._built[0, start], self._keepers[start] = self._build(0, start)
        self._keeper, self._keeper_prefix = self._keepers[start], f"model{number}"
        self._import(self._keeper.graph_def, self._keeper_prefix)
        if noted["checkpoint"] is None:
            self._run_keeper([self._keeper.init])
        else:
            path = self._find_checkpoint(noted)
            saver = self._keeper.saver_def
            self._run_keeper([saver.restore_op_name], {saver.filename_tensor_name: path})
        for name in self._keeper.load:
            self._run_keeper([name])
        self._brought_up.add(number)
        self.findings.note_model(noted["checkpoint"])
        return True

    def _run_keeper(self, names, feeds=()):
        return self._run(self._keeper_prefix, names, dict(feeds))

    def _find_checkpoint(self, noted):
        places = [os.path.join(self._directory, noted["kept"] or ""), *self._places(noted["checkpoint"])]
        for path in places:
            if os.path.exists(path + ".index"):
                return path
        raise UsageError(
            f"The run was restored from {noted['checkpoint']}, which is neither there nor in {self._directory}. Copy it to that "
            "directory."
        )

    def _places(self, path):
        return [path, *([os.path.join(self._train_dir, os.path.basename(path))] if self._train_dir else [])]

    def _save_part(self, event):
        """Reads a ps for a checkpoint of the run, if that is still there to be compared with; the last one compares."""
        written = self._record.saves.get((event.session, event.number), "")
        found = [path for path in self._places(written) if os.path.exists(path + ".index")]
        if not found:
            return
        save = self._saves.setdefault((event.session, event.number), _Step())
        parts = self._keeper.parts
        (number,) = [n for n, part in enumerate(parts) if part.section == event.section]
        save.done.add(number)
        save.values.update(zip(parts[number].outputs, self._run_keeper(parts[number].outputs), strict=True))
        if all(number in save.done for number, part in enumerate(parts) if part.section is not None):
            del self._saves[event.session, event.number]
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model")
                self._write(path, save.values)
                self.findings.note_checkpoint(found[0], *difference(path, found[0]))

    def _write(self, path, values):
        """Writes a checkpoint of what the ps tasks gave for it, by the names of tensors; of the model as it is, if they gave nothing."""
        place, values = {self._keeper.saver_def.filename_tensor_name: path}, dict(values)
        for part in self._keeper.parts:
            if not values.keys() >= set(part.outputs) or not part.outputs:
                feeds = {_fed(name): values[name] for name in part.inputs}
                found = self._run_keeper([*part.outputs, *part.ends], feeds | place)
                values.update(zip(part.outputs, found, strict=False))

    def _save_as(self, prefix):
        path = f"{prefix}-{self.findings.global_step}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._write(path, {})
        tf1.train.update_checkpoint_state(os.path.dirname(path), path)
        return path


def difference(path, other):
    """(name of the variable that differs most between two checkpoints, by how much); ("", 0.0) if all are equal bit for bit."""
    ours, theirs = tf.train.load_checkpoint(path), tf.train.load_checkpoint(other)
    worst = "", 0.0
    for name in sorted(theirs.get_variable_to_shape_map()):
        here, there = ours.get_tensor(name), theirs.get_tensor(name)
        if here.tobytes() == there.tobytes():
            continue
        is_number = there.dtype.kind in "fiu"
        by = np.abs(np.float64(here) - np.float64(there)).max() if is_number else np.inf
        worst = max(worst, (name, float(np.inf if np.isnan(by) else by)), key=lambda pair: pair[1])
    return worst
