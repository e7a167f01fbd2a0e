"""Has a worker measure its own steps, for `--profile_steps`: traces some of them, and probes the links before the first.

    profiler = Profiler(runtime, config)             # while the graph can be changed
    runner = ProfilingRunner(profiler, ops, step_hook, fetches)        # in place of StepRunner
    with session.make(..., step_runner=runner) as sess, profiler:
        profiler.probe_links(sess, step_hook)
        runner.loop(sess)

1. When the session is there, the worker waits until all workers of the cluster have come, or GATE_SECS, and those of them that
   profile, as their records say, probe their links, one after the other. Nobody that profiles makes a step before all have.
2. After WARM_STEPS and WARM_SECS, steps are timed, and now and then one is traced, with MIN_BETWEEN steps and MIN_BETWEEN_SECS
   between two, and longer ones the more there are: however long the job is, the traces are spread evenly over it
   (`profile.Evenly`).
3. At the end the profile goes into the report, and with its verdict into the log.
"""

import contextlib
import statistics
import time
from typing import Any

from ps_train import profile_table, step_trace
from ps_train.addresses import split_address
from ps_train.cluster import ENDED, UP
from ps_train.liveness import line_throttle
from ps_train.logs import log
from ps_train.net import is_own_address
from ps_train.probe import LinkProbe
from ps_train.processors import cpu_secs, num_cores
from ps_train.profile import (
    Evenly,
    Profile,
    PsFigures,
    Settings,
    least_wait,
    mean_parts,
    spread,
    usual_traffic,
)
from ps_train.traced_steps import TracedStepRunner
from ps_train.verdict import judge

GATE_SECS = 30.0
WARM_STEPS, WARM_SECS = 3, 2.0
MIN_BETWEEN, MIN_BETWEEN_SECS = 2, 0.25
MAX_TIMES = 1000
PROBING, PROBED = "probing", "probed"


class Profiler:
    """What is measured, and what becomes of it.

    Args:
      runtime: session.TaskRuntime.
      config: TrainConfig, with profile_steps.
      clock, sleep: for tests.
    """

    def __init__(self, runtime, config, clock=time.perf_counter, sleep=time.sleep):
        self._runtime, self._clock, self._sleep = runtime, clock, sleep
        self._context, self._monitor = runtime.context, runtime.monitor
        self._probe = LinkProbe(runtime.context)
        self._link_rates = {}
        self._is_probe_alone = True
        self._traces: Evenly[step_trace.StepTrace] = Evenly(config.profile_steps)
        self._traced_times: Evenly[float] = Evenly(MAX_TIMES)
        self._times: Evenly[float] = Evenly(MAX_TIMES)
        self._num_timed, self._timed_secs = 0, 0.0
        self._warm_steps, self._warm_at = 0, None
        self._since_trace, self._traced_at = 0, float("-inf")
        self._first: Any = None  # look at the boards
        self._last: Any = None
        self._monitor.post(profile=PROBING)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()

    # Before the first step.

    def probe_links(self, sess, step_hook):
        """Measures each link, when it is this worker's turn.

        Args:
          sess: `tf1.train.MonitoredSession`.
          step_hook: StepHook, which knows the raw session.
        """
        tasks = self._context.cluster.training_tasks
        self._wait_for("start of", lambda: [task for task in tasks if not self._is_decided(task)])
        before = tasks[: tasks.index(self._context.task)]
        self._wait_for("probe of the links by", lambda: self._probing(before))
        others = [self._record(task) for task in tasks if task != self._context.task]
        self._is_probe_alone = not any(r.get("local_steps") and r.get("state") == "training" for r in others)

        def probe(step_context):
            self._link_rates = self._probe.run(step_hook.session)

        sess.run_step_fn(probe)
        self._monitor.post(profile=PROBED)
        self._wait_for("probe of the links by", lambda: self._probing(tasks))

    def _probing(self, tasks):
        return [task for task in tasks if self._record(task).get("profile") == PROBING]

    def _is_decided(self, task):
        """Whether it is known if a worker profiles: it says so before it has a session."""
        record = self._record(task)
        return bool(record.get("profile")) or record.get("state") in (*UP, *ENDED)

    def _record(self, task):
        own = task == self._context.task
        return {"profile": self._monitor.get("profile")} if own else self._monitor.view().record(str(task))

    def _wait_for(self, what, find_missing):
        """Waits until `find_missing` gives no task any more, for GATE_SECS at most."""
        start = self._clock()
        line_due = line_throttle(start)
        while (missing := find_missing()) and (now := self._clock()) < start + GATE_SECS:
            self._runtime.guard.check()
            if line_due.is_due(now):
                cluster = self._context.cluster
                named = ", ".join(f"{task} at {cluster.address(task)}" for task in missing)
                log.info(
                    "waiting for the %s %s: %.0f s so far, going on after %g s",
                    what,
                    named,
                    now - start,
                    GATE_SECS,
                )
            self._sleep(0.05)

    # In each step.

    def start_session(self):
        """A new session has begun: its first steps are slow."""
        self._warm_steps, self._warm_at = 0, None

    def wants_trace(self):
        """Whether the next step is to be traced."""
        is_time = self._clock() >= self._traced_at + MIN_BETWEEN_SECS * self._traces.stride
        return self._is_warm and self._since_trace >= MIN_BETWEEN and is_time

    @property
    def _is_warm(self):
        return (
            self._warm_at is not None
            and self._warm_steps > WARM_STEPS
            and self._clock() > self._warm_at + WARM_SECS
        )

    def note_step(self, secs):
        """A step that was not traced."""
        self._warm_steps += 1
        self._warm_at = self._warm_at or self._clock()
        if not self._is_warm:
            return
        if self._first is None:
            self._first = self._look()
        self._since_trace += 1
        self._times.add(secs)
        self._num_timed, self._timed_secs = self._num_timed + 1, self._timed_secs + secs

    def note_trace(self, secs, step_stats):
        """A step that was traced."""
        self._traces.append(
            step_trace.read(step_stats, str(self._context.cluster.server_task(self._context.task)))
        )
        self._traced_times.add(secs)
        self._last = self._look()
        self._since_trace, self._traced_at = 0, self._clock()
        self._monitor.post(profiled_secs=self._last.secs - self._first.secs, traces=len(self._traces.values))
        self.tell()

    def tell(self):
        """Has the boards know of the profile so far: the parts of a step, and bytes from and to each ps."""
        if self._traces.values:
            traffic = usual_traffic(self._traces.values)
            self._monitor.post(
                parts=mean_parts(self._traces.values, statistics.median(self._times.values)),
                traffic={name: [each.pulled_bytes, each.pushed_bytes] for name, each in traffic.items()},
            )

    def _look(self):
        return _Look(self._monitor.view().records, self._clock())

    # At the end.

    def finish(self):
        """Makes the profile, if anything was traced: for the report, and as a table in the log."""
        if not self._traces.values:
            log.warning("no step was traced: the training was too short for --profile_steps")
            return
        profile = self._summarize()
        self._runtime.report.profile = profile.as_dict()
        verdict = judge([profile])
        for line in [*profile_table.lines([profile]), *verdict.lines()]:
            log.info("%s", line)

    def _summarize(self):
        traces = self._traces.values
        step_secs = statistics.median(self._times.values)
        cores_used = self._first.cores_used_until(self._last)
        return Profile(
            worker=str(self._context.task),
            num_traces=len(traces),
            secs=self._last.secs - self._first.secs,
            step_secs=step_secs,
            traced_step_secs=statistics.median(self._traced_times.values),
            steps_per_sec=self._num_timed / self._timed_secs,
            parts=mean_parts(traces, step_secs),
            least_wait_secs=least_wait(traces),
            cores_used=(self._last.cpu_secs - self._first.cpu_secs) / (self._last.secs - self._first.secs),
            cores=num_cores(),
            is_probe_alone=self._is_probe_alone,
            settings=_settings(self._context),
            ps={
                name: self._ps_figures(name, traffic, cores_used)
                for name, traffic in usual_traffic(traces).items()
            },
            rates=self._first.rates_until(self._last),
            step_cv=spread(self._times.values),
        )

    def _ps_figures(self, name, traffic, cores_used):
        link = next(link for link in self._monitor.links if str(link.task) == name)
        pull, push = self._link_rates.get(name, (None, None))
        cores = self._monitor.view().record(name).get("cores")
        return PsFigures(traffic, pull, push, cores_used.get(name), cores, _is_local(link.address))


class _Look:
    """The boards at a moment: processor seconds and steps of the tasks, each with its own task's time."""

    def __init__(self, records, secs):
        self.secs, self.cpu_secs = secs, cpu_secs()
        self._records = records

    def cores_used_until(self, later):
        """Name -> processors that it kept busy, of each task whose record tells."""
        return self._slopes(later, "cpu_secs")

    def rates_until(self, later):
        """Name -> its own steps a second."""
        return self._slopes(later, "local_steps")

    def _slopes(self, later, field):
        found = {}
        for name, record in later._records.items():
            before = self._records.get(name, {})
            if None in (record.get(field), before.get(field)) or record.get("run") != before.get("run"):
                continue
            secs = (record["beat"] - before["beat"]) / 1e6
            if secs > 0:
                found[name] = (record[field] - before[field]) / secs
        return found


class ProfilingRunner(TracedStepRunner):
    """A StepRunner that times every step, and traces those that its Profiler wants."""

    def __init__(self, profiler, *args, clock=time.perf_counter, **kwargs):
        super().__init__(*args, **kwargs)
        self._profiler, self._clock = profiler, clock
        self._begun: Any = None  # the session

    def _run_one(self, step_context):
        if self._begun is not self._session:
            self._begun = self._session
            self._profiler.start_session()
        is_traced = self._profiler.wants_trace() and (self._always or not self._wants_hooks())
        start = self._clock()
        if is_traced:
            found: list[Any] = []
            self._run_one_traced(step_context, found)
            self._profiler.note_trace(self._clock() - start, found[0].step_stats)
        else:
            super()._run_one(step_context)
            self._profiler.note_step(self._clock() - start)

    def _note_end(self):
        self._profiler.tell()


def _settings(context):
    return Settings(
        update=context.update,
        num_ps=context.cluster.num_ps,
        num_workers=context.cluster.num_workers,
        quorum=context.quorum,
        is_colocated=context.cluster.is_colocated,
        first_ps_bytes=context.first_ps_bytes,
        partition=context.partition,
        wire_dtype=context.wire_dtype,
        prefetch=context.prefetch,
        pack_bytes=context.pack_bytes,
        fuse_bytes=context.fuse_bytes,
        bucket_bytes=context.bucket_bytes,
    )


def _is_local(address):
    with contextlib.suppress(OSError):
        return is_own_address(split_address(address)[0])
    return False
