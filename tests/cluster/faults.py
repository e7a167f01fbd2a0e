"""One cell of the failure matrix: a fault of a role under an update rule, done to a job of real processes.

    result = run_cell(make_job, Cell("ps", "kill_restart", "sync"))     # AssertionError if the outcome is another

`test_matrix.py` runs some of them with every `make test`, and all with PS_TRAIN_MATRIX=1; `tests/benchmarks/recovery.py`
prints how long each takes.
"""

import re
import signal
import time
from typing import NamedTuple

from harness import START_SECS, checkpoint_of

from ps_train.checkpoints import checkpoint_step

BOUND_SECS = 6  # --peer_timeout_secs where a fault is to pass it
LONG_SECS = 40  # where it is not
GRACE_SECS = 20  # beyond a bound: the guard's eight seconds, and a busy machine
PAUSE_SECS = 3.0  # a stop that does not pass the bound
UPDATES = ("async", "sync", "backup")
TASK_FAULTS = ("kill_restart", "kill", "stop_past_bound", "stop_cont", "SIGTERM", "SIGINT")


class Cell(NamedTuple):
    """`role`: ps, chief or worker; `fault`: of TASK_FAULTS; `update`: of UPDATES."""

    role: str
    fault: str
    update: str

    def __str__(self):
        return "-".join(self)


class Result(NamedTuple):
    """Seconds from the fault to a survivor's next step (None: the job ended for it), and the steps that were lost."""

    recovery_secs: float | None
    steps_lost: int


CELLS = [
    Cell(role, fault, update)
    for role in ("ps", "chief", "worker")
    for fault in TASK_FAULTS
    for update in UPDATES
]
VICTIMS = {"ps": "ps:1", "chief": "worker:0", "worker": "worker:1"}


def is_survived(cell):
    """Whether the job goes on for good after the fault."""
    if cell.fault in ("kill_restart", "stop_cont"):
        return True
    return cell.role == "worker" and cell.update != "sync"


def run_cell(make_job, cell):
    """Does it; AssertionError if anything else happens than the README's table says."""
    num_workers = 3 if cell.update == "backup" else 2
    flags = ["--train_steps=1000000", "--log_every_secs=0.2", "--save_checkpoint_steps=100"]
    flags += [] if cell.update == "async" else ["--update=sync"]
    flags += ["--replicas_to_aggregate=2"] if cell.update == "backup" else []
    passes_bound = cell.fault not in ("kill_restart", "stop_cont")
    job = make_job(
        2,
        num_workers,
        flags=flags,
        params="slow=all:10",
        timeout_secs=BOUND_SECS if passes_bound else LONG_SECS,
    )
    tasks = dict(zip(job.names, job.start_all(), strict=True))
    workers = [name for name in tasks if name.startswith("worker")]
    for name in workers:
        tasks[name].wait_for_line(r"step [1-9]\d\d+/")
    victim = VICTIMS[cell.role]
    steps_before = {name: last_step(tasks[name]) for name in workers}
    marks = {name: len(tasks[name].log) for name in workers}
    struck_at = time.monotonic()
    tasks = strike(job, tasks, victim, cell.fault)
    survivors = [name for name in workers if name != victim]
    if not is_survived(cell):
        expect_end(cell, tasks, victim, survivors)
        return Result(None, 0 if cell.role == "worker" else steps_lost(tasks, job, steps_before))
    recovery = min(wait_for_new_step(tasks[name], marks[name], struck_at) for name in survivors)
    is_rolled_back = cell.role == "ps" and cell.fault == "kill_restart"
    lost = steps_lost_by_roll_back(tasks, steps_before) if is_rolled_back else 0
    others = workers if cell.fault in ("kill_restart", "stop_cont") else survivors
    for name in others:  # each of them trains again, also who has come back
        mark = len(tasks[name].log)
        wait_for_new_step(tasks[name], mark, time.monotonic())
    finish(job, tasks, cell, victim, 0 if is_rolled_back else max(steps_before.values()))
    return Result(recovery, lost)


def strike(job, tasks, victim, fault):
    """Does the fault; the tasks, with a new process where there is one."""
    task = tasks[victim]
    if fault in ("kill", "kill_restart"):
        task.kill()
        if fault == "kill_restart":
            tasks = {**tasks, victim: job.start(victim)}
    elif fault in ("stop_cont", "stop_past_bound"):
        task.send(signal.SIGSTOP)
        if fault == "stop_cont":
            time.sleep(PAUSE_SECS)
            task.send(signal.SIGCONT)
    else:
        number = signal.Signals[fault]
        task.send(number)
        status = task.wait(10)
        assert status == 128 + number, f"{victim} ended with {status}\n{task.tail()}"
    return tasks


def expect_end(cell, tasks, victim, survivors):
    """Everyone ends with 138 within the bound, and names who was lost."""
    deadline = time.monotonic() + BOUND_SECS + GRACE_SECS
    for name in survivors:
        status = tasks[name].wait(max(deadline - time.monotonic(), 0.1))
        assert status == 138, f"{name} ended with {status}\n{tasks[name].tail()}"
        assert victim in tasks[name].report["reason"] or "worker:0" in tasks[name].report["reason"], tasks[
            name
        ].tail()
    for name in sorted(
        tasks, key=lambda name: name == victim
    ):  # one that stands still is resumed when all others have ended
        task = tasks[name]
        if name == victim and cell.fault == "stop_past_bound":
            task.send(signal.SIGCONT)
        if name != victim or task.status is None:
            status = task.wait(BOUND_SECS + GRACE_SECS)
            assert status == 138, f"{name} ended with {status}\n{task.tail()}"
        assert "Traceback" not in task.log, task.tail(60)


def finish(job, tasks, cell, victim, least_step):
    """Stops all that run: each in order, and the checkpoint holds what was there before the fault."""
    if cell.fault == "stop_past_bound":
        tasks[victim].send(signal.SIGCONT)
    running = [task for task in tasks.values() if task.status is None]
    for task in sorted(running, key=lambda task: task.name.startswith("ps")):
        if task.name.startswith("ps"):
            continue
        task.send(signal.SIGTERM)
    for task in running:
        if not task.name.startswith("ps"):
            assert task.wait(START_SECS) == 143, task.tail()
    for task in running:
        if task.name.startswith("ps"):
            task.send(signal.SIGTERM)
            assert task.wait(10) in (143, 138), task.tail()
    for task in tasks.values():
        assert "Traceback" not in task.log, task.tail(60)
    assert checkpoint_of(job.train_dir)["global_step"] >= least_step


def last_step(task):
    """The last step that the task's log shows."""
    found = re.findall(r"step (\d+)/", task.log)
    return int(found[-1]) if found else 0


def wait_for_new_step(task, mark, since):
    """Waits for a progress line behind position `mark` of the log; seconds since `since`."""
    deadline = time.monotonic() + LONG_SECS + GRACE_SECS
    while not re.search(r"step \d+/", task.log[mark:]):
        assert task.status is None, f"{task.name} ended with {task.status}\n{task.tail()}"
        assert time.monotonic() < deadline, f"no further step\n{task.tail()}"
        time.sleep(0.05)
    return time.monotonic() - since


def steps_lost_by_roll_back(tasks, steps_before):
    """Steps between the last that was shown and the checkpoint that was restored."""
    restored = re.findall(r"restored (\S+)", tasks["worker:0"].log)
    assert restored, tasks["worker:0"].tail()
    return max(max(steps_before.values()) - checkpoint_step(restored[-1]), 0)


def steps_lost(tasks, job, steps_before):
    """Steps between the last that was shown and the newest checkpoint, when the job has ended."""
    return max(max(steps_before.values()) - int(checkpoint_of(job.train_dir)["global_step"]), 0)
