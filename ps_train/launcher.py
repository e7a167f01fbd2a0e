"""A whole cluster on this host: starts a process for each task, shows their progress, ends them, gives one status.

    status = run_local(config, num_ps=1, num_workers=2, roles=Roles(prepare, run_task, evaluate))

1. Directories are made, loopback ports reserved; TensorFlow is imported once, and every task forked from there
   (`process`), the evaluation, too: it waits for its turn, as nothing can be forked later, when gRPC's threads run here.
2. Twice a second the boards say how far the tasks are. What tasks warn of is shown, each thing once a minute at most.
3. A worker that a signal has ended, not the chief, is lost (`failures`): an async job, one with enough backup workers, or with
   `--on_worker_loss=continue` goes on without it. The boards are told, as it cannot do that itself any more.
4. The end is the first of
   - every task that is not lost has ended with 0: the held-out data is evaluated, and what to do next is printed;
   - another task has failed: it is the headline, and its status the launcher's; the others are ended;
   - SIGINT, SIGTERM or SIGHUP: status 128 + its number; the others are ended; a second one kills them.
   `job_end` has the order in which the others are ended: the workers first, so that the chief can save.
5. If this process is killed itself, the workers get a SIGTERM from the system and end in order, and the ps tasks a few
   seconds later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ps_train import checkpoints, command_lines, net, process
from ps_train.cluster import EVALUATOR, Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.devices import gpus_of
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, EXIT_SIGINT, UsageError
from ps_train.failures import End, Failure, Policy, describe_end
from ps_train.follower import Follower
from ps_train.job_end import JobEnd, Orders
from ps_train.line_logs import Warnings
from ps_train.local_config import fill_in, log_path, make_directories, report_path, unwritable_log
from ps_train.picture import Snapshot
from ps_train.process import SignalInbox, TaskProcess
from ps_train.progress import Screen
from ps_train.reports import Report
from ps_train.status_page import serving
from ps_train.summary import Summary
from ps_train.wording import counted

TICK_SECS = 0.1
PS_LINGER_SECS = 5.0
EVALUATING = "evaluating on held-out data"
IMPORTING = "importing TensorFlow, which takes some seconds"
TOO_EARLY = "Stopped by {} before the training began."


class Roles(NamedTuple):
    """What a task's process runs; each is called in a process of its own, apart from `prepare`.

    Attributes:
      prepare: imports everything that the others need, so that it is done once.
      run_task: (task, cluster, config) -> exit status.
      evaluate: (config) -> exit status; writes the metrics to the report file.
    """

    prepare: Callable[[], None]
    run_task: Callable[[TaskId, Cluster, TrainConfig], int]
    evaluate: Callable[[TrainConfig], int]


def run_local(config: TrainConfig, num_ps: int, num_workers: int, roles: Roles) -> int:
    """Runs a local cluster to its end.

    Args:
      config: what the user asked for.
      num_ps, num_workers: size.
      roles: what the processes run.

    Returns:
      int: the exit status.

    Raises:
      UsageError: a directory cannot be made, a file not be written, a process not be started.
    """
    asked, config = config, fill_in(config)

    def make(cluster: Cluster, screen: Screen) -> LocalCluster:
        return LocalCluster(config, cluster, roles, screen, Summary(asked, config, num_ps, num_workers))

    return run_cluster(config, num_ps, num_workers, make, Screen())


def run_cluster(
    config: TrainConfig,
    num_ps: int,
    num_workers: int,
    make: Callable[[Cluster, Screen], LocalCluster],
    screen: Screen,
) -> int:
    """Runs what `make` makes of a cluster on free ports, to its end; as `run_local`.

    Args:
      config: the settings, with their defaults.
      num_ps, num_workers: size.
      make: gives a LocalCluster that is not started yet.
      screen: for all output.
    """
    local = None
    try:
        make_directories(config)
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several tasks share this host's GPUs
        num_ps = 0 if config.has_no_ps else num_ps
        with net.reserve_ports(num_ps + num_workers) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            cluster = Cluster.from_hosts(
                ps=addresses[:num_ps], worker=addresses[num_ps:], is_colocated=config.has_no_ps
            )
            local = make(cluster, screen)
            local.start()
            # Not before: a task that is forked would keep the page's port.
            with serving(
                config.status_port, cluster, partial(screen.complain, goes_on=True), screen.complain
            ):
                return local.run()
    except KeyboardInterrupt:
        screen.complain(TOO_EARLY.format("SIGINT"))
        return EXIT_SIGINT
    finally:
        if local is not None:
            local.kill()
        screen.close()


class LocalCluster:
    """The processes of a cluster on this host, from start to status."""

    def __init__(self, config: TrainConfig, cluster: Cluster, roles: Roles, screen: Screen, summary: Summary):
        self._config, self._cluster, self._roles = config, cluster, roles
        self._screen, self._summary = screen, summary
        self._finished = checkpoints.finished_at(config.train_dir, config.train_steps)
        self._tasks: dict[TaskId, TaskProcess] = {}
        self._evaluation: TaskProcess | None = None
        self._policy = Policy(cluster, config)
        secs = config.shutdown_timeout_secs
        self._ending = JobEnd(self._policy, cluster.training_tasks, secs, secs, self._log_path_of)
        self._warnings = Warnings()
        self._follower = Follower(cluster, config)

    # The start.

    def start(self) -> None:
        """Starts every task, or none if the target has been reached before; the evaluation is held."""
        if process.can_fork() and (self._config.evaluate or not self._finished):
            with process.leaving_at_signals(lambda name: self._screen.complain(TOO_EARLY.format(name))):
                self._screen.show(Snapshot(message=IMPORTING), is_urgent=True)
                self._roles.prepare()
        for task in self._cluster.tasks:
            if self._finished:
                self._report_finished(task, self._finished)
            else:
                self._tasks[task] = self._start_task(task)
        if self._config.evaluate:
            config = self._config_of(EVALUATOR)
            path = log_path(config, EVALUATOR)
            with starting(EVALUATOR, path):
                self._evaluation = process.start(
                    str(EVALUATOR), lambda: self._roles.evaluate(config), ["eval", *config.as_flags()],
                    path, is_held=True,
                )  # fmt: skip

    def _start_task(self, task: TaskId) -> TaskProcess:
        config = self._config_of(task)
        args = command_lines.of_a_task(task, self._cluster, config)
        path = log_path(config, task)
        with starting(task, path):
            return process.start(
                str(task), lambda: self._roles.run_task(task, self._cluster, config), args, path,
                linger_secs=PS_LINGER_SECS if task.job == "ps" else 0.0,
            )  # fmt: skip

    def _report_finished(self, task: TaskId, checkpoint: str) -> None:
        """What the task itself would report; those in `log_dir` stay those of the run that trained."""
        if self._config.report_file is not None:
            report = Report(task, is_chief=self._cluster.is_chief(task))
            step = checkpoints.checkpoint_step(checkpoint)
            report.note_finished(checkpoint, self._config.train_steps, step)
            report.write(self._config_of(task).report_file, EXIT_DONE)

    def _config_of(self, task: TaskId) -> TrainConfig:
        path = report_path(self._config, task, is_chief=self._cluster.is_chief(task))
        try:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)  # an earlier run's
        except OSError as error:
            flag = "log_dir" if self._config.report_file is None else "report_file"
            raise UsageError(
                f"The report {path} cannot be written: {error.strerror}. Choose another --{flag}."
            ) from None
        config = dataclasses.replace(self._config, report_file=path, status_port=None)
        if config.gpus is None or task not in self._cluster.training_tasks:
            return config
        number, workers = self._cluster.shard_index(task), self._cluster.num_workers
        return dataclasses.replace(config, gpus=gpus_of(config.gpus, number, workers))

    # The run.

    def run(self) -> int:
        """Follows the tasks to their end; the exit status."""
        with SignalInbox() as inbox:
            if self._tasks and not process.can_fork():
                self._roles.prepare()  # the spawned tasks import at the same time
            while len(self._policy.ends) < len(self._tasks):
                self._tick(inbox)
            self._follower.close()
            if self._tasks:
                self._show(is_urgent=True)
            return self._conclude(inbox)

    def _conclude(self, inbox: SignalInbox) -> int:
        """Says how it went; the exit status."""
        number, failure = self._ending.signal, self._ending.failure
        if number is not None:
            self._screen.complain(f"Stopped by {process.signal_name(number)}.")
        if number is not None or failure is not None:
            can_go_on = failure is None or not failure.is_permanent
            self._screen.complain(self._summary.saved(self._last_step(), can_go_on=can_go_on))
            return self._ending.status
        if self._finished:
            self._screen.say(self._summary.nothing_left(self._finished))
        else:
            self._say_trained()
        status = self._evaluate(inbox) if self._evaluation else EXIT_DONE
        if status == EXIT_DONE:
            self._screen.say("\n" + self._summary.what_next())
        return status

    def _last_step(self) -> int | None:
        return self._follower.last_step()

    def _say_trained(self) -> None:
        self._screen.say(self._summary.trained(self._follower.report(self._cluster.chief_task)))
        for task, end in self._policy.lost.items():
            steps = self._follower.local_steps(task)
            when = (
                "before its first step"
                if steps is None
                else f"after about {counted(steps, 'step')} of its own"
            )
            self._screen.say(f"{task} was lost {when}: {end.reason}. Its log: {self._tasks[task].log_path}")
        num_lost, num_workers = len(self._policy.lost), self._cluster.num_workers
        quorum = self._config.replicas_to_aggregate or num_workers
        if self._config.update == "sync" and num_workers - num_lost < quorum:
            which = "it" if num_lost == 1 else "them"
            self._screen.say(
                f"Without {which} an update could take at most {num_workers - num_lost} of {counted(quorum, 'gradient')}."
            )

    def kill(self) -> None:
        """Ends whatever still runs, at once."""
        for running in [*self._tasks.values(), *([self._evaluation] if self._evaluation else [])]:
            running.kill()

    def _tick(self, inbox: SignalInbox) -> None:
        for number in inbox.wait(TICK_SECS):
            self._on_signal(number, time.monotonic())
        for task, running in self._tasks.items():
            if task not in self._policy.ends and running.poll() is not None:
                self._note_end(self._end_of(task))
        self._steer(time.monotonic())
        self._tell_warnings(time.monotonic())  # after the failure that they may be about
        self._follower.look(time.monotonic(), self._policy.ends)
        self._show()

    def _tell_warnings(self, now: float) -> None:
        """Says what tasks warn of, until they are to end: what one has said, others need not say, too."""
        if self._ending.is_asked or self._ending.is_resting:
            return
        for task, running in self._tasks.items():
            for line in running.new_lines():
                found = self._warnings.find(task, line, now)
                if found:
                    self._complain_of(found)

    def _complain_of(self, warning: str) -> None:
        self._screen.complain(warning, goes_on=True)

    def _show(self, is_urgent: bool = False) -> None:
        self._screen.show(self._snapshot(), is_urgent)

    def _snapshot(self) -> Snapshot:
        return self._follower.snapshot({task: running.status for task, running in self._tasks.items()})

    def _on_signal(self, number: int, now: float) -> None:
        self._send(self._ending.hear(number, self._tasks, now))

    def _steer(self, now: float) -> None:
        """Decides, after each look, whether something is to be ended."""
        had_failed = self._ending.failure is not None
        orders = self._ending.steer(self._tasks, now)
        if self._ending.failure is not None and not had_failed:
            self._show(is_urgent=True)
            self._screen.complain(str(self._ending.failure), goes_on=True)
        self._send(orders)

    def _send(self, orders: Orders) -> None:
        for task, number in orders:
            if number == signal.SIGKILL:
                self._tasks[task].kill()
            else:
                self._tasks[task].send(number)

    def _note_end(self, end: End) -> None:
        """Takes in a task's end: the job goes on if it can do without it."""
        if self._policy.note(end, is_ending=self._ending.is_asked):
            self._follower.note_lost(end.task, end.status, end.reason)
            self._screen.complain(
                f"{end.task} is lost: {end.reason}. The job goes on without it.", goes_on=True
            )

    def _end_of(self, task: TaskId) -> End:
        running = self._tasks[task]
        assert running.status is not None
        reported = self._follower.report(task).get("reason")
        reason = describe_end(reported, running.ended_by, running.last_line())
        return End(task, running.status, reason, self._about_log(running), running.ended_by)

    def _log_path_of(self, task: TaskId) -> str:
        return self._tasks[task].log_path

    def _about_log(self, running: TaskProcess) -> str:
        if running.has_traceback():
            return f"{running.log_path}, with a traceback"
        could_tell_more = running.status == EXIT_PERMANENT and not running.name.startswith("ps:")
        if could_tell_more and not self._config.debug:
            return f"{running.log_path}; --debug adds the traceback"
        return running.log_path

    def _evaluate(self, inbox: SignalInbox) -> int:
        evaluation = self._evaluation
        assert evaluation is not None
        self._screen.show(Snapshot(message=EVALUATING), is_urgent=True)
        with starting(EVALUATOR, evaluation.log_path):
            evaluation.release()
        while evaluation.poll() is None:
            self._screen.show(Snapshot(message=EVALUATING))
            for number in inbox.wait(TICK_SECS):
                evaluation.kill()
                self._screen.complain(f"Evaluation stopped by {process.signal_name(number)}.")
                self._screen.complain(self._summary.saved())
                return 128 + number
        report = self._follower.report(EVALUATOR)
        if evaluation.status != EXIT_DONE:
            status = evaluation.status or EXIT_PERMANENT
            reason = report.get("reason") or evaluation.last_line()
            self._screen.complain(str(Failure("The evaluation", status, reason, self._about_log(evaluation))))
            return status
        self._screen.say(self._summary.evaluated(report))
        return EXIT_DONE


@contextlib.contextmanager
def starting(task: TaskId, path: str) -> Iterator[None]:
    """Tells what keeps a task, whose log is at `path`, from being started."""
    try:
        yield
    except OSError as error:
        if error.filename == path:
            raise unwritable_log(path, task, error) from None
        raise UsageError(
            f"No process can be started for {task}: {error.strerror}. Expected this host to have room for one more. "
            "Check its memory and the limit of processes (ulimit -u)."
        ) from None
