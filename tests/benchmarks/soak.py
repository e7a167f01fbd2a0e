"""A cluster under faults at random moments, for hours or for a number of runs, and what is left of it.

    python tests/benchmarks/soak.py --minutes=60                # one endless job
    python tests/benchmarks/soak.py --runs=100 --steps=300      # so many jobs, one after another, each to its end

2 ps and 3 workers, in sync, whose step is a wait of 20 ms. This process plays the scheduler: a task that has ended with
anything but 0 is started again with the same flags. Every few seconds a task at random is

- killed (SIGKILL), or asked to end (SIGTERM), and started again after up to 3 s;
- stopped (SIGSTOP) for up to 15 s, which may be longer than the peer timeout of 10 s, and goes on (SIGCONT).

The weights turn in circles for ever: taken as a complex number w, the gradient of worker i is i w - target(i), so that after n
steps of SGD w is -i mean(target) (1 - (1 - i rate)^n) whatever happened on the way. A gradient that was stale, doubled, missing
or of a round that had been given up shows in the weights of a checkpoint, every one of which is kept and looked at. (In async
any order is right; then they have to be finite.) It is a failure if

- no new step is made for STUCK_SECS, though no task is stopped;
- a task ends with another status than 0, 138, 143 or that of the SIGKILL, or shows a traceback;
- a checkpoint has weights that are not those of its step;
- a model is taken back behind a checkpoint that was complete when it was lost.

Printed are steps, faults, starts and, for each process that lived for five minutes or more, its memory and open files early and
late in its life. The exit status is 1 after a failure, whose logs are kept. Linux only.
"""

import argparse
import collections
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from harness import free_ports

import ps_train
from ps_train import __main__, checkpoints, process
from ps_train.compat import tf, tf1  # once; the tasks are forked from here

PEER_SECS = 10
STUCK_SECS = 60.0
SAMPLE_SECS = 5.0
SETTLED_SECS = 60.0  # of a process's life, before its memory is taken for the first time
OLD_SECS = 300.0
RATE = 2.0**-7  # exact in float32, as which TensorFlow keeps it
TOLERANCE = 1e-7  # one stale gradient is wrong by 1e-4
TARGETS = (1.0, 2.0, 4.0)
FAULTS = ("kill", "kill", "term", "stop")


def input_fn(context):
    """The worker's target, again and again, after a wait."""
    pause_secs = context.params["pause_ms"] / 1000
    target = TARGETS[context.shard_index]

    def wait(_):
        time.sleep(pause_secs)
        return target

    steps = tf.data.Dataset.range(10**12).map(lambda step: tf.numpy_function(wait, [step], tf.float64))
    return steps.map(lambda value: (tf.ensure_shape(value, []), 0))


def model_fn(features, labels):
    """Two variables of 64 KB, one on each ps."""
    losses = []
    for name in ("w", "v"):
        weights = tf1.get_variable(name, [2, 4096], tf.float64, tf1.zeros_initializer())
        gradient = tf.stack([-weights[1] - features, weights[0]])
        losses.append(tf.reduce_sum(weights * tf.stop_gradient(gradient)))
    return ps_train.ModelSpec(loss=sum(losses), optimizer=tf1.train.GradientDescentOptimizer(RATE))


class Task:
    """A task of the job, whatever process it is at the moment.

    Attributes:
      running: its newest process.
      due: when it is to be started again.
      resumes_at: when a stopped one goes on.
      samples: (age in seconds, resident private MB, open files) of the newest process.
    """

    def __init__(self, name, argv, log_path):
        self.name, self._argv, self.log_path = name, argv, log_path
        self.running, self.due, self.resumes_at, self.num_starts = None, 0.0, None, 0
        self.samples, self._started, self.is_struck = [], 0.0, False

    def start(self):
        self.running = process.start(self.name, lambda: __main__.main(self._argv), [], self.log_path)
        self.num_starts += 1
        self.samples, self._started, self.is_struck, self.due = [], time.monotonic(), False, None

    def sample(self):
        """Takes the process's size; nothing if it is just ending."""
        age, folder = time.monotonic() - self._started, f"/proc/{self.running.pid}"
        try:
            status = pathlib.Path(folder, "status").read_text()
            size = re.search(r"RssAnon:\s+(\d+) kB", status)
            self.samples.append((age, int(size[1]) / 1024, len(os.listdir(f"{folder}/fd"))))
        except (OSError, TypeError):
            pass


class Job:
    """A job under faults."""

    def __init__(self, folder, args, steps, rng):
        self._rng, self._period, self._target = rng, args.period, steps
        self.train_dir = folder / "train"
        ports = free_ports(5)
        hosts = [f"127.0.0.1:{port}" for port in ports]
        flags = [
            f"--ps_hosts={','.join(hosts[:2])}", f"--worker_hosts={','.join(hosts[2:])}", f"--model={__file__}",
            f"--update={args.update}", f"--train_dir={self.train_dir}", f"--train_steps={steps}", "--batch_size=1",
            f"--model_params=pause_ms={args.pause_ms}", "--save_checkpoint_steps=100", "--keep_checkpoint_max=0",
            f"--peer_timeout_secs={PEER_SECS}", "--log_every_secs=0.5", "--stall_secs=20",
        ]  # fmt: skip
        names = ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]
        self.tasks = []
        for name in names:
            job, index = name.split(":")
            argv = [f"--job_name={job}", f"--task_index={index}", *flags]
            self.tasks.append(Task(name, argv, str(folder / f"{job}{index}.log")))
        self.faults, self.statuses = collections.Counter(), collections.Counter()
        self.aged, self.problems, self.lost, self.restores = [], [], 0, 0
        self.step = self.num_steps = 0
        self._saved_at_loss, self._progress_at, self._sample_due = 0, time.monotonic(), 0.0
        self.longest_pause = 0.0

    def run(self, until):
        """Until that moment, or the job's end; then every task is asked to end, and has to."""
        fault_due = time.monotonic() + 5
        while time.monotonic() < until and not self._is_over() and not self.problems:
            self._look()
            now = time.monotonic()
            if now >= fault_due and self.step:
                self._strike(now)
                fault_due = now + self._rng.expovariate(1 / self._period)
            time.sleep(0.05)
        self._end()

    def _is_over(self):
        return all(task.running is not None and task.running.status == 0 for task in self.tasks)

    def _look(self):
        now = time.monotonic()
        for task in self.tasks:
            if task.resumes_at is not None and now >= task.resumes_at:
                task.running.send(signal.SIGCONT)
                task.resumes_at = None
            if task.running is not None:
                self._read(task, now)
                if task.due is None and task.running.poll() not in (None, 0):
                    self._note_end(task)
                    task.due = now + self._rng.uniform(0.0, 3.0)
            if task.due is not None and now >= task.due:
                task.start()
        if now >= self._sample_due:
            self._sample_due = now + SAMPLE_SECS
            for task in self.tasks:
                if task.running is not None and task.running.poll() is None:
                    task.sample()
        quiet = now - self._progress_at
        if any(task.resumes_at is not None for task in self.tasks):
            self._progress_at = max(self._progress_at, now - PEER_SECS)
        elif quiet > STUCK_SECS:
            self.problems.append(f"no step for {quiet:.0f} s")

    def _read(self, task, now):
        for line in task.running.new_lines():
            if "Traceback" in line:
                self.problems.append(f"{task.name} shows a traceback")
            found = re.search(r"\bstep (\d+)", line) if task.name.startswith("worker") else None
            if found and int(found[1]) != self.step:
                step = int(found[1])
                self.num_steps += max(step - self.step, 0)
                self.longest_pause = max(self.longest_pause, now - self._progress_at)
                self.step, self._progress_at = step, now
            found = re.search(r" restored (\S+-\d+)$", line)
            if found and task.name == "worker:0":
                self._note_restore(checkpoints.checkpoint_step(found[1]))

    def _note_restore(self, step):
        self.restores += 1
        if step < self._saved_at_loss:
            self.problems.append(f"back to step {step}, with a checkpoint at {self._saved_at_loss}")
        self.lost += max(self.step - step, 0)
        self.step = min(self.step, step)

    def _note_end(self, task):
        status = task.running.status
        self.statuses[status] += 1
        self._saved_at_loss = max(self._saved_at_loss, self.newest_checkpoint())
        expected = {138, 143, 137} if task.is_struck else {138}
        if status not in expected:
            self.problems.append(f"{task.name} ended with {status}")
        self._keep_samples(task)

    def newest_checkpoint(self):
        path = checkpoints.latest_checkpoint(str(self.train_dir))
        return checkpoints.checkpoint_step(path) if path else 0

    def _keep_samples(self, task):
        if task.samples and task.samples[-1][0] >= OLD_SECS:
            self.aged.append((task.name, task.samples))

    def _strike(self, now):
        able = [
            task for task in self.tasks if task.resumes_at is None and task.due is None and task.running.poll() is None
        ]  # fmt: skip
        if not able:
            return
        task, fault = self._rng.choice(able), self._rng.choice(FAULTS)
        self.faults[fault] += 1
        if fault == "stop":
            task.running.send(signal.SIGSTOP)
            task.resumes_at = now + self._rng.uniform(0.5, 15.0)
        else:
            task.is_struck = True
            task.running.send(signal.SIGKILL if fault == "kill" else signal.SIGTERM)

    def _end(self):
        """Asks those that still run to end, the ps tasks last; who does not within its bounds is a failure."""
        for task in self.tasks:
            if task.resumes_at is not None:
                task.running.send(signal.SIGCONT)
        for names in ("worker", "ps"):
            asked = [
                t for t in self.tasks if t.name.startswith(names) and t.running and t.running.poll() is None
            ]
            for task in asked:
                task.is_struck = True
                task.running.terminate()
            deadline = time.monotonic() + 15
            while any(task.running.poll() is None for task in asked) and time.monotonic() < deadline:
                time.sleep(0.05)
            for task in asked:
                if task.running.poll() is None:
                    self.problems.append(f"{task.name} does not end within 15 s of SIGTERM")
                    task.running.kill()
                else:
                    self._keep_samples(task)

    def kill(self):
        for task in self.tasks:
            if task.running is not None:
                task.running.kill()


def check_checkpoints(train_dir, is_sync):
    """(number of checkpoints, a line for each whose weights are wrong)."""
    found, wrong = 0, []
    for index in sorted(pathlib.Path(train_dir).glob("model.ckpt-*.index")):
        found += 1
        reader = tf.train.load_checkpoint(str(index)[: -len(".index")])
        step = int(reader.get_tensor("global_step"))
        expected = -1j * statistics.mean(TARGETS) * (1 - (1 - 1j * RATE) ** step)
        for name in ("w", "v"):
            real, imaginary = reader.get_tensor(name)
            worst = abs(real + 1j * imaginary - expected).max()
            if not (worst <= TOLERANCE * (1 + abs(expected)) if is_sync else math.isfinite(worst)):
                wrong.append(
                    f"{index.name}: {name} is {real[0]} + {imaginary[0]}i, expected {expected}; worst error {worst}"
                )
    return found, wrong


def growth(aged):
    """A line for each process that grew old: memory and open files when it had settled and at its end."""
    for name, samples in aged:
        early = [sample for sample in samples if SETTLED_SECS <= sample[0] < 2 * SETTLED_SECS]
        late = [sample for sample in samples if sample[0] >= samples[-1][0] - SETTLED_SECS]
        means = [[statistics.mean(column) for column in zip(*part, strict=True)] for part in (early, late)]
        (_, memory, files), (_, memory_late, files_late) = means
        minutes = samples[-1][0] / 60
        yield (
            f"  {name:9} lived {minutes:4.1f} min: {memory:.1f} -> {memory_late:.1f} MB, "
            f"{files:.0f} -> {files_late:.0f} open files"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="of one endless job")
    parser.add_argument("--runs", type=int, default=0, help="so many jobs to their end instead")
    parser.add_argument("--steps", type=int, default=300, help="of each of the runs")
    parser.add_argument("--period", type=float, default=20.0, help="mean seconds between faults")
    parser.add_argument("--pause_ms", type=int, default=20)
    parser.add_argument("--update", default="sync", choices=["sync", "async"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
    num_bad = 0
    for number in range(args.runs or 1):
        seed = args.seed + number
        own = folder / f"run{number}"
        own.mkdir()
        steps = args.steps if args.runs else 10**9
        job = Job(own, args, steps, random.Random(seed))
        began = time.monotonic()
        try:
            job.run(began + (600 if args.runs else 60 * args.minutes))
        finally:
            job.kill()
        checker = process.start(
            "check", lambda job=job: report_checkpoints(job, args), [], str(own / "check.log")
        )
        while checker.poll() is None:
            time.sleep(0.05)
        problems = job.problems + ([] if checker.status == 0 else [f"see {own}/check.log"])
        if args.runs and not problems and job.newest_checkpoint() != args.steps:
            problems.append(f"the last checkpoint is at step {job.newest_checkpoint()}")
        print(
            f"{'FAILED' if problems else 'passed'} seed {seed}, {time.monotonic() - began:.0f} s: {describe(job)}",
            flush=True,
        )
        print((own / "check.log").read_text().strip(), flush=True)
        for line in [*growth(job.aged), *problems]:
            print(line, flush=True)
        num_bad += bool(problems)
        if not problems:
            shutil.rmtree(own)
    if num_bad:
        print(f"{num_bad} failed; logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return int(num_bad > 0)


def describe(job):
    """The run in a line."""
    faults = ", ".join(f"{count} {name}" for name, count in sorted(job.faults.items())) or "none"
    ends = ", ".join(f"{count} with {status}" for status, count in sorted(job.statuses.items())) or "none"
    starts = sum(task.num_starts for task in job.tasks)
    return (
        f"{job.num_steps} steps, faults: {faults}; ends before the last: {ends}; {starts} starts; "
        f"{job.restores} restores, {job.lost} steps lost; longest time without a step {job.longest_pause:.0f} s"
    )


def report_checkpoints(job, args):
    """In a process of its own, as nothing could be forked any more after TensorFlow's first op."""
    found, wrong = check_checkpoints(job.train_dir, args.update == "sync")
    print(f"  {found} checkpoints, {len(wrong)} of them wrong")
    for line in wrong[:10]:
        print(f"  {line}")
    return int(bool(wrong) or found == 0)


if __name__ == "__main__":
    sys.exit(main())
