"""Notices that no step completes, and logs once what the task waits for.

    watch = StallWatch(runtime, optimizers)       # in the thread that trains
    runtime.guard.looks = [watch.look]            # called twice a second, whatever the main thread is blocked in

1. A step costs nothing: `look` compares the report's count with that of the last look.
2. When no step has completed for `stall_secs`, a thread collects the evidence: what the boards said last, the ledger and the
   accumulators by calls of its own, each with a deadline, and the Python stacks. `stall` makes the text.
3. The conclusion goes to the boards, too, as the field "stall" of the task's record.
4. The step that ends the wait is told with how long it was.

A model whose steps take long by nature is told of once: from then on the bound is a multiple of its usual step.
"""

import statistics
import threading
import time
from collections import deque

from ps_train import stacks, stall
from ps_train.board import NO_ANSWER, BoardError
from ps_train.liveness import BEAT_SECS, CALL_SECS, awake_clock
from ps_train.logs import log
from ps_train.step_trace import LEDGER_PREFIX
from ps_train.updates.accumulators import AccumulatorReader
from ps_train.updates.standing import LedgerReader, describe, place_of, read_lead

QUIET_SECS = 1.0
WINDOW_SECS = 1.0  # what lasts as long as this stands still
PATIENCE = 3  # times the usual step
NUM_USUAL = 8


class StallWatch:
    """Watches the steps of one task.

    Args:
      runtime: session.TaskRuntime.
      optimizers: the synchronous ones of the graph.
      clock: seconds.
      start: runs a function in a thread.
      thread_id: of the thread that trains; the one that calls this if not given.
      graph: that is trained.
      leads: async: what a worker waits at that is too far ahead.
      readers: of work queues; see `pieces`.
    """

    def __init__(
        self,
        runtime,
        optimizers,
        clock=awake_clock,
        start=None,
        thread_id=None,
        graph=None,
        leads=(),
        readers=(),
    ):
        self._runtime, self._optimizers, self._clock = runtime, optimizers, clock
        self._leads, self._readers = leads, readers
        self._start = start or _start_thread
        self._thread_id = thread_id or threading.get_ident()
        self._queues = _queues_on_ps(graph) if graph is not None else []
        self._lock = threading.Lock()
        self._intervals: deque[float] = deque(maxlen=NUM_USUAL)
        self._since = None
        self._done = 0
        self._is_posted = self._is_asked = self._is_told = False

    def look(self):
        """Looks whether a step has completed since the last look; called by the guard's thread."""
        runtime, now = self._runtime, self._clock()
        with self._lock:
            if runtime.monitor.get("state") != "training":
                self._end_wait(now)
                self._since = None
            elif self._since is None or self._done != self._count():
                if self._since is not None:
                    self._intervals.append(now - self._since)
                self._end_wait(now)
                self._since, self._done = now, self._count()
            else:
                self._note_quiet(now - self._since)

    @property
    def bound_secs(self):
        """How long a step may take before it is looked into."""
        usual = statistics.median_low(self._intervals) if self._intervals else 0.0
        return max(self._runtime.timeouts.stall_secs, PATIENCE * usual)

    def _count(self):
        report = self._runtime.report
        return report.local_steps + report.skipped_steps

    def _note_quiet(self, secs):
        runtime = self._runtime
        if secs > QUIET_SECS and not self._is_posted:
            self._is_posted = True  # steps are posted twice a second, and the last ones may not have been
            runtime.monitor.post(**runtime.report.counts())
        if secs > self.bound_secs and not self._is_asked:
            self._is_asked = True
            done, since = self._done, self._since
            self._start(lambda: self._tell(done, since))

    def _end_wait(self, now):
        if self._is_told:
            self._runtime.monitor.post(stall=None)
            step = self._runtime.report.global_step
            log.info("the wait is over after %.0f s, at global step %s", now - self._since, step)
        self._is_posted = self._is_asked = self._is_told = False

    def _tell(self, done, since):
        try:
            evidence = self.collect(since)
        except Exception as error:  # thread boundary
            log.error("internal error while a wait of %g s was looked into: %r", self._clock() - since, error)
            return
        with self._lock:
            if (self._done, self._since) != (done, since) or self._count() != done:
                return  # a step has completed meanwhile
            self._is_told = True
            for_boards = stall.conclude(evidence._replace(tells_ages=False))
            self._runtime.monitor.post(stall=for_boards, local_rate=0.0)
            log.info("%s", "\n".join(stall.explain(evidence)))

    def collect(self, since):
        """What can be found out, as stall.Evidence; takes a second, or some more if a ps does not answer."""
        runtime = self._runtime
        context, view = runtime.context, runtime.monitor.view
        before, started, cpu = stacks.python_calls(), time.monotonic(), time.process_time()
        notes: list[str] = []
        standings = self._read_ledgers(notes)
        gradients = self._count_gradients(notes)
        time.sleep(max(0.0, WINDOW_SECS - (time.monotonic() - started)))
        cores = (time.process_time() - cpu) / (time.monotonic() - started)
        frames = [call.frame for call in before]
        calls = [call.place for call in stacks.python_calls() if any(call.frame is frame for frame in frames)]
        own, seen = context.task, view()
        return stall.Evidence(
            own=str(own),
            chief=str(context.cluster.chief_task),
            secs=self._clock() - since,
            step=runtime.report.global_step,
            is_first=self._count() == 0,
            servers=[
                _server(link, context.cluster.host(link.task) if context.is_all_reduced else link.task)
                for link in runtime.monitor.links
            ],
            is_all_reduced=context.is_all_reduced,
            peers=[_peer(str(task), seen) for task in context.cluster.training_tasks if task != own],
            standings=standings,
            lead=self._read_lead(notes),
            gradients=gradients,
            notes=notes,
            is_loop_there=self._is_loop_there(),
            stack=stacks.main_stack(self._thread_id),
            queues=self._queues,
            calls=calls,
            waits_for_pieces=any(reader.is_waiting for reader in self._readers),
            cores=cores,
        )

    def _is_loop_there(self):
        if not (self._optimizers and self._runtime.context.is_chief):
            return None
        return all(o.update_loop is not None and o.update_loop.is_running for o in self._optimizers)

    def _read_ledgers(self, notes):
        if not self._optimizers:
            return []
        context = self._runtime.context
        link = self._runtime.monitor.link(context.cluster.ps_tasks[0])
        names = [str(task) for task in context.cluster.training_tasks]
        described = [describe(optimizer.ledger) for optimizer in self._optimizers]
        reader = LedgerReader(link.address, link.task, described, names)
        try:
            return reader.read(CALL_SECS)
        except BoardError as error:
            notes.append(f"the rounds' ledger on {link.task} cannot be read: {error}")
            return []
        finally:
            reader.close()

    def _read_lead(self, notes):
        if not self._leads:
            return None
        context = self._runtime.context
        link = self._runtime.monitor.link(context.cluster.ps_tasks[0])
        names = [str(task) for task in context.cluster.training_tasks]
        try:
            return read_lead(link.address, link.task, place_of(self._leads[0].vector), names, CALL_SECS)
        except BoardError as error:
            notes.append(f"how far the workers are, on {link.task}, cannot be read: {error}")
            return None

    def _count_gradients(self, notes):
        """Gradients in each accumulator of those ps tasks that answer."""
        by_device: dict[str, list] = {}
        for optimizer in self._optimizers:
            for accumulator, device in optimizer.accumulators:
                by_device.setdefault(device.partition("/device")[0], []).append(accumulator)
        counts = []
        for link in self._runtime.monitor.links:
            found = by_device.get(f"/job:ps/task:{link.task.index}", [])
            if not found or link.reason:
                continue
            reader = AccumulatorReader(link.address, link.task, found)
            try:
                counts += reader.read(CALL_SECS)
            except BoardError as error:
                notes.append(f"the accumulators on {link.task} cannot be read: {error}")
            finally:
                reader.close()
        return counts


def _queues_on_ps(graph):
    """Shared names of the queues on ps tasks that are not the ledger's."""
    names = {
        op.get_attr("shared_name").decode()
        for op in graph.get_operations()
        if op.type.endswith("QueueV2") and "/job:ps" in op.device
    }
    return sorted(name for name in names if not name.startswith(LEDGER_PREFIX))


def _start_thread(function):
    threading.Thread(target=function, daemon=True, name="ps_train-stall").start()


def _server(link, task):
    is_up = not link.reason and link.silent_secs() < BEAT_SECS + CALL_SECS
    return stall.Server(str(task), link.address, is_up, link.reason or NO_ANSWER)


def _peer(name, view):
    record = view.record(name)
    return stall.Peer(
        name, record.get("state", ""), view.age(name), record.get("step"), record.get("stall") or "",
        record.get("reason") or "",
    )  # fmt: skip
