"""Who is alive, outside `session.run`: beats to the boards, and waits that end.

    monitor = Monitor(TaskId("worker", 1), [Board(...)])   # a daemon thread a ps: writes this task's record, reads all
    monitor.start()
    monitor.post(state="training", step=12)
    monitor.view().record("worker:0")                      # {'state': 'training', ...}, and .age(key) in seconds

    wait_until(lambda: monitor.links[0].is_up, lambda: "ps:0 at a:2222", timeout_secs=60, guard=guard)

Ages are measured by the observer's clock from the moment at which it saw a record change, never by comparing the clocks of
different hosts.
"""

import os
import socket
import threading
import time
import uuid

from ps_train import __version__
from ps_train.admission import Admission
from ps_train.board import CLOSED, NOT_TENSORFLOW, BoardError, newest
from ps_train.cluster import ends_the_job
from ps_train.errors import PeerLostError, PsTrainError, blame, blamed
from ps_train.logs import Throttle, log
from ps_train.processors import cpu_secs, num_cores
from ps_train.tables import digest, text_key
from ps_train.wording import as_secs

BEAT_SECS = 0.5
CALL_SECS = 2.0
PROTOCOL = 3  # changes with what the records and the rounds' state mean
SILENCE_SECS = 10.0  # something that is waited for is named at least this often


class AwakeClock:
    """Seconds on a monotonic clock that stands still while this process does (SIGSTOP, a suspended machine).

    Whoever slept has heard from nobody meanwhile, and must not take the others for dead. It has to be read more often
    than every SUSPENDED_SECS, which the guard's thread does.
    """

    SUSPENDED_SECS = 3.0

    def __init__(self, clock=time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._last, self._asleep = clock(), 0.0

    def __call__(self):
        """Now."""
        with self._lock:
            now = self._clock()
            gap = now - self._last
            if gap > self.SUSPENDED_SECS:
                self._asleep += gap
                log.warning("this process stood still for %.0f s", gap)
            self._last = now
            return now - self._asleep

    def restart(self):
        """Counts from now on: nothing has read the clock before, so that was no sleep."""
        with self._lock:
            self._last = self._clock()


awake_clock = AwakeClock()


class Link:
    """This task's line to one ps: the board's last content, and since when it does not answer.

    Attributes:
      reason: why the last call failed, in words; "" after one that was answered.
      admission: whether this task may write there.
    """

    def __init__(self, board, clock=awake_clock):
        self.board, self._clock = board, clock
        self.task, self.address = board.task, board.address
        self.reason = "not tried yet"
        self._lock, self.calling = threading.Lock(), threading.Lock()
        self._started = clock()
        self._last_ok = None
        self._records, self._seen = {}, {}
        self.admission = Admission(board.task, board.address, clock)
        self.written: dict[str, tuple] = {}  # name of a text -> (run of the ps, text) that was written

    def exchange(self, records, timeout_secs=CALL_SECS):
        """One call; notes the outcome. True if the board answered."""
        try:
            board = self.board.exchange(records, timeout_secs)
        except BoardError as error:
            if (self.reason, str(error)) != (NOT_TENSORFLOW, CLOSED):  # the clearer word stands
                self.reason = str(error)
            return False
        now = self._clock()
        self.reason = ""
        with self._lock:
            self._last_ok, self._records = now, board
            for key, record in board.items():
                if self._seen.get(key, (None,))[0] != record.get("beat"):
                    self._seen[key] = (record.get("beat"), now)
        return True

    def silent_secs(self):
        """Seconds since the ps last answered, or since this link was made; less than one beat when it is up."""
        return self._clock() - (self._started if self._last_ok is None else self._last_ok)

    def answered_after(self, moment):
        """Whether a call that was answered came back after this moment of the link's clock."""
        return self._last_ok is not None and self._last_ok > moment

    @property
    def is_up(self):
        """Whether a call was answered within the time that a beat and two failed calls take."""
        return self._last_ok is not None and self.silent_secs() < BEAT_SECS + 2 * CALL_SECS

    def read(self):
        """(records, key -> seconds since the record changed)."""
        now = self._clock()
        with self._lock:
            return dict(self._records), {key: now - seen for key, (_, seen) in self._seen.items()}


class View:
    """What the boards said, merged: the newest record of each key, and how long ago it changed."""

    def __init__(self, links):
        read = [link.read() for link in links]
        self.records: dict[str, dict] = newest(records for records, _ in read)
        self._ages: dict[str, float] = {}
        for records, ages in read:
            for key in records:
                self._ages[key] = min(ages[key], self._ages.get(key, float("inf")))

    def record(self, key):
        """The record, or an empty dict."""
        return self.records.get(str(key), {})

    def age(self, key):
        """Seconds since the record changed, as this task saw it; infinite if there is none."""
        return self._ages.get(str(key), float("inf"))


def first_failure(records, own=None):
    """The error of a task that failed for good, or None. One that ended only because another had failed names that one.

    Args:
      records: key -> record, of a board.
      own: key of the asking task, whose record of an earlier start does not count.
    """
    for key, record in records.items():
        if key == own or not ends_the_job(record):
            continue
        reason = record.get("reason", "")
        failure = PsTrainError(reason if blamed(reason) in records else blame(key, reason))
        failure.is_model_safe = record.get("is_model_safe", False)
        return failure
    return None


class Monitor:
    """Beats this task's records to every board and keeps what comes back.

    Args:
      task: TaskId.
      boards: a Board for each ps.
      admitted_to: Cluster of a task that has to be admitted to each board; None for a ps on its own.
      run_id: that of this process, if it has one; else a new one.
      fields: more of this task's record.
    """

    def __init__(self, task, boards, admitted_to=None, run_id=None, **fields):
        self.task, self._cluster = task, admitted_to
        awake_clock.restart()
        self.run_id = run_id or uuid.uuid4().hex[:12]
        self.links = [Link(board) for board in boards]
        self._lock = threading.Lock()
        self._fields = {
            "run": self.run_id, "state": "starting", "pid": os.getpid(), "host": socket.gethostname(),
            "started": round(time.time(), 3), "version": __version__, "protocol": PROTOCOL, "cores": num_cores(),
            **fields,
        }  # fmt: skip
        self._extra, self._texts = {}, {}
        self._stopping = threading.Event()
        self._wake = [threading.Event() for _ in self.links]

    def start(self):
        """Starts a daemon thread for each board."""
        for link, wake in zip(self.links, self._wake, strict=True):
            thread = threading.Thread(
                target=self._run, args=(link, wake), daemon=True, name=f"ps_train-{link.task}"
            )
            thread.start()

    def post(self, **fields):
        """Changes this task's record; it goes out with the next beat."""
        with self._lock:
            self._fields.update(fields)

    def publish(self, key, **fields):
        """Adds a record that this task owns besides its own, as "job" or "model"; repeated with every beat."""
        with self._lock:
            self._extra[key] = {**fields, "key": key, "beat": time.time_ns() // 1000}

    def publish_text(self, name, text):
        """Has each board keep a text of this task that is too long for a record, as `tables.text_key(task, name)`.

        It is written once, and again to a ps that was started again. This task's record has the text's digest, by which a reader
        knows whether what it has is the newest.
        """
        with self._lock:
            self._texts = {**self._texts, name: text}
            self._fields["texts"] = {name: digest(text) for name, text in self._texts.items()}

    def get(self, field):
        """A field of this task's own record, or None."""
        with self._lock:
            return self._fields.get(field)

    def flush(self, timeout_secs=CALL_SECS):
        """Writes to all boards now, in parallel; True if all answered."""
        answered = []

        def write(link):
            if self._exchange(link, timeout_secs):
                answered.append(link)

        threads = [threading.Thread(target=write, args=(link,), daemon=True) for link in self.links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * timeout_secs + 0.5)  # a beat may be under way
        return len(answered) == len(self.links)

    def view(self):
        """The merged content of the boards."""
        return View(self.links)

    def link(self, task):
        """The link to one ps."""
        return next(link for link in self.links if link.task == task)

    def ps_runs(self, since=None):
        """Ps name -> its process's run id, as its own board has it; a ps that is not up is left out.

        Args:
          since: count only what a board has said after this moment of `awake_clock`; what it said before may be the last
            word of a process that has ended meanwhile.
        """
        runs = {}
        for link in self.links:
            record = link.read()[0].get(str(link.task))
            if link.is_up and record and (since is None or link.answered_after(since)):
                runs[str(link.task)] = record["run"]
        return runs

    def stop(self):
        """Ends the beats."""
        self._stopping.set()
        for wake in self._wake:
            wake.set()

    def _records(self):
        with self._lock:
            now = {"beat": time.time_ns() // 1000, "cpu_secs": round(cpu_secs(), 3)}
            own = {**self._fields, "key": str(self.task), **now}
            return [own, *self._extra.values()]

    def _exchange(self, link, timeout_secs=CALL_SECS):
        with link.calling:  # one call at a time, or an older record could overwrite a newer one
            records = self._records()
            if not self._is_admitted(link, records[0], timeout_secs):
                return False
            if link.admission.refusal is not None or not link.exchange(records, timeout_secs):
                return False
            link.admission.note_replaced(records[0], link.board.replaced)
            return True

    def _write_texts(self, link):
        """Those that this very process of the ps has not got; what fails is tried again after the next beat."""
        run = link.read()[0].get(str(link.task), {}).get("run")
        with self._lock:
            texts = self._texts
        for name, text in texts.items():
            if run is None or link.written.get(name) == (run, text):
                continue
            try:
                link.board.write_text(text_key(self.task, name), text, CALL_SECS)
            except BoardError:
                return
            link.written[name] = run, text

    def _is_admitted(self, link, own, timeout_secs):
        if self._cluster is None or link.admission.is_granted:
            return True
        if not link.exchange([], timeout_secs):
            return False
        first = self.links[0]
        link.admission.judge(own, self._cluster, link.read()[0], None if link is first else first.admission)
        if link is first and link.admission.is_granted:
            for wake in self._wake[1:]:
                wake.set()  # they have waited for this
        return link.admission.is_granted

    @property
    def is_admitted(self):
        """Whether every board takes this task."""
        return all(link.admission.is_granted for link in self.links)

    @property
    def refusal(self):
        """Why this task does not belong to the job, as a RefusedError, or None."""
        refusals = (link.admission.refusal for link in self.links)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _run(self, link, wake):
        while not self._stopping.is_set():
            try:
                if self._exchange(link):
                    self._write_texts(link)
            except Exception as error:  # thread boundary: a task without beats would be taken for dead
                link.reason = f"internal error: {error!r}"
                log.error("the board of %s: %r", link.task, error)
            wake.wait(BEAT_SECS)
            wake.clear()


def line_throttle(now):
    """When a line on a wait that begins now is due: after two seconds, and then every ten."""
    return Throttle(SILENCE_SECS, wait_first=True, now=now + 2 - SILENCE_SECS)


def wait_until(
    condition, describe, timeout_secs, guard=None, clock=awake_clock, sleep=time.sleep, advice="", deadline=None
):  # fmt: skip
    """Waits for `condition()`, never silently and never for ever.

    Args:
      condition: truthy when the wait is over; its value is returned.
      describe: says what is waited for, who and at which address; called when a line is due.
      timeout_secs: the bound.
      guard: whose decisions end the wait.
      clock, sleep: for tests.
      advice: what to do when it was in vain, a sentence.
      deadline: when the bound passes, if the wait began before.

    Raises:
      PeerLostError: the bound has passed; the message holds `describe()` and `advice`.
      StoppedError: a signal came.
    """
    start = clock() if deadline is None else deadline - timeout_secs
    throttle = line_throttle(clock())
    while True:
        value = condition()
        if value:
            return value
        if guard is not None:
            guard.check()
        now = clock()
        if now - start > timeout_secs:
            raise PeerLostError(
                f"gave up after {as_secs(timeout_secs)} s of waiting for {describe()}. {advice}".rstrip(". ")
            )
        if throttle.is_due(now):
            log.info(
                "waiting for %s: %.0f s so far, giving up after %s s", describe(), now - start, as_secs(timeout_secs)
            )  # fmt: skip
        sleep(0.1)


def restarted_ps(monitor):
    """Ps name -> run id, of each ps that is another process than the one on which the chief has brought the model up."""
    declared = monitor.view().record("model").get("ps_runs", {})
    return {name: run for name, run in monitor.ps_runs().items() if declared.get(name, run) != run}
