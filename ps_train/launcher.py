"""A whole cluster on this host: starts a process for each task, shows their progress, ends them, gives one status.

    status = run_local(config, num_ps=1, num_workers=2, roles=Roles(prepare, run_task, evaluate))

1. Directories are made, loopback ports reserved; TensorFlow is imported once, and every task forked from there
   (`process`), the evaluation, too: it waits for its turn, as nothing can be forked later, when gRPC's threads run here.
2. Twice a second the board of ps:0 says how far the workers are.
3. The end is the first of
   - every task has ended with 0: the held-out data is evaluated, and what to do next is printed;
   - a task has failed: it is the headline, and its status the launcher's; the others are ended;
   - SIGINT, SIGTERM or SIGHUP: status 128 + its number; the others are ended; a second one kills them.
   To end the others: the workers get the signal first, so that the chief can save, and then the ps tasks. What still runs
   `shutdown_timeout_secs` later is killed.
4. If this process is killed itself, the workers get a SIGTERM from the system and end in order, and the ps tasks a few
   seconds later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ps_train import checkpoints, command_lines, net, process
from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, EXIT_SIGINT, UsageError
from ps_train.process import SignalInbox, TaskProcess
from ps_train.progress import Rate, Row, Screen, Snapshot

BUILTIN_MODEL = "ps_train.builtin_model"
BUILTIN_STEPS = 1000
EVALUATOR = TaskId("evaluator", 0)
TICK_SECS = 0.1
LOOK_SECS = 0.5
BOARD_CALL_SECS = 1.0
PS_LINGER_SECS = 5.0
MAX_EXAMPLE_LINES = 6

# How `worker` and `ps` begin the reason of a task that ends only because another has failed.
_ANOTHER_FAILED = re.compile(r"((?:ps|worker|chief):\d+) failed: ")


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
      UsageError: a directory cannot be made.
    """
    asked, config = config, fill_in(config)
    _make_directories(config)
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several tasks share this host's GPUs
    screen = Screen()
    local = None
    try:
        with net.reserve_ports(num_ps + num_workers) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            cluster = Cluster.from_hosts(ps=addresses[:num_ps], worker=addresses[num_ps:])
            local = LocalCluster(asked, config, cluster, roles, screen)
            local.start()
            return local.run()
    except KeyboardInterrupt:
        screen.complain("Stopped by SIGINT before the training began.")
        return EXIT_SIGINT
    finally:
        if local is not None:
            local.kill()
        screen.close()


def fill_in(config: TrainConfig, now: float | None = None) -> TrainConfig:
    """The settings with a local cluster's defaults: a target for the built-in model, directories."""
    is_builtin = config.model in (None, BUILTIN_MODEL)
    train_dir = config.train_dir
    if train_dir is None:
        name = "digits" if is_builtin else re.sub(r"\.py$", "", os.path.basename(config.model or ""))
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
        train_dir = _unused(os.path.join("ps_train_runs", f"{name.rsplit('.', 1)[-1]}-{stamp}"))
    log_dir = config.log_dir
    if log_dir is None:
        here = os.path.basename(train_dir.rstrip("/")) if "://" in train_dir else train_dir
        log_dir = os.path.join(here, "logs")
    return dataclasses.replace(
        config, train_dir=train_dir, log_dir=log_dir,
        train_steps=config.train_steps or (BUILTIN_STEPS if is_builtin else None),
        evaluate=is_builtin if config.evaluate is None else config.evaluate,
    )  # fmt: skip


def _unused(path: str) -> str:
    candidate, number = path, 2
    while os.path.exists(candidate):
        candidate, number = f"{path}-{number}", number + 1
    return candidate


def _make_directories(config: TrainConfig) -> None:
    for flag in ("train_dir", "log_dir"):
        path = getattr(config, flag)
        if "://" in path:
            continue
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"The directory {path} cannot be made: {error.strerror}. Choose another --{flag}."
            ) from None


def report_path(config: TrainConfig, task: TaskId, is_chief: bool = False) -> str:
    """Where a task of a local cluster reports: the chief at --report_file, the others beside it; else in `log_dir`."""
    if config.report_file is None:
        return os.path.join(config.log_dir or "", f"{task.job}{task.index}.json")
    if is_chief:
        return config.report_file
    stem, extension = os.path.splitext(config.report_file)
    return f"{stem}.{task.job}{task.index}{extension}"


class Failure(NamedTuple):
    """The task that failed first."""

    name: str
    status: int
    reason: str
    log_path: str

    def __str__(self) -> str:
        """The headline."""
        return f"{self.name} failed (status {self.status}): {self.reason}\nIts log: {self.log_path}"


class BoardWatch:
    """What the tasks last said on ps:0's board; a board that does not answer leaves it as it was."""

    def __init__(self, address: str, ps: TaskId):
        self._address, self._ps = address, ps
        self._board: Any = None
        self._looked_at = float("-inf")
        self.records: dict[str, dict[str, Any]] = {}

    def look(self, now: float) -> bool:
        """Reads the board if that is due; whether there is news."""
        from ps_train.board import Board, BoardError

        if now - self._looked_at < LOOK_SECS:
            return False
        self._looked_at = now
        self._board = self._board or Board(self._address, self._ps)
        try:
            self.records = self._board.exchange([], timeout_secs=BOARD_CALL_SECS)
        except BoardError:
            return False
        return True

    def close(self) -> None:
        """Ends the connection."""
        if self._board is not None:
            self._board.close()


class LocalCluster:
    """The processes of a cluster on this host, from start to status."""

    def __init__(
        self, asked: TrainConfig, config: TrainConfig, cluster: Cluster, roles: Roles, screen: Screen
    ):
        self._asked, self._config, self._cluster = asked, config, cluster
        self._roles, self._screen = roles, screen
        self._finished = checkpoints.finished_at(config.train_dir, config.train_steps)
        self._tasks: dict[TaskId, TaskProcess] = {}
        self._evaluation: TaskProcess | None = None
        self._ended: list[TaskId] = []  # in order
        self._signal: int | None = None
        self._failure: Failure | None = None
        self._deadline: float | None = None  # of an end that has been asked for
        self._suspected_at: float | None = None
        self._watch = BoardWatch(cluster.address(cluster.ps_tasks[0]), cluster.ps_tasks[0])
        self._rate = Rate()
        self._rate_value: float | None = None

    # The start.

    def start(self) -> None:
        """Starts every task, or none if the target has been reached before; the evaluation is held."""
        if process.can_fork() and (self._config.evaluate or not self._finished):
            self._screen.show(Snapshot(message="importing TensorFlow"), is_urgent=True)
            self._roles.prepare()
        for task in () if self._finished else self._cluster.tasks:
            self._tasks[task] = self._start_task(task)
        if self._config.evaluate:
            config = self._config_of(EVALUATOR)
            self._evaluation = process.start(
                str(EVALUATOR), lambda: self._roles.evaluate(config), ["eval", *config.as_flags()],
                self._log_path(EVALUATOR), is_held=True,
            )  # fmt: skip

    def _start_task(self, task: TaskId) -> TaskProcess:
        config = self._config_of(task)
        hosts = {job: ",".join(addresses.values()) for job, addresses in self._cluster.as_dict().items()}
        place = [f"--job_name={task.job}", f"--task_index={task.index}", "--cluster_resolver=flags"]
        place += [f"--{job}_hosts={addresses}" for job, addresses in hosts.items()]
        return process.start(
            str(task), lambda: self._roles.run_task(task, self._cluster, config), [*place, *config.as_flags()],
            self._log_path(task), linger_secs=PS_LINGER_SECS if task.job == "ps" else 0.0,
        )  # fmt: skip

    def _config_of(self, task: TaskId) -> TrainConfig:
        path = report_path(self._config, task, is_chief=task == self._cluster.chief_task)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)  # an earlier run's
        return dataclasses.replace(self._config, report_file=path)

    def _log_path(self, task: TaskId) -> str:
        return os.path.join(self._config.log_dir or "", f"{task.job}{task.index}.log")

    # The run.

    def run(self) -> int:
        """Follows the tasks to their end; the exit status."""
        with SignalInbox() as inbox:
            if self._tasks and not process.can_fork():
                self._roles.prepare()  # the spawned tasks import at the same time
            while len(self._ended) < len(self._tasks):
                self._tick(inbox)
            self._watch.close()
            if self._tasks:
                self._screen.show(self._snapshot(), is_urgent=True)
            if self._signal is not None:
                self._tell_stop()
                return 128 + self._signal
            if self._failure is not None:
                self._tell_checkpoint()
                return self._failure.status
            self._tell_success()
            status = self._evaluate(inbox) if self._evaluation else EXIT_DONE
            if status == EXIT_DONE:
                self._tell_what_next()
            return status

    def kill(self) -> None:
        """Ends whatever still runs, at once."""
        for running in [*self._tasks.values(), *([self._evaluation] if self._evaluation else [])]:
            running.kill()

    def _tick(self, inbox: SignalInbox) -> None:
        for number in inbox.wait(TICK_SECS):
            self._on_signal(number)
        self._ended += [t for t, p in self._tasks.items() if t not in self._ended and p.poll() is not None]
        self._steer(time.monotonic())
        if self._cluster.ps_tasks[0] not in self._ended and self._watch.look(time.monotonic()):
            step = self._step()
            self._rate_value = self._rate.update(step, time.monotonic()) if step else None
        self._screen.show(self._snapshot())

    def _on_signal(self, number: int) -> None:
        if self._deadline is not None:
            self.kill()
            return
        self._signal = number
        self._end(number)

    def _end(self, number: int) -> None:
        self._deadline = time.monotonic() + self._config.shutdown_timeout_secs
        for task in self._cluster.training_tasks:
            self._tasks[task].send(number)

    def _steer(self, now: float) -> None:
        """Decides, after each look, whether something is to be ended."""
        are_workers_gone = all(task in self._ended for task in self._cluster.training_tasks)
        if self._deadline is None:
            self._failure = self._find_failure(now)
            if self._failure is not None:
                self._screen.show(self._snapshot(), is_urgent=True)
                self._screen.complain(str(self._failure))
                self._end(signal.SIGTERM)
            elif are_workers_gone:  # the ps tasks end by themselves, or have this long
                self._deadline = now + self._config.shutdown_timeout_secs
        elif now > self._deadline:
            self.kill()
        elif are_workers_gone and (self._signal or self._failure):
            for ps in self._cluster.ps_tasks:
                self._tasks[ps].terminate()

    def _find_failure(self, now: float) -> Failure | None:
        """The task to blame, once that is known: one that ended because of another's failure only points to it."""
        failed = [task for task in self._ended if self._tasks[task].status != EXIT_DONE]
        if not failed:
            return None
        if self._suspected_at is None:
            self._suspected_at = now
        suspect = failed[0]
        match = _ANOTHER_FAILED.match(self._report(suspect).get("reason", ""))
        named = TaskId.from_string(match[1]) if match else suspect
        if named in self._tasks and named != suspect:
            if self._tasks[named].poll() is None and now - self._suspected_at < LOOK_SECS + PS_LINGER_SECS:
                return None  # it is about to end
            suspect = named if self._tasks[named].status else suspect
        running = self._tasks[suspect]
        return Failure(
            running.name, running.status or EXIT_PERMANENT, self._reason(suspect), running.log_path
        )

    def _reason(self, task: TaskId) -> str:
        running = self._tasks[task]
        reason = self._report(task).get("reason")
        if reason:
            return reason
        number = (running.status or 0) - 128
        if number == signal.SIGKILL:
            return "ended by SIGKILL, which may be the system's, for want of memory"
        if number in set(signal.Signals):
            return f"ended by {signal.Signals(number).name}"
        return running.last_line() or "no output"

    def _report(self, task: TaskId) -> dict[str, Any]:
        path = report_path(self._config, task, is_chief=task == self._cluster.chief_task)
        with contextlib.suppress(OSError, json.JSONDecodeError), open(path, encoding="utf-8") as file:
            return json.load(file)
        return {}

    # The screen.

    def _step(self) -> int | None:
        workers = (self._watch.records.get(str(task), {}) for task in self._cluster.training_tasks)
        return max((record["step"] for record in workers if record.get("step") is not None), default=None)

    def _snapshot(self) -> Snapshot:
        records = self._watch.records
        reports = [self._report(t) for t in self._ended if t.job != "ps"]
        steps = [report["global_step"] for report in reports if report.get("global_step") is not None]
        losses = [records.get(str(task), {}).get("loss") for task in self._cluster.training_tasks]
        return Snapshot(
            rows=tuple(self._row(task, records.get(str(task), {})) for task in self._tasks),
            step=max([*steps, self._step() or 0]) if steps or self._step() is not None else None,
            target=self._config.train_steps,
            rate=self._rate_value if len(reports) < self._cluster.num_workers else None,
            loss=next((loss for loss in losses if loss is not None), None),
            message="starting the tasks",
        )

    def _row(self, task: TaskId, record: dict[str, Any]) -> Row:
        status = self._tasks[task].status
        state = record.get("state", "starting")
        if status is not None:
            state = {EXIT_DONE: "done", 130: "stopped", 143: "stopped"}.get(status, f"status {status}")
        rate = record.get("local_rate") if status is None else None
        return Row(str(task), state, record.get("local_steps"), rate)

    # The end.

    def _evaluate(self, inbox: SignalInbox) -> int:
        evaluation = self._evaluation
        assert evaluation is not None
        self._screen.show(Snapshot(message="evaluating on held-out data"), is_urgent=True)
        evaluation.release()
        while evaluation.poll() is None:
            for number in inbox.wait(TICK_SECS):
                evaluation.kill()
                self._screen.complain(f"Evaluation stopped by {signal.Signals(number).name}.")
                self._tell_checkpoint()
                return 128 + number
        report = self._report(EVALUATOR)
        if evaluation.status != EXIT_DONE:
            status = evaluation.status or EXIT_PERMANENT
            reason = report.get("reason") or evaluation.last_line()
            self._screen.complain(str(Failure("The evaluation", status, reason, evaluation.log_path)))
            return status
        metrics = sorted((report.get("metrics") or {}).items())
        self._screen.say("Held-out data: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics))
        return EXIT_DONE

    def _tell_success(self) -> None:
        if self._finished:
            target = f"the target of {self._config.train_steps} steps"
            self._screen.say(f"Nothing left to train: {self._finished} has reached {target}.")
            return
        report = self._report(self._cluster.chief_task)
        step = report.get("global_step")
        secs = report.get("train_secs") or 0.0
        workers = self._cluster.num_workers
        self._screen.say(
            f"Trained to step {step} in {secs:.1f} s, {self._config.update}, on {workers} "
            f"{'worker' if workers == 1 else 'workers'}."
        )

    def _tell_stop(self) -> None:
        self._screen.complain(f"Stopped by {signal.Signals(self._signal or 0).name}.")
        self._tell_checkpoint()

    def _tell_checkpoint(self) -> None:
        checkpoint = checkpoints.latest_checkpoint(self._config.train_dir)
        if checkpoint is None:
            self._screen.complain("No checkpoint was saved.")
            return
        self._screen.complain(
            f"Checkpoint: {checkpoint}\nTo go on from there: {self._go_on(self._config.train_steps)}"
        )

    def _go_on(self, train_steps: int | None) -> str:
        again = dataclasses.replace(self._asked, train_dir=self._config.train_dir)
        return command_lines.go_on(again, self._cluster.num_ps, self._cluster.num_workers, train_steps)

    def _tell_what_next(self) -> None:
        config, cluster = self._config, self._cluster
        checkpoint = checkpoints.latest_checkpoint(config.train_dir)
        again = dataclasses.replace(self._asked, train_steps=config.train_steps)
        lines = command_lines.same_on_hosts(again, cluster.num_ps, cluster.num_workers)
        more = len(lines) - MAX_EXAMPLE_LINES
        say = self._screen.say
        say(f"\nCheckpoints: {config.train_dir}" + (f" (newest: {checkpoint})" if checkpoint else ""))
        say(f"Logs:        {config.log_dir}")
        say("\nThe same on real hosts, a line for each; fill in their names and a directory for checkpoints:")
        for line in lines[:MAX_EXAMPLE_LINES]:
            say(f"  {line}")
        if more > 0:
            say(f"  and so on, {more} more")
        if config.train_steps is not None:
            say(f"\nTo train on:\n  {self._go_on(2 * config.train_steps)}")
        say(
            f"\nTo evaluate:\n  {command_lines.evaluate(dataclasses.replace(again, train_dir=config.train_dir))}"
        )
