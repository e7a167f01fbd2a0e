"""Stand-ins with a clock of their own for what the control logic looks at: boards, views, monitors, guards."""

from ps_train.cluster import Cluster, TaskId
from ps_train.reports import Report
from ps_train.session import Timeouts
from ps_train.task_context import TaskContext


class Clock:
    """Seconds that pass only when told; `sleep` tells it."""

    def __init__(self, now=1000.0):
        self.now = now
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, secs):
        self.slept.append(secs)
        self.now += secs


class FakeView:
    """What the boards say: records by key, and each one's age in seconds (0 where not given)."""

    def __init__(self, records=None, ages=None):
        self.records = {key: {"key": key, **record} for key, record in (records or {}).items()}
        self._ages = ages or {}

    def record(self, key):
        return self.records.get(str(key), {})

    def age(self, key):
        return self._ages.get(str(key), 0.0 if str(key) in self.records else float("inf"))


class FakeLink:
    def __init__(self, task, address, silent_secs=0.0, reason="connection refused (nothing listens there)"):
        self.task, self.address, self.reason, self._silent_secs = task, address, reason, silent_secs

    def silent_secs(self):
        return self._silent_secs


class FakeMonitor:
    """Keeps what is posted; shows `shown`, a FakeView that a test may replace."""

    def __init__(self, view=None, links=(), **fields):
        self.shown, self.links, self.fields = view or FakeView(), list(links), fields
        self.refusal = None

    def view(self):
        return self.shown

    def ps_runs(self, since=None):
        return {}

    def get(self, field):
        return self.fields.get(field)

    def post(self, **fields):
        self.fields.update(fields)


class FakeGuard:
    """Has decided what it is told to have decided."""

    def __init__(self, error=None, stop_signal=None):
        self.error, self.stop_signal, self.failure = error, stop_signal, None

    @property
    def should_stop(self):
        return self.error is not None or self.failure is not None

    def check(self):
        if self.error is not None:
            raise self.error


class FakeRuntime:
    """A task's runtime with fakes in it."""

    def __init__(
        self, task, cluster=None, monitor=None, update="async", quorum=None, on_worker_loss="fail", **timeouts
    ):
        self.cluster = cluster or Cluster.from_hosts("p0:1,p1:1", "w0:1,w1:1,w2:1")
        self.context = TaskContext(TaskId.from_string(task), self.cluster, update, quorum, on_worker_loss)
        self.report = Report(self.context.task)
        self.graph = None
        self.monitor = monitor or FakeMonitor(state="training")
        self.timeouts = Timeouts(**timeouts)
        self.lenders = frozenset()
        self.left, self.short_since, self.short_line_due = set(), None, None
        self.peers = None
        self.is_vacant = lambda names: False
