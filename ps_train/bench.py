"""`ps_train bench`: a local cluster that trains for some seconds, measured by its own tasks; a table, a verdict, an end.

    status = run_bench(config, num_ps=1, num_workers=2, roles=roles, bench_secs=15.0, is_json=False, report_file=None)

1. The tasks are started as `launcher` starts them, with `--profile_steps`; nothing is saved.
2. Each worker tells the boards for how long it has measured by now. When all have for `bench_secs`, with MIN_TRACES steps
   traced, or their data is used up, the tasks are ended in order.
3. The workers' reports hold their profiles, those of the ps tasks their processor time. `conclude` puts them together; who gave
   none, as a task that was killed, is named.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from ps_train import profile_table
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT
from ps_train.launcher import LocalCluster, Roles, run_cluster
from ps_train.picture import Snapshot
from ps_train.process import SignalInbox
from ps_train.profile import Profile
from ps_train.progress import Screen
from ps_train.summary import Summary
from ps_train.verdict import group_shares, judge
from ps_train.whole_files import as_json, write_report

MIN_TRACES = 3
NOTHING_SAVED = "no --train_dir: nothing is saved"
NOTHING_TRACED = "No step was traced: the data was used up too soon. Have input_fn repeat() it, or give a smaller --batch_size."


def run_bench(
    config: TrainConfig,
    num_ps: int,
    num_workers: int,
    roles: Roles,
    bench_secs: float,
    is_json: bool = False,
    report_file: str | None = None,
) -> int:
    """Measures; the exit status.

    Args:
      config: the settings of the tasks, with profile_steps and log_dir.
      num_ps, num_workers: size.
      roles: what the processes run.
      bench_secs: how long to measure.
      is_json: print JSON, and nothing else, to stdout.
      report_file: where to write the same.

    Raises:
      UsageError: a directory cannot be made, a file not be written, a process not be started.
    """
    screen = _Silent() if is_json else Screen()
    summary = Summary(config, config, num_ps, num_workers)
    made: list[Bench] = []

    def make(cluster: Any, screen: Screen) -> Bench:
        made.append(Bench(bench_secs, config, cluster, roles, screen, summary))
        return made[-1]

    status = run_cluster(config, num_ps, num_workers, make, screen)
    if status != EXIT_DONE or not made[0].profiles:
        return status
    found = conclude(made[0].profiles, made[0].cpu_secs)
    if report_file is not None:
        write_report(report_file, found)
    if is_json:
        print(as_json(found), flush=True)
    return status


def conclude(profiles: Mapping[str, Profile], cpu_secs: Mapping[str, float | None]) -> dict[str, Any]:
    """What the report file holds.

    Args:
      profiles: name of each worker -> Profile.
      cpu_secs: name of each task -> processor seconds in which it trained or served.
    """
    known = list(profiles.values())
    verdict = judge(known)
    return {
        "verdict": verdict.kind,
        "why": verdict.why,
        "advice": list(verdict.advice),
        "shares": group_shares(known),
        "steps_per_sec": sum(profile.steps_per_sec for profile in known),
        "workers": {name: profile.as_dict() for name, profile in profiles.items()},
        "cpu_secs": dict(cpu_secs),
    }


class Bench(LocalCluster):
    """The cluster, from its start to the table.

    Args:
      bench_secs: how long to measure.
      *args: a LocalCluster's.

    Attributes:
      profiles: at the end: name of each worker -> Profile.
      cpu_secs: at the end: name of each task -> processor seconds in which it trained or served.
    """

    def __init__(self, bench_secs: float, *args: Any):
        super().__init__(*args)
        self._bench_secs = bench_secs
        self.profiles: dict[str, Profile] = {}
        self.cpu_secs: dict[str, float | None] = {}

    def _tick(self, inbox: SignalInbox) -> None:
        super()._tick(inbox)
        if not self._ending.is_asked and self._is_measured():
            self._send(self._ending.ask(signal.SIGTERM, self._tasks, time.monotonic()))

    def _is_measured(self) -> bool:
        return all(
            task in self._policy.ends or self._has_enough(self._follower.records.get(str(task), {}))
            for task in self._cluster.training_tasks
        )

    def _has_enough(self, record: Mapping[str, Any]) -> bool:
        return record.get("profiled_secs", 0.0) >= self._bench_secs and record.get("traces", 0) >= MIN_TRACES

    def _complain_of(self, line: str) -> None:
        if NOTHING_SAVED not in line:
            super()._complain_of(line)

    def _show(self, is_urgent: bool = False) -> None:
        snapshot = self._snapshot()
        self._screen.show(
            snapshot._replace(is_ended=True), is_urgent
        )  # it has no target and does end by itself

    def _conclude(self, inbox: SignalInbox) -> int:
        if self._ending.signal is not None or self._ending.failure is not None:
            return super()._conclude(inbox)
        reports = {str(task): self._follower.report(task) for task in self._cluster.tasks}
        found = {name: report["profile"] for name, report in reports.items() if report.get("profile")}
        missing = self._missing(reports)
        if not found and all(reports.values()):
            missing = [NOTHING_TRACED]
        for line in missing:
            self._screen.complain(line)
        if not found:
            return EXIT_PERMANENT
        self.profiles = {name: Profile.from_dict(values) for name, values in found.items()}
        self.cpu_secs = {name: report.get("cpu_secs") for name, report in reports.items()}
        profiles = list(self.profiles.values())
        text = [
            *profile_table.lines(profiles),
            *judge(profiles).lines(),
            f"Logs and reports: {self._config.log_dir}",
        ]
        self._screen.say("\n".join(text))
        return EXIT_DONE

    def _missing(self, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """A line for each task that is not in the figures."""
        lines = []
        for task, end in self._policy.ends.items():
            report = reports[str(task)]
            if report and (report.get("profile") or task not in self._cluster.training_tasks):
                continue
            what = "traced no step" if report else "gave no report"
            lines.append(f"{task} {what}: {end.reason}. Its log: {end.log}")
        return lines


class _Silent(Screen):
    """Only complaints."""

    def show(self, snapshot: Snapshot, is_urgent: bool = False) -> None:
        """Nothing."""

    def say(self, text: str = "", goes_on: bool = False) -> None:
        """Nothing."""
