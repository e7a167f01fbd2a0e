"""Brings a session up: a creator for TensorFlow's MonitoredSession that neither resets a living model nor hangs.

What happens when a session is made, and made again after a ps was lost:

1. every ps must answer on its board, within `startup_timeout_secs` (`peer_timeout_secs` later, or if the job has had it), and must know the same
   cluster; who is missing is named every ten seconds;
2. chief: if the boards say that the model lives on exactly these ps processes, it is left as it is ("rejoined"); else
   the newest checkpoint is restored, or the variables are initialized, and what became flat is loaded from them
   (`fusing`). Then the chief declares on the boards for which ps processes the model is valid;
3. other workers wait for that declaration;
4. local variables, tables and input iterators are initialized; hooks are told; synchronous rounds are joined.

The stock creators initialize a living model anew when a chief returns without a checkpoint, poll every 30 s, and wait for
ever, silently, for a ps that does not come.
"""

import contextlib
import functools
import os
import threading
import time
from typing import Any

from ps_train import fingerprint, restoring
from ps_train.board import BoardError
from ps_train.bounded_session import BoundedSession
from ps_train.checkpoints import all_checkpoints, checkpoint_step, ended_since, finished_at, latest_checkpoint
from ps_train.cluster import ENDED
from ps_train.compat import tf, tf1
from ps_train.errors import JobOverError, ModelError, PeerLostError, RefusedError
from ps_train.inputs import build_input_init
from ps_train.liveness import BEAT_SECS, SILENCE_SECS, awake_clock, line_throttle, wait_until
from ps_train.logs import Throttle, log
from ps_train.lost import LOST
from ps_train.piece_queue import NAME, QUEUES
from ps_train.relapse import Relapse, cause_of
from ps_train.ring import await_chief, await_loss, loss_of, not_ready
from ps_train.server import session_config
from ps_train.updates.allreduce import broadcast, rule_of
from ps_train.wording import as_secs, steps_lost

LOOK_SECS = 3.0
OVER_SECS = 2.0  # between looks whether the job came to its end meanwhile
ALONE_SECS = 5.0  # after which the workers of a colocated job whose target is reached have ended
ANSWER_SECS = 1.5  # in which every ps that is up has answered once more
AWAY_SECS = 2.0  # a ps that is asked and does not answer for longer was away
RELAPSE_SECS = 1.0  # before the session is made once more
NO_SESSION = "no session with the ps tasks yet: %.0f s so far, giving up after %s s; %s"


def is_model_whole(monitor):
    """Whether the chief has brought the model up on the ps processes that there are."""
    return monitor.view().record("model").get("ps_runs") == monitor.ps_runs()


def _saver_without(queues):
    """A Saver of all but the positions of work queues; None if there are none."""
    apart = {queue.position.op.name for queue in queues}
    keys = tf1.GraphKeys
    found = [v for v in tf1.global_variables() if v.op.name not in apart]
    found += tf1.get_collection(keys.SAVEABLE_OBJECTS)
    return tf1.train.Saver(found, allow_empty=True) if apart else None


def note_who_left(runtime, view):
    """Keeps in `runtime.left` who has left, as the boards of new ps processes do not know it."""
    for task in map(str, runtime.context.cluster.training_tasks):
        record = view.record(task)
        if record.get("state") == "left":
            runtime.left.add(task)
        elif record:
            runtime.left.discard(task)


class SessionCreator(tf1.train.SessionCreator):
    """Makes raw sessions on a model that is valid, as the module says."""

    def __init__(self, runtime, optimizers, saving, scaffold, train_steps=None):
        self._runtime, self._optimizers, self._scaffold = runtime, optimizers, scaffold
        self._train_dir, self._train_steps = saving.train_dir, train_steps
        self._is_first = True
        self._bound = 0.0  # of the bring-up that is under way
        self._session: Any = None
        self._relapse = Relapse(runtime.context.task, runtime.context.cluster.address(runtime.context.task))
        self.saver: Any = None
        self._restorer: Any = None  # in its place, where some variables are not to be restored
        self._queues: list[Any] = []
        with tf1.device(runtime.context.worker_device + "/device:CPU:0"):
            if runtime.context.is_chief and saving.train_dir:
                keep = saving.keep_max or None
                restoring.tell_tables_apart()
                self._queues = tf1.get_collection(QUEUES)
                self._restorer = None if scaffold.saver else _saver_without(self._queues)
                self.saver = scaffold.saver or tf1.train.Saver(max_to_keep=keep, allow_empty=True)
            self._init_op = scaffold.init_op
            if self._init_op is None:
                self._init_op = tf.group(tf1.global_variables_initializer(), name="init")
            self._local_init_op = scaffold.local_init_op
            if self._local_init_op is None:
                self._local_init_op = tf1.train.Scaffold.default_local_init_op()
            self._input_init_op = build_input_init()
            self._variables = tf1.global_variables()
            self._uninitialized = tf.identity(tf1.report_uninitialized_variables(self._variables))
            self._global_step = tf1.train.get_global_step()
        is_all_reduced = runtime.context.is_all_reduced
        self._broadcast: Any = broadcast(self._variables, runtime.context) if is_all_reduced else None
        # Held while the graph's wiring changes, or `make_session_aside` takes it.
        self.rewiring = threading.Lock()
        self.fused: Any = None  # what became of small variables; see `fusing`
        self.first_pull: Any = None  # op to be run before the first step; see `prefetch`

    @property
    def cold_ops(self):
        """Ops that initialize and restore the variables themselves, before `fused.load` moves their values."""
        if self.saver is None:
            return [self._init_op]
        if self.saver.saver_def is None:
            self.saver.build()
        savers = [self.saver, *([self._restorer] if self._restorer else [])]
        names = [saver.saver_def.restore_op_name for saver in savers]
        return [self._init_op, *map(tf1.get_default_graph().get_operation_by_name, names)]

    @functools.cached_property
    def _fingerprint(self):
        """Of the graph once it is finalized."""
        layout = [self.fused.layout] if self.fused else []
        layout += [parcel.name for optimizer in self._optimizers for parcel in optimizer.parcels]
        constants, sums = rule_of(self._global_step.graph)
        return fingerprint.describe(
            self._variables, self._runtime.context, "\n".join([*layout, *sums]), constants
        )

    def create_session(self):
        """A session ready to train; called again after a ps was lost.

        Raises:
          PeerLostError: a ps or the chief was not there in time, or session after session is lost before a step.
          JobOverError: the job came to its end while this task was starting, or stood still.
          RefusedError: a ps belongs to another cluster, another process is this task, or the others train another model.
          ModelError: the checkpoint does not fit the model.
        """
        graph = tf1.get_default_graph()
        if not graph.finalized:
            graph.finalize()
        self._end_with_the_others()
        timeouts = self._runtime.timeouts
        bound = self._bound = timeouts.startup_timeout_secs if self._is_first else timeouts.peer_timeout_secs
        if self._session is not None:
            self._note_loss()
        deadline = awake_clock() + bound
        line_due = line_throttle(awake_clock())
        while True:
            since = None if self._is_first else awake_clock()
            runs = self._wait_for_ps(deadline, since)
            if since is not None and awake_clock() - since > AWAY_SECS:
                self._relapse.forget()
            try:
                session = self._create(runs, deadline)
            except (*LOST, BoardError) as error:
                self._is_first = False  # what the boards said so far may be of a ps that is gone
                self._runtime.guard.check()
                self._end_with_the_others()
                if awake_clock() + min(ANSWER_SECS, bound / 4) > deadline:
                    raise PeerLostError(f"gave up after {as_secs(bound)} s: {cause_of(error)}") from None
                if line_due.is_due(awake_clock()):
                    left = deadline - awake_clock()
                    log.info(NO_SESSION, bound - left, as_secs(bound), cause_of(error))
                time.sleep(0.5)
                continue
            self._is_first, self._session = False, session
            return session

    def _end_with_the_others(self):
        """Raises why, if this worker has begun an all-reduce: TensorFlow's collectives do not go on after the loss of a worker."""
        if self._runtime.peers is None:
            return
        error = await_loss(self._runtime)
        self._runtime.guard.check()
        raise error or loss_of(self._runtime, {})

    def _note_loss(self):
        runtime = self._runtime
        state = (runtime.report.local_steps, runtime.monitor.ps_runs())
        error = getattr(self._session, "lost_by", None)
        if self._relapse.note(state, error, runtime.timeouts.peer_timeout_secs):
            log.warning("the session was lost with a ps: making a new one; input starts anew")
        else:
            time.sleep(RELAPSE_SECS)

    def make_raw_session(self, graph=None):
        """A session without any bring-up, of the graph that is trained if no other is given."""
        runtime = self._runtime
        config = session_config(runtime.context.cluster, runtime.context.task, runtime.config)
        return BoundedSession(runtime.target, graph=graph or self._global_step.graph, config=config)

    def make_session_aside(self):
        """The same in another thread than that of the training, which may be changing the graph's wiring (`--autotune`)."""
        with self.rewiring:
            session = self.make_raw_session()
            session.run(self._global_step)  # takes the graph as it is
        return session

    def _create(self, runs, deadline):
        session = self.make_raw_session()
        try:
            if self._runtime.context.is_chief:
                with self._telling("the model to be restored or initialized"):
                    self._bring_up(session, runs)
            else:
                self._wait_for_model(runs, deadline)
                if self._broadcast is not None:  # for what is not sent
                    session.run(self._init_op, feed_dict=self._scaffold.init_feed_dict)
            if self._broadcast is not None:
                self._runtime.peers = runs
                with self._telling("all workers to take the chief's values"):
                    session.run(self._broadcast)
            with self._telling("tables and the input to be initialized"):
                session.run(self._local_init_op)
                session.run(self._input_init_op)
                if self._runtime.recorder is not None:
                    self._runtime.recorder.begin_session(session)
                if self.first_pull is not None:
                    session.run(self.first_pull)
        except BaseException:
            session.close()
            raise
        return session

    @contextlib.contextmanager
    def _telling(self, what):
        """Within it, a line says every ten seconds what is waited for; a session's calls are silent."""
        started, done = awake_clock(), threading.Event()

        def tell():
            while not done.wait(SILENCE_SECS):
                down = [
                    f"{link.task} at {link.address} ({link.reason})"
                    for link in self._runtime.monitor.links
                    if link.reason
                ]
                log.info(
                    "waiting for %s: %.0f s so far%s", what, awake_clock() - started, "; ".join(["", *down])
                )

        threading.Thread(target=tell, daemon=True, name="ps_train-bring-up").start()
        try:
            yield
        finally:
            done.set()

    # The ps tasks.

    def _wait_for_ps(self, deadline, since):
        runtime = self._runtime
        cluster = runtime.context.cluster
        over_due, start = Throttle(OVER_SECS), awake_clock()

        def all_up():
            if not self._other_runs() and over_due.is_due():
                self._check_is_on(waited=awake_clock() - start)
            self._check_is_there(waited=awake_clock() - start)
            if runtime.monitor.refusal is not None:
                raise runtime.monitor.refusal
            runs = runtime.monitor.ps_runs(since)
            if runtime.context.is_all_reduced and not runtime.context.is_chief:
                await_chief(runtime, runs)
            is_complete = runtime.monitor.is_admitted and len(runs) == cluster.num_ps
            return runs if is_complete and not self._not_ready(runs) else None

        name = cluster.host if runtime.context.is_all_reduced else lambda ps: ps

        def describe():
            return ", ".join(
                f"{name(link.task)} at {link.address} ({link.reason or 'starting'})"
                for link in runtime.monitor.links
                if str(link.task) not in runtime.monitor.ps_runs(since)
            ) or ", ".join(self._not_ready(runtime.monitor.ps_runs(since))) or "the others to answer"  # fmt: skip

        return wait_until(
            all_up, describe, self._bound, runtime.guard, advice=self._advice(), deadline=deadline
        )

    def _not_ready(self, runs):
        """All-reduce, the chief: in words, the workers that it cannot begin with yet: of the job before, or not heard of."""
        context = self._runtime.context
        if not (context.is_all_reduced and context.is_chief):
            return []
        return [
            f"{name} to reach this chief" if state == "starting" else f"{name} to start anew ({state})"
            for name, state in not_ready(self._runtime, runs).items()
        ]

    def _other_runs(self):
        """As `Monitor.ps_runs`, without the ps that is in this process."""
        context = self._runtime.context
        own = str(context.cluster.server_task(context.task))
        return {name: run for name, run in self._runtime.monitor.ps_runs().items() if name != own}

    def _check_is_on(self, waited=0.0):
        """Raises JobOverError if there is nothing to wait for, after so many seconds without another ps.

        The chief has to come up even so, to tell the others; unless they are all gone, and with them their parts of the model.
        """
        context = self._runtime.context
        if context.is_chief and not (context.cluster.is_colocated and waited > ALONE_SECS):
            return
        if finished_at(self._train_dir, self._train_steps):
            raise JobOverError("the job has reached its target")
        # The chief may have said so to a ps that came back.
        if self._runtime.monitor.view().record("job").get("is_over"):
            raise JobOverError("the job has come to its end")
        is_late = not context.is_chief and not self._other_runs()
        if is_late and ended_since(self._train_dir, self._runtime.report.started):
            raise JobOverError("the job ended while this task was starting")

    def _check_is_there(self, waited):
        """Raises PeerLostError for a ps that the job has had, and that is gone for longer than others wait for it."""
        runtime = self._runtime
        bound = runtime.timeouts.peer_timeout_secs
        if waited <= bound or runtime.context.cluster.is_colocated:
            return
        had, runs = runtime.monitor.view().record("model").get("ps_runs") or {}, runtime.monitor.ps_runs()
        gone = [
            f"{link.task} at {link.address} ({link.reason})"
            for link in runtime.monitor.links
            if link.reason and str(link.task) in had and str(link.task) not in runs
        ]
        if gone:
            raise PeerLostError(
                f"gone for {bound:g} s: {', '.join(gone)}. Start it; the job has had it before."
            )

    def _advice(self):
        flag = "startup_timeout_secs" if self._session is None else "peer_timeout_secs"  # of a script, too
        context = self._runtime.context
        without_ps = "--update=allreduce" if context.is_all_reduced else "--colocate_ps"
        how = f"Start it, with {without_ps} as this one" if context.cluster.is_colocated else "Start it"
        return f"{how}, check its address and the network between, or give it longer by {flag}."

    # The chief.

    def _bring_up(self, session, runs):
        runtime = self._runtime
        declared = runtime.monitor.view().record("model")
        if declared.get("ps_runs") == runs and self._is_same_model() and self._is_alive(session):
            log.info("rejoined the living model at step %d", session.run(self._global_step))
            runtime.report.restored_from = runtime.report.restored_from or "living ps"
            runtime.monitor.publish("model", ps_runs=runs, chief=runtime.monitor.run_id)
            return
        checkpoint = latest_checkpoint(self._train_dir)
        if checkpoint:
            self._restore(session, checkpoint)
        else:
            log.info(
                "no checkpoint in %s: variables are initialized", self._train_dir
            ) if self._train_dir else None
            session.run(self._init_op, feed_dict=self._scaffold.init_feed_dict)
            if self._scaffold.init_fn is not None:
                self._scaffold.init_fn(session)
        self._check_initialized(session)
        if self.fused is not None:
            for op in self.fused.load:
                session.run(op)
        for optimizer in self._optimizers:
            optimizer.reset(session, self._members())
        if runtime.recorder is not None:
            runtime.recorder.note_model(session, checkpoint)
        if runtime.monitor.ps_runs() != runs:
            raise tf.errors.AbortedError(None, None, "a ps was restarted while the model was brought up")
        self._model_link.board.write_text("model", self._fingerprint)
        runtime.monitor.publish("model", ps_runs=runs, chief=runtime.monitor.run_id)
        runtime.monitor.flush()

    def _is_alive(self, session):
        if session.run(self._uninitialized).size:
            return False
        if any(optimizer.is_torn(session) for optimizer in self._optimizers):
            log.warning("the last update was cut off halfway: the living model is not used")
            return False
        return True

    def _restore(self, session, checkpoint):
        apart = [queue.position.op.name for queue in self._queues] if self._restorer else []
        reader = restoring.restore(
            session, self._restorer or self.saver, checkpoint, is_whole=self._scaffold.saver is None, apart=apart
        )  # fmt: skip
        for queue in self._queues if self._restorer else ():
            queue.load(session, reader)
        if not self._queues and any(name.startswith(NAME) for name in reader.get_variable_to_shape_map()):
            log.warning(
                "input: the position that the checkpoint has of the work queue is not used without --input=workqueue"
            )
        kept = [(path, os.path.getmtime(path + ".index")) for path in all_checkpoints(self._train_dir)]
        self.saver.set_last_checkpoints_with_time(kept)  # counts them in when it deletes the oldest
        lost = (self._runtime.report.global_step or 0) - (checkpoint_step(checkpoint) or 0)
        log.info("restored %s", checkpoint)
        if lost > 0:
            log.warning("%s", steps_lost(lost))
        self._runtime.report.restored_from = self._runtime.report.checkpoint = checkpoint

    def _check_initialized(self, session):
        missing = [name.decode() for name in session.run(self._uninitialized)]
        if missing:
            raise ModelError(
                f"Variables are not initialized: {', '.join(missing[:5])}. Their initial values depend on one another, "
                "or they are in no collection that the initializer covers. Check model_fn."
            )

    def _members(self):
        """Replicas that the first round counts: all but those that have left."""
        note_who_left(self._runtime, self._runtime.monitor.view())
        tasks = self._runtime.context.cluster.training_tasks
        return [0 if str(task) in self._runtime.left else 1 for task in tasks]

    # The other workers.

    def _wait_for_model(self, runs, deadline):
        runtime = self._runtime
        chief = runtime.context.cluster.chief_task
        address = runtime.context.cluster.address(chief)
        over_due = Throttle(OVER_SECS)

        def is_valid():
            if over_due.is_due():
                self._check_is_on()
            current = runtime.monitor.ps_runs()
            if current and any(runs.get(name) != run for name, run in current.items()):
                raise tf.errors.AbortedError(None, None, "a ps was restarted")
            return runtime.monitor.view().record("model").get("ps_runs") == runs and self._is_same_model()

        wait_until(
            is_valid, lambda: f"{chief} at {address} to initialize or restore the model",
            self._bound, runtime.guard, advice=self._advice(), deadline=deadline,
        )  # fmt: skip
        self._check_target()

    def _check_target(self):
        """Raises RefusedError if the chief trains up to another step."""
        own, chiefs = self._train_steps, self._runtime.monitor.view().record("training").get("train_steps")
        if own is not None and chiefs is not None and own != chiefs:
            raise RefusedError(
                f"{self._runtime.context.task} is to train up to step {own}, and the chief up to step {chiefs}. Give all tasks "
                "the same --train_steps (a script: the same last_step)."
            )

    @property
    def _model_link(self):
        return self._runtime.monitor.links[0]

    def _is_same_model(self):
        """Whether this task builds the model that is declared on the boards, and nobody trains another one.

        Raises:
          RefusedError: others train another one; who was left over from an earlier job does not count.
          BoardError: as `create_session` takes for a ps that was lost.
        """
        theirs = self._model_link.board.read_text("model")
        context = self._runtime.context
        lines = fingerprint.differences(self._fingerprint, theirs, str(context.task)) if theirs else []
        if lines and self._is_trained(context):
            raise RefusedError(
                f"{context.task} builds another model than the others train. Start all tasks with the same model and flags.\n"
                + "\n".join(lines)
            )
        return not lines

    def _is_trained(self, context):
        """Whether the chief, or for the chief itself any other worker, is alive: its record changes."""
        cluster = context.cluster
        tasks = [cluster.chief_task] if not context.is_chief else cluster.training_tasks
        time.sleep(LOOK_SECS)  # what was read once may be of the dead
        view = self._runtime.monitor.view()
        return any(
            view.age(str(task)) < LOOK_SECS - BEAT_SECS and view.record(str(task)).get("state") not in ENDED
            for task in tasks
            if task != context.task
        )
