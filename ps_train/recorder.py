"""A worker's part of `--record`: its graph's sections get locks, and its file the figures of each step. See `recorded`.

    fetches |= {"recorded": number_steps(context)}      # once the graph is built, in a replay, too
    runtime.recorder = Recorder(context, config, model)
    session.make(...)                                   # begin_session, note_model, note_saved are called from there
    recorder.note(values)                               # of each step that was done
    recorder.note_bad("Inf in the loss", 82)            # of one that was not, after global step 82

What a step is called in the files of the ps tasks is its worker, the worker's session and a number that the worker raises with
each run of its graph: so a run that fails, as for NaN, has a number, too, and it is known which batch it used up.
"""

import contextlib
import copy
import hashlib
import os
import shutil
from typing import Any

from ps_train import __version__
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError, UsageError
from ps_train.explain import cause
from ps_train.recorded import FORMAT, Journal, order_path, why_unwritten
from ps_train.sections import MUTEX, cut, serialize, write_line
from ps_train.transport import ancestors
from ps_train.updates.stale import GATES

NUMBERS = "ps_train/recorded_numbers"


def number_steps(context):
    """int64 scalar on the worker: the number of the step in its session, from 1; a Recorder finds it in the default graph."""
    with tf1.control_dependencies(None), tf1.device(f"{context.worker_device}/device:CPU:0"):
        counted = tf.identity(_local("number").assign_add(1))
        done = tf.identity(counted)
        tf1.add_to_collection(NUMBERS, (_local("session"), _local("saves"), counted, done))
    return done


def _local(name):
    with tf1.name_scope("ps_train/record/"):
        return tf1.Variable(
            lambda: tf.constant(0, tf.int64), trainable=False, use_resource=True, name=name,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )  # fmt: skip


class Recorder:
    """Writes a worker's file, and has its graph write those of the ps tasks.

    Args:
      context: TaskContext.
      config: TrainConfig, with the seed that is used.
      model: Model.

    Raises:
      UsageError: the directory cannot be written.
    """

    def __init__(self, context, config, model):
        self._context, self._directory = context, config.record
        self._journal = Journal(config.record, context.replica)
        self._start = {
            "format": FORMAT,
            "ps_train": __version__,
            "tensorflow": tf.__version__,
            "flags": config.as_flags(),
            "seed": config.seed,
            "source": model.source,
            "sha256": hash_file(model.source),
            "cluster": context.cluster.as_record(),
            "ps": [ps.index for ps in context.cluster.ps_tasks],
            "num_workers": context.cluster.num_workers,
        }
        # Of the graph, once it is laid.
        self._session: Any = None
        self._num_saves = self._mark = self._text = None
        self._number = 0  # of the last step of the session that is noted
        self._bare_saving: Any = None  # (GraphDef, SaverDef), without locks

    def lay(self, step, saver):
        """Changes the default graph, the last thing that happens to it.

        Args:
          step: ops and tensors that a step fetches, that of `number_steps` among them.
          saver: the chief's `tf1.train.Saver`, or None.
        """
        graph = tf1.get_default_graph()
        self._session, saves, counted, done = graph.get_collection(NUMBERS)[-1]
        if saver is not None:
            save = graph.as_graph_element(saver.saver_def.save_tensor_name)
            bare = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), [save.op.name])
            self._bare_saving = bare, copy.deepcopy(saver.saver_def)
            save = _clone(save, bare)
            saver.saver_def.save_tensor_name = save.name
        parts = cut(step)
        found = {"sections": parts.describe(), "digest": parts.digest, "seeds": parts.seeds}
        self._journal.write({**self._start, **found})
        with self._on_worker():
            names = [str(self._context.replica), *map(tf.strings.as_string, (self._session, counted))]
            label = tf.strings.join(names, " ")
        gates = [gate.gate for gate in graph.get_collection(GATES)]
        done.op._add_control_inputs(serialize(parts, label, self._path_of, gates))
        if saver is not None:
            self._lay_saves(save, saves)
        if self._context.is_chief:
            self._lay_marks()

    def _on_worker(self):
        return tf1.device(f"{self._context.worker_device}/device:CPU:0")

    def _path_of(self, ps):
        return order_path(self._directory, ps)

    def _lay_saves(self, save, saves):
        with self._on_worker():
            self._num_saves = saves.read_value()
            names = ["save", *map(tf.strings.as_string, (self._session, saves.assign_add(1)))]
            label = tf.strings.join(names, " ")
        unlocks = serialize(cut([save]), label, self._path_of)
        for op in ancestors([save]):
            if op.type == "SaveV2":
                op._add_control_inputs(unlocks)

    def _lay_marks(self):
        unlocks = []
        with self._on_worker():
            self._text = tf1.placeholder(tf.string, [])
        for ps in self._context.cluster.ps_tasks:
            device = f"/job:ps/task:{ps.index}"
            with tf1.device(f"{device}/device:CPU:0"):
                lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=MUTEX))
                with tf1.control_dependencies([lock]):
                    written = write_line(self._text, self._path_of, device)
                with tf1.control_dependencies([written]):
                    unlocks.append(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
        self._mark = tf.group(*unlocks)

    def begin_session(self, session):
        """A session begins, with its input."""
        number = self._journal.sessions
        self._journal.sessions += 1
        self._journal.write({"session": number})
        self._number = 0
        session.run(self._session.initializer, {self._session.initializer.inputs[1]: number})

    def note_model(self, session, checkpoint):
        """The chief has restored a checkpoint, or (None) initialized; nobody trains yet. The checkpoint is kept for a replay."""
        number = self._journal.models
        self._journal.models += 1
        kept = keep(checkpoint, self._directory) if checkpoint else None
        self._journal.write({"model": number, "checkpoint": checkpoint, "kept": kept})
        session.run(self._mark, {self._text: f"model {number}"})

    def note_saved(self, session, path):
        """The chief has written a checkpoint."""
        number = int(session.run(self._num_saves))
        with contextlib.suppress(ModelError):  # it is written all the same, and the next step says so
            self._journal.write({"save": number, "path": os.path.abspath(path)})

    def save_bare(self, make_session, error, prefix, step):
        """Writes a checkpoint as if nothing were recorded, if what has kept it from being written is the record; whether it has.

        Args:
          make_session: makes a session of a graph on the cluster.
          error: of the save.
          prefix, step: of the checkpoint's name.
        """
        if not is_unwritten(error):
            return False
        graph_def, saver_def = self._bare_saving
        with tf1.Graph().as_default() as graph:
            tf1.import_graph_def(graph_def, name="")
            saver = tf1.train.Saver(saver_def=saver_def)
            with make_session(graph) as session:
                saver.save(session, prefix, global_step=step, write_meta_graph=False)
        return True

    def note(self, values):
        """A step is done; `values` is what it fetched."""
        granted = values.get("granted")
        figures = float(values["loss"]), int(values["examples"]), int(values["global_step"])
        self._number = int(values["recorded"])
        self._journal.write([self._number, *figures, None if granted is None else int(granted)])

    def note_bad(self, what, global_step):
        """A step failed its check for NaN and Inf, and gave no figures: `what` was bad, and `global_step` is the last that is known."""
        self._number += 1  # as each run of the graph does
        self._journal.write({"bad": self._number, "what": what, "global_step": int(global_step)})


def _clone(save, graph_def):
    """The same saving by ops of its own: a Saver reads variables by those that `session.run(variable)` runs, too.

    Args:
      save: tensor.
      graph_def: of what leads to it.
    """
    kept = {
        tensor.name: tensor
        for op in ancestors([save])
        for tensor in op.outputs
        if op.type.startswith("Placeholder") or tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype
    }
    with tf1.control_dependencies(None), tf1.device(None):
        (cloned,) = tf1.import_graph_def(
            graph_def, input_map=kept, return_elements=[save.name], name="ps_train/record/save"
        )
    return cloned


class RecordHook(tf1.train.SessionRunHook):
    """Lays the locks in its `begin`, which has to be the last.

    Args:
      recorder: Recorder.
      step: see `Recorder.lay`.
      creator: SessionCreator, whose saver is the chief's.
    """

    def __init__(self, recorder, step, creator):
        self._recorder, self._step, self._creator = recorder, step, creator

    def begin(self):
        """Changes the default graph."""
        self._recorder.lay(self._step, self._creator.saver)


def is_unwritten(error):
    """Whether an error of a session is that a ps could not write its line."""
    op = getattr(error, "op", None)
    return op is not None and op.type == "PrintV2" and op.get_attr("output_stream").endswith(b".order")


def explain_unwritten(error):
    """The same as a ModelError."""
    return ModelError(why_unwritten(cause(error)))


def hash_file(path):
    """SHA-256 of a file, or None."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def keep(checkpoint, directory):
    """Keeps a checkpoint's files in a directory, as links if it can: its base name there."""
    folder, base = os.path.split(checkpoint)
    try:
        for name in os.listdir(folder):
            target = os.path.join(directory, name)
            if name.startswith((f"{base}.data-", f"{base}.index")) and not os.path.exists(target):
                try:
                    os.link(os.path.join(folder, name), target)
                except OSError:
                    shutil.copyfile(os.path.join(folder, name), target)
    except OSError as error:
        raise UsageError(
            f"--record={directory} cannot be written: {error.strerror}. Choose another directory."
        ) from None
    return base
