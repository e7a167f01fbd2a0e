"""What the chief writes for TensorBoard: the user's summaries, the job's curves, and those of each worker.

    hook = SummaryHook(runtime, step_hook, saving)       # among the session's hooks, after what waits for the other workers
    hook.is_due(step)                                    # the next step is to be run with hooks

Each directory is a run of TensorBoard: `train_dir` has the chief's figures and the user's summaries, `train_dir/worker_1` what that
worker's record on the boards says (`figures`). Only the chief writes: `train_dir` may be on its host alone, where no other worker
gets to, all of it is then at one place, and a restart voids the same steps in all of them. Workers that wrote for themselves would
have each step's value, and the directories to be collected afterwards; their records come twice a second anyway.

1. When a period is over, the next step of the chief fetches the user's summaries and the learning rate along with everything else:
   the same batch, the same update, one `session.run`. Summaries of other workers' graphs are never run.
2. In sync the rate is that of the chief's update, which is another run: the next one that begins fetches it, and its step.
3. A thread makes events of that and of the boards, twice a second, and flushes them. A directory that cannot be written costs
   events and no training: the thread says so, and tries again after RETRY_SECS.
4. When a session is made, what the directories hold of later steps than the model's is void (`event_files`). At the end, once the
   other workers are done, each gets its last point, so that the curves have all that the reports have.
"""

import contextlib
import functools
import os
import queue
import threading
import time
from typing import Any

from ps_train.compat import tf1
from ps_train.event_files import EventRun, open_run
from ps_train.figures import RATE, Figures, as_directory
from ps_train.logs import log
from ps_train.updates.rate import rates

LOOK_SECS = 0.5
RETRY_SECS = 10.0
JOIN_SECS = 10.0
TRACED = ("parts", "traffic")  # of a task's record


class Period:
    """So many steps, or seconds, whatever is over first; None: not by this measure.

    >>> period = Period(100, None)
    >>> period.is_due(7), period.mark(7), period.is_due(106), period.is_due(107)
    (True, None, False, True)
    """

    def __init__(self, steps, secs, clock=time.monotonic):
        self._steps, self._secs, self._clock = steps, secs, clock
        self._step = self._at = None

    def is_due(self, step):
        """Whether it is over at this step; it is at first, and once the model has gone back."""
        if self._step is None or step < self._step:
            return bool(self._steps or self._secs)
        if self._steps and step - self._step >= self._steps:
            return True
        return bool(self._secs) and self._clock() - self._at >= self._secs

    def mark(self, step):
        """It begins at this step."""
        self._step, self._at = step, self._clock()


class SummaryHook(tf1.train.SessionRunHook):
    """Made by the chief in the graph that is trained, before that is finalized.

    Args:
      runtime: session.TaskRuntime.
      step_hook: StepHook, which sees each step before this hook does.
      saving: session.Saving, with a summary_dir.
    """

    def __init__(self, runtime, step_hook, saving):
        self._monitor, self._step_hook, self._directory = runtime.monitor, step_hook, saving.summary_dir
        self._periods = {
            "summaries": Period(saving.summary_steps, saving.summary_secs),
            "figures": Period(saving.figure_steps, saving.figure_secs),
        }
        self._merged = tf1.summary.merge_all()
        self._fetched_rates: dict[str, Any] = {}
        self._constant_rates: dict[str, Any] = {}
        self._known_rates: dict[str, float] = {}
        self._update_loops: list[Any] = []
        self._due: list[str] = []
        own = runtime.context.task
        others = [str(task) for task in runtime.context.cluster.training_tasks if task != own]
        make_period = functools.partial(Period, saving.figure_steps, saving.figure_secs)
        self._scribe = Scribe(self._directory, runtime.monitor, others, make_period)

    def begin(self):
        """Opens the chief's file, which holds the graph, too."""
        graph = tf1.get_default_graph()
        found = rates(graph)
        for rate in found:
            tag = RATE if len(found) == 1 else f"{RATE}/{rate.name}"
            if rate.is_constant:
                self._constant_rates[tag] = rate.tensor
            elif rate.rule is None:
                self._fetched_rates[tag] = rate.tensor
            elif rate.rule.update_loop is not None:
                self._watch(rate, tag)
        # The writer that hooks of TensorFlow's have for this directory: two files at a time would not both be shown.
        self._scribe.open(tf1.summary.FileWriterCache.get(self._directory))

    def _watch(self, rate, tag):
        loop, global_step = rate.rule.update_loop, tf1.train.get_global_step()
        with tf1.control_dependencies([rate.rule.update_op]), tf1.device(global_step.device):
            step = global_step.read_value()
        loop.watch(
            (step, rate.tensor), lambda values: self._scribe.put(int(values[0]), {tag: float(values[1])})
        )
        self._update_loops.append(loop)

    def after_create_session(self, session, coord):
        """Nothing that is of later steps than the model's stays."""
        if self._constant_rates and not self._known_rates:
            values = session.run(self._constant_rates)
            self._known_rates = {tag: float(value) for tag, value in values.items()}
        self._scribe.start(self._step_hook.figures())

    def is_due(self, step):
        """Whether the step after this one is to be seen by this hook."""
        return any(period.is_due(step + 1) for period in self._periods.values())

    def before_run(self, run_context):
        """Fetches what is due."""
        self._due = [
            name for name, period in self._periods.items() if period.is_due(self._step_hook.step + 1)
        ]
        wanted: dict[str, Any] = {}
        if "summaries" in self._due and self._merged is not None:
            wanted["summaries"] = self._merged
        if "figures" in self._due:
            wanted["rates"] = self._fetched_rates
        return tf1.train.SessionRunArgs(wanted) if wanted else None

    def after_run(self, run_context, run_values):
        """Hands it to the thread."""
        if not self._due:
            return
        step, results = self._step_hook.step, run_values.results or {}
        for name in self._due:
            self._periods[name].mark(step)
        values, record = {}, None
        if "figures" in self._due:
            values = {**self._known_rates, **{t: float(v) for t, v in results.get("rates", {}).items()}}
            record = self._own_record()
        self._scribe.put(step, values, results.get("summaries"), record)
        if "figures" in self._due:
            for loop in self._update_loops:
                loop.ask()  # after that, as what it gives is of a later step

    def _own_record(self):
        traced = {name: self._monitor.get(name) for name in TRACED}
        return {**self._step_hook.figures(), **{name: value for name, value in traced.items() if value}}

    def end(self, session):
        """Writes what is left."""
        self._scribe.finish(self._own_record())


class Scribe:
    """Makes events of what it is given and of the boards, in a thread of its own.

    Args:
      directory: of the chief's run; the others' are in it.
      monitor: liveness.Monitor.
      others: names of the other workers.
      make_period: makes the Period of a worker's points.
    """

    def __init__(self, directory, monitor, others, make_period):
        self._directory, self._monitor, self._others = directory, monitor, others
        self._make_period = make_period
        self._given: queue.SimpleQueue = queue.SimpleQueue()
        self._writer: Any = None
        self._own: Any = None  # EventRun
        self._figures: Any = None
        self._workers: dict[str, Any] = {}  # name -> (EventRun, Figures, Period)
        self._before: dict[str, Any] = {}  # records of workers that have trained before this task came
        self._seen: dict[str, Any] = {}  # name -> its newest record
        self._first_step = 1
        self._retry_at: float | None = None
        self._thread: Any = None
        self._stopping = threading.Event()

    def open(self, writer):
        """The chief's own writer; before the model is there, and so before anybody trains what this task brings up."""
        self._writer = writer
        view = self._monitor.view()
        self._before = {name: dict(view.record(name)) for name in self._others}

    def start(self, record):
        """A session has begun, with this record of the chief's."""
        self._given.put(functools.partial(self._begin, record))
        if self._thread is None:
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), daemon=True, name="ps_train-summaries"
            )
            self._thread.start()

    def put(self, step, values, summaries=None, record=None):
        """Something of a step, from any thread: numbers by tag, the user's summaries, the chief's record."""
        self._given.put(functools.partial(self._add, step, values, summaries, record))

    def finish(self, record):
        """The last points, for which a disk that hangs has JOIN_SECS; nothing is written after that, unless `start` is called again."""
        self.put(record["step"], {}, None, record)
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(JOIN_SECS)
        if thread.is_alive():
            log.warning(
                "event files in %s: the last of them are not written, the disk is busy", self._directory
            )

    def _run(self, stopping):
        while not stopping.wait(LOOK_SECS):
            self._write()
        self._write(is_last=True)

    def _write(self, is_last=False):
        if self._retry_at is not None and time.monotonic() < self._retry_at:
            return
        try:
            if self._retry_at is not None:
                self._reopen()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._given.get_nowait()()
            self._look_at_workers(is_last)
            for run in self._runs():
                run.flush()
        except Exception as error:  # thread boundary: the training goes on
            self._retry_at = time.monotonic() + RETRY_SECS
            log.error(
                "event files in %s are not written: %s; training goes on, next try in %.0f s",
                self._directory, error, RETRY_SECS,
            )  # fmt: skip

    def _reopen(self):
        for run in self._runs():
            run.reopen()
        self._retry_at = None

    def _runs(self):
        return [run for run in (self._own, *(run for run, _, _ in self._workers.values())) if run is not None]

    def _begin(self, record):
        self._first_step = (record["step"] or 0) + 1
        if self._own is None:
            self._own = EventRun(self._writer, self._first_step)
            self._figures = Figures(record, is_global=True)
        else:
            for run in self._runs():
                run.restart(self._first_step)
            self._figures.rewind(record["step"])

    def _add(self, step, values, summaries, record):
        found = {**(self._figures.note(record) if record else {}), **values}
        if found or summaries:
            self._own.add(step, found, summaries)

    def _look_at_workers(self, is_last):
        view = self._monitor.view()
        for name in self._others:
            record, before = view.record(name), self._seen.get(name, {})
            if record.get("run") != before.get("run"):
                self._show(name, before)  # of an earlier process, whose last steps are in no later record
            self._seen[name] = record
            self._show(name, record, is_due=is_last or None)

    def _show(self, name, record, is_due=True):
        """Adds a worker's point, if there is anything new; `is_due` None: if its period is over."""
        if not record.get("local_steps"):
            return
        if name not in self._workers:
            run = open_run(os.path.join(self._directory, as_directory(name)), self._first_step)
            self._workers[name] = run, Figures(self._before.get(name, {})), self._make_period()
        run, figures, period = self._workers[name]
        step = record["step"]
        if is_due or period.is_due(step):
            values = figures.note(record)
            if values:
                run.add(step, values)
                period.mark(step)
