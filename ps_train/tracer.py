"""Has the workers trace the steps of `--trace_steps`, and the chief write one file of what all have traced.

    tracer = StepTracer(runtime, config.trace_window, config.train_dir)
    runner = TracingRunner(tracer, ops, step_hook, fetches)            # in place of StepRunner
    with session.make(..., step_runner=runner) as sess, tracer:
        runner.loop(sess)

1. A worker traces its steps that begin, as far as it knows, while the global step is in the window, and keeps TensorFlow's notes. A
   step that may have the window in it, by how far the global step went in those before, is traced, too, and dropped if it had not.
   On the chief of a synchronous job the updates are traced, in their own thread.
2. When its window is over, a thread of its own makes a part of them (`trace.parts`) and writes it to a ps, as texts beside the board;
   its record says where. Training goes on meanwhile.
3. The chief's thread takes the parts as they come, until all are there, or PATIENCE_SECS after the global step has left the window. The
   file says who is missing, and why.
"""

import collections
import functools
import os
import threading
import time
from typing import Any

from ps_train.board import Board, BoardError
from ps_train.cluster import ENDED
from ps_train.explain import one_line
from ps_train.logs import log
from ps_train.step_stats import parse
from ps_train.trace import chrome
from ps_train.trace.merged import merge
from ps_train.trace.parts import STEP, UPDATE_RUN, Part, make_run, pack, unpack
from ps_train.traced_steps import TracedStepRunner, run_traced
from ps_train.wording import counted

MAX_HELD_BYTES = 256_000_000  # of TensorFlow's notes, in a worker's memory
MAX_PART_BYTES = 8_000_000
CHUNK_BYTES = 1_000_000
CALL_SECS = 20.0  # of writing or reading a chunk
PATIENCE_SECS = 60.0
END_SECS = 15.0  # of waiting for the others at the end, when they have nothing to do any more
GONE_SECS = 5.0  # of silence, after which it is not waited for at the end
STOP_SECS = 2.0  # the same when the job ends before its time
UPDATE_SECS = 0.5  # in which the update of the last step has returned
POLL_SECS = 0.2
RECENT = 8  # steps, of which it is seen how far the global step goes in one
MIN_ADVANCE = 5  # of each worker
FIELD = "trace"  # of a worker's record


class StepTracer:
    """What one worker traces, and what becomes of it.

    Args:
      runtime: session.TaskRuntime.
      window: (first, last) global step.
      train_dir: where the chief writes; None: the working directory.
      clock, sleep: for tests.
    """

    def __init__(self, runtime, window, train_dir, clock=time.monotonic, sleep=time.sleep):
        self._runtime, self._context, self._monitor = runtime, runtime.context, runtime.monitor
        self._first, self._last = window
        self._path = os.path.join(train_dir or "", f"trace-{self._first}-{self._last}.json")
        self._clock, self._sleep = clock, sleep
        self._owner = str(self._context.task)
        self._server = str(self._context.cluster.server_task(self._context.task))
        self._step = 0
        self._advances = collections.deque([0], maxlen=RECENT)
        self._steps: list[Any] = []  # (global step, TracedCalls)
        self._updates: list[Any] = []  # (global step, TracedCall)
        self._held = self._num_cut = 0
        self._update_calls: dict[Any, Any] = {}  # by session, of which each optimizer's updates have one
        self._updating: set[Any] = set()  # sessions in whose updates it is
        self._thread: Any = None
        self._is_ending = self._is_hurried = False

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Waits for what is under way, with a bound."""
        self._is_hurried = kind is not None or self._runtime.guard.should_stop
        self._is_ending = True
        self.finish()
        self._thread.join((STOP_SECS if self._is_hurried else END_SECS) + CALL_SECS)
        if self._thread.is_alive():
            log.warning("the trace is lost: the ps tasks, or the disk, took too long for it")

    # In each step.

    def wants(self, step):
        """Whether the step that begins now, `step` being the last that is known, is to be traced; ends the window when it is over."""
        if self._thread is not None:
            return False
        self._step = step
        if step >= self._last:
            self.finish()
            return False
        return step + self._advance >= self._first

    @property
    def _advance(self):
        """How far the global step may go in one step of this worker."""
        return max(MIN_ADVANCE * self._context.cluster.num_workers, *self._advances)

    def note(self, before, after, calls):
        """A step has been made, by TracedCalls if it was traced."""
        self._advances.append(after - before)
        if not calls or after < self._first or self._thread is not None:
            return
        self._held += sum(call.step_stats.ByteSize() for call in calls)
        if self._held > MAX_HELD_BYTES:
            self._num_cut += len(calls)
        else:
            self._steps.append((after, calls))

    def trace_update(self, session, update):
        """A call of a synchronous job's update that traces it; None outside the window. In the thread of the updates."""
        # One begins when that of the step before is done, of which the worker may not know yet.
        if self._thread is not None or not self._step + self._advance + 1 >= self._first:
            return None
        if session not in self._update_calls:
            self._update_calls[session] = session.make_callable(update, accept_options=True)
        return functools.partial(self._run_update, session)

    def _run_update(self, session):
        found: list[Any] = []
        self._updating.add(session)
        try:
            run_traced(self._update_calls[session], found)
        finally:
            self._updating.discard(session)
        self._held += found[0].step_stats.ByteSize()
        if self._held <= MAX_HELD_BYTES:
            self._updates.append((self._step, found[0]))

    # When the window is over.

    def finish(self):
        """Has a thread deliver what there is; a later call changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="ps_train-trace")
            self._thread.start()

    def _run(self):
        try:
            part = self._make_part()
            if self._context.is_chief:
                self._write(part)
            else:
                self._deliver(part)
        except Exception as error:  # thread boundary: training goes on
            log.error("the trace is lost: %s", one_line(error))

    def _make_part(self):
        deadline = self._clock() + UPDATE_SECS
        while self._updating and self._clock() < deadline:
            self._sleep(0.01)
        steps, updates = list(self._steps), list(self._updates)
        calls = [(STEP, step, batch, call) for step, calls in steps for batch, call in enumerate(calls)]
        begin, end = (calls[0][-1].begin, calls[-1][-1].end) if calls else (0, float("inf"))
        calls += [
            (UPDATE_RUN, step, 0, call) for step, call in updates if call.begin < end and call.end > begin
        ]
        runs = [
            make_run(
                self._owner, self._server, kind, step, batch, call.begin, call.end, parse(call.step_stats)
            )
            for kind, step, batch, call in calls
        ]
        self._steps, self._updates = [], []
        return Part(self._owner, self._server, tuple(runs))

    def _deliver(self, part):
        """Writes a worker's part to the first ps that takes it, and tells the boards."""
        text, num_unsent = pack(part, MAX_PART_BYTES)
        num_cut = num_unsent + self._num_cut
        is_empty = num_unsent == len(part.runs)
        if num_cut:
            log.warning("trace: %s left out: there is more than may be sent", counted(num_cut, "traced run"))
        told: dict[str, Any] = {"cut": num_cut, "chunks": 0}
        if num_cut and is_empty:
            told["reason"] = "one step is more than may be sent"
        links = self._monitor.links
        number = self._context.replica % len(links)
        for link in [] if is_empty else [*links[number:], *links[:number]]:
            board = Board(link.address, link.task)
            try:
                chunks = [text[start : start + CHUNK_BYTES] for start in range(0, len(text), CHUNK_BYTES)]
                for index, chunk in enumerate(chunks):
                    board.write_text(_key(self._owner, index), chunk, CALL_SECS)
                told = {"cut": num_cut, "chunks": len(chunks), "ps": str(link.task)}
                break
            except BoardError as error:
                told["reason"] = f"{link.task} did not take it: {error}"
            finally:
                board.close()
        self._monitor.post(**{FIELD: told})

    # On the chief.

    def _write(self, own):
        parts, missing, cut = self._collect()
        if self._num_cut:
            cut[self._owner] = self._num_cut
        if own.runs:
            parts.insert(0, own)
        if not _num_steps(own):
            missing[self._owner] = self._why_empty()
        num_steps = [number for number in map(_num_steps, parts) if number]
        if not num_steps:
            log.warning("no step was traced: %s", missing[self._owner])
            return
        merged = merge(parts, parts[0].server)
        facts = {"trace_steps": f"{self._first}:{self._last}", "update": self._context.update, "cut": cut}
        try:
            path = chrome.write(self._path, merged, facts, _labels(self._context.cluster), missing)
        except OSError as error:
            log.error("the trace %s cannot be written: %s", self._path, error.strerror or error)
            return
        self._runtime.report.trace = path
        log.info(
            "traced %s of %s: %s, for ui.perfetto.dev and python -m ps_train trace %s --summary",
            counted(sum(num_steps), "step"), counted(len(num_steps), "worker"), path, path,
        )  # fmt: skip
        for worker, reason in missing.items():
            log.warning("trace: %s is missing: %s", worker, reason)

    def _why_empty(self):
        report = self._runtime.report
        return (
            f"it made no step from {self._first} to {self._last}, and is at global step {report.global_step}"
        )

    def _collect(self):
        """(the others' Parts, worker -> why it is missing, worker -> how many runs were cut off)."""
        parts: list[Part] = []
        missing: dict[str, str] = {}
        cut: dict[str, int] = {}
        pending = [task for task in self._context.cluster.training_tasks if task != self._context.task]
        deadline = None
        while pending:
            view = self._monitor.view()
            newest = max((record.get("step") or 0 for record in view.records.values()), default=0)
            if deadline is None and (newest >= self._last or self._is_ending):
                deadline = self._clock() + PATIENCE_SECS
            if self._is_ending:
                end_secs = STOP_SECS if self._is_hurried else END_SECS
                deadline = min(deadline, self._clock() + end_secs)
            is_over = deadline is not None and self._clock() >= deadline
            for task in list(pending):
                record = view.record(str(task))
                told = record.get(FIELD)
                is_gone = record.get("state") in ENDED or (
                    self._is_ending and (not record or view.age(str(task)) > GONE_SECS)
                )
                if told is None and not (is_over or is_gone):
                    continue
                pending.remove(task)
                part = None if told is None else self._take(str(task), told, missing)
                if part is not None:
                    parts.append(part)
                elif told is None:
                    missing[str(task)] = _why_missing(record, view.age(str(task)))
                if told and told["cut"]:
                    cut[str(task)] = told["cut"]
            self._sleep(POLL_SECS if pending else 0)
        return parts, missing, cut

    def _take(self, worker, told, missing):
        """A worker's Part, which is taken off the ps; None if there is none."""
        if not told["chunks"]:
            missing[worker] = told.get("reason", f"it made no step from {self._first} to {self._last}")
            return None
        link = next(link for link in self._monitor.links if str(link.task) == told["ps"])
        board = Board(link.address, link.task)
        try:
            keys = [_key(worker, index) for index in range(told["chunks"])]
            part = unpack("".join(board.read_text(key, CALL_SECS) for key in keys))
            for key in keys:
                board.write_text(key, "", CALL_SECS)
            return part
        except (BoardError, ValueError) as error:
            missing[worker] = f"what it has sent to {told['ps']} cannot be read: {error}"
            return None
        finally:
            board.close()


def _key(worker, index):
    return f"trace of {worker}, {index}"


def _num_steps(part):
    return sum(run.kind == STEP and run.batch == 0 for run in part.runs)


def _why_missing(record, age):
    if not record:
        return "it has not joined"
    if record["state"] in ENDED:
        return f"it has ended: {record.get('reason', record['state'])}"
    if age > GONE_SECS:
        last = f"last at step {record['step']}" if "step" in record else "before its first step"
        return f"it has ended, or was stopped, without a word: not heard of for {age:.0f} s, {last}"
    return f"it had not sent its part in time, at step {record.get('step', '?')}"


def _labels(cluster):
    """Name of each server -> what to call its process."""
    labels = {}
    for task in cluster.tasks:
        server = cluster.server_task(task)
        roles = ([] if server == task else [str(task)]) + (["chief"] if cluster.is_chief(task) else [])
        shown = f" ({', '.join(roles)})" if roles else ""
        labels[str(server)] = f"{server}{shown} at {cluster.address(task)}"
    return labels


class TracingRunner(TracedStepRunner):
    """A StepRunner that traces the steps that its StepTracer wants."""

    def __init__(self, tracer, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._tracer = tracer
        self._found: Any = None  # TracedCalls of the step, if it is traced

    def _prepare(self, **options):
        for loop in self.update_loops:
            loop.trace = self._tracer.trace_update
        return super()._prepare(**options)

    def _run_batches(self):
        """Also before the first of them."""
        self._found = [] if self._tracer.wants(self._step_hook.step) else None
        if self._found is None:
            super()._run_batches()
        else:
            self._run_batches_traced(self._found)

    def _run_one(self, step_context):
        before = self._step_hook.step
        if self._found is None:
            super()._run_one(step_context)
        else:
            self._run_one_traced(step_context, self._found)
        self._tracer.note(before, self._step_hook.step, self._found)

    def _note_end(self):
        self._tracer.finish()
