"""Workers of an asynchronous job with --record on servers in this process, whose steps a test interleaves, and their replay.

run = Recorded(tmp_path, model_fn, num_ps=2, num_workers=2, max_staleness=3)
run.step(0)                       # a whole step of worker 0
with run.between(1):              # worker 1 has pulled, and pushes at the end of the block
    run.step(0)
findings = run.replay()
"""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
from in_process import DEADLINE_SECS, lend_servers

from ps_train import graph as graph_lib
from ps_train import task_context, worker
from ps_train.bring_up import SessionCreator
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.inputs import build_input_init
from ps_train.model.loading import Model
from ps_train.recorded import read
from ps_train.recorder import Recorder
from ps_train.replay import Replay
from ps_train.session import Saving
from ps_train.startup import make_context
from ps_train.transport_hook import TransportHook
from ps_train.updates.finite import is_bad_number, name_bad_number

BATCH = 4


def input_fn(context):
    """Numbers float32 [BATCH, 3] and rows int64 [BATCH], of the shard; shuffled."""
    numbers = np.random.default_rng(5).normal(size=(40, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((numbers, np.arange(40) % 7))
    data = data.shard(context.num_shards, context.shard_index)
    return data.shuffle(20, seed=context.seed).repeat().batch(BATCH)


class Recorded:
    """The workers' graphs and sessions; `model_fn(features, labels, pulled)` calls `pulled` with what comes of all variables."""

    def __init__(self, folder, model_fn, num_ps=2, num_workers=2, train_dir=None, **settings):
        self.directory = str(folder / "record")
        self.config = TrainConfig(model="m", seed=3, batch_size=BATCH, record=self.directory, **settings)
        assert not self.config.problems()
        self.servers = lend_servers(num_ps, num_workers)
        self._is_held = threading.Event()
        self._may_go = threading.Event()
        self._held: int | None = None
        self.model = Model(
            input_fn, lambda features, labels: model_fn(features, labels, self._pulled), "m", __file__
        )
        self.sessions, self.steps, self.recorders, self.variables = [], [], [], []
        self.starts = []
        self.global_step = 0  # as last seen
        for number, task in enumerate(self.servers.cluster.training_tasks):
            self._add_worker(number, task, train_dir)

    def _pulled(self, tensor):
        """The tensor, once a test lets it go on."""
        number = task_context.current().replica

        def wait(value):
            if self._held == number:
                self._is_held.set()
                assert self._may_go.wait(DEADLINE_SECS)
            return value

        return tf.ensure_shape(
            tf.numpy_function(wait, [tf.stop_gradient(tensor)], tensor.dtype), tensor.shape
        )

    def _add_worker(self, number, task, train_dir):
        context = make_context(task, self.servers.cluster, self.config)
        task_context.set_current(context)
        ops = graph_lib.build_train(context, self.config, self.model)
        fetches = worker.make_fetches(context, ops)
        step = [ops.step, *fetches.values()]
        recorder = Recorder(context, self.config, self.model)
        with ops.graph.as_default():
            runtime = SimpleNamespace(context=context)
            creator = SessionCreator(runtime, [], Saving(train_dir), tf1.train.Scaffold())
            start = [tf1.local_variables_initializer(), build_input_init()]
            TransportHook([step], context, creator, None).begin()
            recorder.lay(step, creator.saver)
            init = creator.cold_ops[0]
            variables = tf1.global_variables()
        session = self._session(task, ops.graph)
        self.starts.append(start)
        self.sessions.append(session)
        self.steps.append([ops.step, fetches])
        self.recorders.append((recorder, creator))
        self.variables.append(variables)
        if number == 0:
            session.run(init)
            self._note_model(None)
        self.begin(number)

    def _session(self, task, graph):
        return tf1.Session(self.servers.target(task), graph=graph)

    def _note_model(self, path):
        recorder, creator = self.recorders[0]
        for op in creator.fused.load if creator.fused else ():
            self.sessions[0].run(op)
        recorder.note_model(self.sessions[0], path)

    def save(self, path):
        """The chief saves."""
        recorder, creator = self.recorders[0]
        recorder.note_saved(
            self.sessions[0], creator.saver.save(self.sessions[0], path, write_meta_graph=False)
        )

    def restore(self, path):
        """All workers lose their sessions, and the chief restores."""
        saver = self.recorders[0][1].saver
        saver.restore(self.sessions[0], path)
        self._note_model(path)
        for number in range(len(self.sessions)):
            self.begin_anew(number)

    def begin_anew(self, number):
        """A worker makes another session."""
        session = self.sessions[number]
        self.sessions[number] = self._session(self.servers.cluster.training_tasks[number], session.graph)
        session.close()
        self.begin(number)

    def begin(self, number):
        """A session of a worker begins."""
        self.sessions[number].run(self.starts[number])
        self.recorders[number][0].begin_session(self.sessions[number])

    def step(self, number, is_noted=True):
        """The figures of a step."""
        try:
            _, values = self.sessions[number].run(self.steps[number])
        except tf.errors.InvalidArgumentError as error:
            assert is_bad_number(error)
            self.recorders[number][0].note_bad(name_bad_number(error), self.global_step)
            raise
        self.global_step = int(values["global_step"])
        if is_noted:  # it may be killed before
            self.recorders[number][0].note(values)
        return values

    @contextlib.contextmanager
    def between(self, number):
        """Within it, a worker has pulled and has not pushed; gives a list, to which its figures are added."""
        found = []
        self._held = number
        thread = threading.Thread(target=lambda: found.append(self.step(number)), daemon=True)
        thread.start()
        try:
            assert self._is_held.wait(DEADLINE_SECS)
            self._held = None
            yield found
        finally:
            self._may_go.set()
            thread.join(DEADLINE_SECS)
            self._is_held.clear()
            self._may_go.clear()
        assert found, "it did not end"

    def run_freely(self, count):
        """All workers make so many steps at once."""
        failures = []

        def work(number):
            try:
                for _ in range(count):
                    self.step(number)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(self.sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECS)
        assert not failures and not any(thread.is_alive() for thread in threads), [
            str(one)[:900] for one in failures
        ]

    def values(self):
        """Name -> value of the model on the ps tasks."""
        names = [variable.op.name for variable in self.variables[0]]
        return dict(zip(names, self.sessions[0].run(self.variables[0]), strict=True))

    def replay(self, until=None, out=None, **changes):
        """The Findings of the record as it is now."""
        record = read(self.directory)
        configs = {number: [self.config] * len(starts) for number, starts in record.starts.items()}
        engine = Replay(record, self.directory, configs, self.servers.cluster, self.model, until, **changes)
        return engine.run(out)


def checkpoint(path):
    """Name -> value."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
