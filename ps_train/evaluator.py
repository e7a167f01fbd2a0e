"""Evaluation on held-out data, from checkpoints alone: once, or following a training job.

    status = run_once(config)                  # `python -m ps_train eval`: the newest checkpoint, or all that there are
    follow(config, report)                     # the evaluator job: every checkpoint that it can catch, to the last

The evaluator is never part of the cluster: nobody waits for it, and it needs nothing but `train_dir`. It ends after the
checkpoint that has reached `train_steps`, or that the chief has marked as the last (data used up). A checkpoint that
vanishes while it is read (the chief keeps `keep_checkpoint_max`) is passed over. A checkpoint that never comes is waited
for as long as two save periods and `startup_timeout_secs`.
"""

import contextlib
import os
import time
from functools import partial

import numpy as np

from ps_train import checkpoints, graph, logs, restoring
from ps_train.cluster import EVALUATOR
from ps_train.compat import tf, tf1
from ps_train.config import BUILTIN_MODEL
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, EXIT_SIGINT, ModelError, PsTrainError, UsageError
from ps_train.evaluation_watch import write_result
from ps_train.event_files import open_run
from ps_train.explain import as_model_error
from ps_train.guard import Guard
from ps_train.inputs import build_input_init
from ps_train.liveness import SILENCE_SECS, wait_until
from ps_train.logs import Throttle, log
from ps_train.model import load_model
from ps_train.reports import Report

POLL_SECS = 0.5


class Vanished(PsTrainError):
    """The checkpoint was deleted while it was being read."""


def run_once(config, show=print):
    """Evaluates the newest checkpoint of `config.train_dir`, or all; shows a line of metrics of each; the exit status.

    The report is written whatever the outcome.

    Raises:
      UsageError: no train_dir, or no checkpoint in it.
      ModelError: the model is wrong or does not fit the checkpoint.
    """
    logs.start("eval")
    report = Report(EVALUATOR)
    with _reported(report, config.report_file):
        if not config.train_dir:
            raise UsageError("--train_dir is not given. Expected the directory that a training job saved to.")
        newest = checkpoints.latest_checkpoint(config.train_dir)
        if newest is None:
            raise UsageError(
                f"--train_dir={config.train_dir} holds no checkpoint. Train first, or check the directory."
            )
        evaluation = Evaluation(config)
        is_all = config.eval_checkpoints == "all"
        for checkpoint in checkpoints.checkpoints_up_to_newest(config.train_dir) if is_all else [newest]:
            _evaluate_and_tell(evaluation, checkpoint, report, show)
    return EXIT_DONE


@contextlib.contextmanager
def _reported(report, path):
    """Writes the report at the end of the block, whatever is raised there."""
    status, reason = EXIT_DONE, None
    try:
        yield
    except PsTrainError as error:
        status, reason = error.exit_status, str(error)
        raise
    except KeyboardInterrupt:
        status, reason = EXIT_SIGINT, "stopped by SIGINT"
        raise
    except BaseException as error:
        status, reason = EXIT_PERMANENT, f"internal error: {error!r}"
        raise
    finally:
        report.write(path, status, reason)


def _evaluate_and_tell(evaluation, checkpoint, report, show):
    """Evaluates a checkpoint; its metrics go to `show`, the report, the chief and the event files."""
    step, metrics, examples = evaluation.run(checkpoint)
    line = describe(step, metrics, examples)
    show(line)
    report.checkpoint, report.global_step, report.metrics = checkpoint, step, metrics
    report.evaluations = [
        *(report.evaluations or []),
        {"global_step": step, "examples": examples, "metrics": metrics},
    ]
    report.local_steps += 1
    report.examples += examples
    write_result(os.path.dirname(checkpoint), line)
    evaluation.write_summary(step, metrics)


def follow(config, report):
    """Evaluates checkpoints as they come, the last one included.

    Args:
      config: TrainConfig.
      report: Report; gets the newest metrics.

    Raises:
      PeerLostError: no new checkpoint for too long.
    """
    if not config.train_dir:
        raise UsageError("--train_dir is not given. The evaluator follows the checkpoints there.")
    guard = Guard(lambda: None, lambda status, reason: report.write(config.report_file, status, reason))
    guard.start()
    try:
        evaluation = Evaluation(config)
        seen = None
        while True:
            seen = wait_until(
                lambda seen=seen: _newer(config.train_dir, seen),
                lambda: f"a new checkpoint in {config.train_dir}",
                config.startup_timeout_secs + 2 * (config.checkpoint_secs or 600),
                guard,
            )
            if _evaluate_one(evaluation, seen, report) and checkpoints.is_last(seen, config.train_steps):
                report.reason = f"evaluated the last checkpoint, at step {report.global_step}"
                return
    finally:
        guard.finish()


def _newer(train_dir, seen):
    """The newest checkpoint if it was not seen, or the seen one once it turns out to be the last; else None."""
    newest = checkpoints.latest_checkpoint(train_dir)
    return newest if newest != seen or checkpoints.is_marked_last(newest) else None


def _evaluate_one(evaluation, checkpoint, report):
    if report.checkpoint == checkpoint:
        return True
    try:
        _evaluate_and_tell(evaluation, checkpoint, report, partial(log.info, "%s"))
    except Vanished as vanished:
        log.info("%s", vanished)
        return False
    return True


def describe(step, metrics, examples):
    """A line of metrics: `step 400: accuracy 0.9733, loss 0.1021 (300 examples)`."""
    shown = ", ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()))
    return f"step {step}: {shown} ({examples} examples)"


class Evaluation:
    """The evaluation graph of a model, built once; each `run` restores a checkpoint into a fresh session."""

    def __init__(self, config):
        self._config = config
        self._ops = graph.build_eval(config, load_model(config.model or BUILTIN_MODEL))
        with self._ops.graph.as_default():
            restoring.tell_tables_apart()
            self._saver = tf1.train.Saver(allow_empty=True)
            self._init = tf.group(tf1.local_variables_initializer(), tf1.tables_initializer())
            self._input_init = build_input_init()
            self._ops.graph.finalize()
        self._events = None
        self._left_out: set[str] = set()  # metrics that have been warned of

    def run(self, checkpoint):
        """Evaluates one checkpoint; (global step, metric name -> float, number of examples).

        A metric that is no single number is left out, with a warning.

        Raises:
          ModelError: the checkpoint does not fit the model; the data is endless and no --eval_steps given; the graph fails.
          Vanished: the checkpoint was deleted meanwhile.
        """
        with tf1.Session(graph=self._ops.graph) as session:
            self._restore(session, checkpoint)
            try:
                session.run(self._init)
                session.run(self._input_init)
                self._check_is_finite(session)
                examples = self._run_batches(session)
                values = session.run(self._ops.values)
                step = int(session.run(self._ops.global_step))
            except tf.errors.OpError as error:
                raise as_model_error(error, self._ops.graph) from error
        return step, self._only_numbers(values), examples

    def _only_numbers(self, values):
        numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
        for name in sorted(values.keys() - numbers.keys() - self._left_out):
            self._left_out.add(name)
            log.warning("the metric %s is left out: it is %s, not a number", name, _kind(values[name]))
        return numbers

    def _restore(self, session, checkpoint):
        try:
            restoring.restore(session, self._saver, checkpoint)
        except (ModelError, tf.errors.OpError):
            if os.path.exists(checkpoint + ".index"):
                raise
            raise Vanished(f"{checkpoint} has vanished: going on to the next") from None

    def _check_is_finite(self, session):
        if (
            self._config.eval_steps is None
            and session.run(self._ops.cardinality) == tf.data.INFINITE_CARDINALITY
        ):
            raise ModelError(
                "input_fn gives endless data in mode 'eval', so an evaluation would never end. Give --eval_steps, or "
                "repeat() only when context.mode is 'train'."
            )

    def _run_batches(self, session):
        examples, batches = 0, 0
        line_due = Throttle(SILENCE_SECS, wait_first=True)
        start = time.monotonic()
        while self._config.eval_steps is None or batches < self._config.eval_steps:
            try:
                _, count = session.run([self._ops.updates, self._ops.examples])
            except tf.errors.OutOfRangeError:
                break
            batches, examples = batches + 1, examples + int(count)
            if line_due.is_due():
                log.info("evaluating: %d batches in %.0f s so far", batches, time.monotonic() - start)
        if batches == 0:
            raise ModelError("input_fn gives no batch in mode 'eval': there is nothing to evaluate on.")
        return examples

    def write_summary(self, step, metrics):
        """Adds the metrics to the event files in `train_dir`/eval."""
        if self._events is None:
            self._events = open_run(os.path.join(self._config.train_dir, "eval"), first_step=step)
        self._events.add(step, metrics)
        self._events.flush()


def _is_number(value):
    return np.size(value) == 1 and np.asarray(value).dtype.kind in "biuf"


def _kind(value):
    array = np.asarray(value)
    return f"of shape {list(array.shape)}" if array.shape else f"of type {array.dtype}"
