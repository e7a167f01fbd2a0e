"""The chief's checkpoints: when they are due, what is in them, and the graph beside them."""

import contextlib
import os
import threading
import time

from ps_train.checkpoints import all_checkpoints, checkpoint_step, latest_checkpoint, remove_interrupted
from ps_train.compat import tf, tf1
from ps_train.errors import UsageError
from ps_train.explain import cause
from ps_train.logs import log
from ps_train.lost import LOST

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RETRY_SECS = 10.0
END_RETRY_SECS = 2.0
TORN_SECS = 1.0
# Directory -> descriptor that holds the lock; a process may have several sessions.
_claims: dict[str, int] = {}
SAVE_OPS = ("SaveV2", "MergeV2Checkpoints")
SAVE_ERRORS = (tf.errors.OpError, OSError, ValueError)  # ValueError: Saver's, if the directory is gone


class CheckpointHook(tf1.train.SessionRunHook):
    """The chief's saver: every so many steps or seconds, and the last step at the end.

    The checkpoint is written by the chief's process alone, whatever the number of ps tasks: their disks need not be
    shared. `.meta` beside it has no device in it, so that it can be imported on one machine.

    Args:
      saver: `tf1.train.Saver`.
      train_dir: existing directory.
      global_step: variable.
      report: gets the newest checkpoint's path.
      save_steps, save_secs: periods; either may be None.
      granting: makes a context for each save that gives it the time that it needs.
      optimizers: synchronous ones, whose updates wait while a checkpoint is being written.
      end_secs: how long to try for the last checkpoint while the directory cannot be written; called at the end.
      on_saved: called with the session and the path of each one, or None.
      save_otherwise: called with the error of a save, prefix and step; whether it has saved in another way. Or None.

    While the directory cannot be written (disk full, gone, read-only) training goes on: the model lives on the ps tasks.
    """

    def __init__(
        self,
        saver,
        train_dir,
        global_step,
        report,
        save_steps=None,
        save_secs=None,
        optimizers=(),
        granting=contextlib.nullcontext,
        end_secs=lambda: 0.0,
        on_saved=None,
        save_otherwise=None,
        clock=time.monotonic,
    ):
        self._saver, self._prefix = saver, os.path.join(train_dir, "model.ckpt")
        self._train_dir = train_dir
        self._known: set[str] = set()  # checkpoints that were there before, or are this job's
        self._is_warned = False
        self._saving = threading.Lock()
        self._retry_at = None
        self._global_step, self._report = global_step, report
        self._save_steps, self._save_secs, self._clock = save_steps, save_secs, clock
        self._optimizers, self._granting, self._end_secs = optimizers, granting, end_secs
        self._on_saved, self._save_otherwise = on_saved, save_otherwise
        self._saved_step = self._saved_at = None
        self._has_ended = False

    def begin(self):
        """Adds a reader of the global step."""
        self._read_step = self._global_step.read_value()
        self._args = tf1.train.SessionRunArgs(self._read_step)
        self._meta = export_meta(self._saver)

    def after_create_session(self, session, coord):
        """Saves at once when there is no checkpoint yet, so that a restart has something to go back to."""
        step = int(session.run(self._read_step))
        self._has_ended = False
        self._claim_directory()
        self._known.update(all_checkpoints(self._train_dir))
        self._saved_at = self._clock()
        if self._report.checkpoint is not None:
            self._saved_step = checkpoint_step(self._report.checkpoint)
        elif self._report.restored_from is not None:
            self._save_or_go_on(session, step)  # a living model has more to lose than its next checkpoint
        else:
            self._save_or_fail(session, step, 0.0)

    def before_run(self, run_context):
        """Fetches the global step."""
        return self._args

    def after_run(self, run_context, run_values):
        """Saves if a period is over."""
        if self.is_due(int(run_values.results)):
            self.save_if_due(run_context.session)

    def save_if_due(self, session):
        """Reads the step anew and saves if a period is over."""
        step = int(session.run(self._read_step))
        if self.is_due(step):
            self._save_or_go_on(session, step)

    def _save_or_go_on(self, session, step):
        try:
            self.save(session, step)
            self._retry_at = None
        except SAVE_ERRORS as error:
            reason = self._why_unwritable(error)
            self._retry_at = self._clock() + RETRY_SECS
            log.error(
                "step %d is not saved: %s; training goes on, next try in %.0f s", step, reason, RETRY_SECS
            )

    def _save_or_fail(self, session, step, patience_secs):
        """Saves, trying again for a while; a UsageError tells what kept it from being saved."""
        deadline = self._clock() + patience_secs
        while True:
            try:
                self.save(session, step)
                return
            except SAVE_ERRORS as error:
                reason = self._why_unwritable(error)
                if self._clock() >= deadline:
                    raise UsageError(
                        f"Step {step} cannot be saved: {reason}. Check the directory's disk and rights. The newest "
                        f"checkpoint is {self._report.checkpoint}."
                    ) from None
            log.error("step %d is not saved: %s; trying again", step, reason)
            time.sleep(END_RETRY_SECS)

    def _why_unwritable(self, error):
        """What is wrong with the directory, in words; raises `error` again if it is about something else."""
        is_of_save = isinstance(error, OSError | ValueError) or (
            error.op.type in SAVE_OPS if error.op is not None else self._train_dir in error.message
        )
        if not is_of_save or isinstance(error, LOST):
            raise error
        return cause(error) if isinstance(error, tf.errors.OpError) else str(error)

    def rescue(self, make_session, is_whole):
        """Saves from another thread, in a session of its own, while the main thread is stuck in a step.

        Args:
          make_session: makes the session.
          is_whole: whether the model is on the ps tasks, and not on its way there.

        Raises:
          RuntimeError: it is not, or its last update was cut off halfway.
        """
        if self._saved_at is None or not is_whole():
            raise RuntimeError("it is just being brought up")
        with make_session() as session:
            deadline = time.monotonic() + TORN_SECS
            # Torn, or an update is going on.
            while any(optimizer.is_torn(session) for optimizer in self._optimizers):
                if time.monotonic() > deadline:
                    raise RuntimeError("its last update was cut off halfway")
                time.sleep(0.05)
            step = int(session.run(self._read_step))
            if step != self._saved_step:
                self.save(session, step)
                log.info("saved %s", self._report.checkpoint)

    def save(self, session, step):
        """Writes `model.ckpt-<step>`."""
        with self._saving, self._granting():
            self._save(session, step)

    def _save(self, session, step):
        self._look_for_another_job()
        with contextlib.ExitStack() as held:
            for optimizer in self._optimizers:
                held.enter_context(optimizer.paused(session))
                step = int(session.run(self._read_step))
            is_usual = self._write(session, step)
        path = f"{self._prefix}-{step}"
        if not os.path.exists(path + ".meta"):
            self._write_meta(path + ".meta")
        self._saved_step, self._saved_at = step, self._clock()
        self._report.checkpoint = path
        self._known.add(path)
        if self._on_saved is not None and is_usual:
            self._on_saved(session, path)

    def _write(self, session, step):
        """Whether it has gone the usual way."""
        try:
            self._saver.save(session, self._prefix, global_step=step, write_meta_graph=False)
            return True
        except tf.errors.OpError as error:
            if self._save_otherwise is None or not self._save_otherwise(error, self._prefix, step):
                raise
            return False

    def _claim_directory(self):
        """Locks the directory until the end, and tidies it; warns if another process of this host has locked it."""
        path = os.path.realpath(self._train_dir)
        if path in _claims or fcntl is None:
            return
        try:
            _claims[path] = os.open(path, os.O_RDONLY)
            fcntl.flock(_claims[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove_interrupted(path):
                log.info("removed what a save that was cut off had left in %s", self._train_dir)
        except BlockingIOError:
            log.warning(
                "another job is saving in %s, too: each overwrites the other's checkpoints. Give each job a train_dir of its own",
                self._train_dir,
            )
        except OSError as error:  # a file system without locks
            log.debug("%s cannot be locked: %s", self._train_dir, error)

    def _look_for_another_job(self):
        newest = latest_checkpoint(self._train_dir)
        if newest and newest not in self._known and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s is not of this job: another one is saving there. Give each job a train_dir of its own",
                newest,
            )

    def end(self, session):
        """Saves the last step if it is not saved yet; only the first call in a session does."""
        if self._has_ended:
            return
        step = int(session.run(self._read_step))
        if step != self._saved_step:
            self._save_or_fail(session, step, self._end_secs())
        self._report.global_step = self._saved_step
        log.info("saved %s", self._report.checkpoint)
        claim = _claims.pop(os.path.realpath(self._train_dir), None)
        if claim is not None:
            os.close(claim)
        self._has_ended = True

    def is_due(self, step):
        """Whether a period is over at this step."""
        if step == self._saved_step:
            return False
        if self._retry_at is not None:
            return self._clock() >= self._retry_at
        if self._save_steps is not None and (
            self._saved_step is None or step - self._saved_step >= self._save_steps
        ):
            return True
        if self._save_steps is not None and step < self._saved_step:
            return True  # the model was rolled back
        return self._save_secs is not None and self._clock() - self._saved_at >= self._save_secs

    def _write_meta(self, path):
        with tf.io.gfile.GFile(path + ".tmp", "wb") as file:
            file.write(self._meta)
        tf.io.gfile.rename(path + ".tmp", path, overwrite=True)


def export_meta(saver):
    """The default graph as a serialized MetaGraphDef for `tf1.train.import_meta_graph` on one machine.

    No node has a device, those in function bodies included (loops and conditions), which TensorFlow's `clear_devices`
    leaves as they are.
    """
    keys = tf1.GraphKeys
    collections = [keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES, keys.LOCAL_VARIABLES, keys.GLOBAL_STEP]
    meta = tf1.train.export_meta_graph(
        collection_list=collections,
        clear_devices=True,
        saver_def=saver.saver_def if saver.saver_def else None,
    )
    for function in meta.graph_def.library.function:
        for node in function.node_def:
            node.device = ""
    return meta.SerializeToString()
