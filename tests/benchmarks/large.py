"""Large variables and gradients: what stops do to a synchronous job, and whether a ps that is too slow piles them up.

    python tests/benchmarks/large.py stops     # 4 variables of 64 MB, 1 ps, 2 workers, sync, 200 steps
    python tests/benchmarks/large.py memory    # gradients of 20 MB, a ps on one core, 4 workers, async, 500 steps

`stops`: a worker, then the ps are stopped (SIGSTOP) for 60 s each and go on; the job has to reach its target with the weights that
so many updates make, and each late task has to be named in the logs.

`memory`: the resident memory of the ps ten times a second; it has to level off, as workers wait for their pushes. Then the same with
a gradient of 4 bytes and 10,000 steps, for a growth with the number of steps. Linux only (`taskset`, /proc). About 15 min and 2 min.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from figures import last_step
from harness import Job

DEADLINE_SECS = 3600
RATE = 2.0**-10
STOP_SECS = 60
MODEL = f"""
import tensorflow as tf
import ps_train

tf1 = tf.compat.v1


def input_fn(context):
    return tf.data.Dataset.from_tensors((1.0, 0)).repeat()


def model_fn(features, labels, params):
    weights = [
        tf1.get_variable(f"w{{i}}", [params["size"]], tf.float32, tf1.zeros_initializer()) for i in range(params["count"])
    ]
    loss = tf.add_n([tf.reduce_sum(w) for w in weights]) * features
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer({RATE}))
"""


def main(what):
    """Runs the one or the other; the exit status is 1 if it is not as it has to be."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("large.py").write_text(MODEL)
        return {"stops": stops, "memory": memory}[what]()


def stops():
    """The first of the two."""
    ran = subprocess.run(
        [
            sys.executable, "-m", "ps_train", "chaos", "--model=large.py", "--model_params=size=16777216,count=4", "--num_ps=1",
            "--num_workers=2", "--update=sync", "--train_steps=200", f"--stop=worker:1@50:{STOP_SECS}s",
            f"--stop=ps:0@120:{STOP_SECS}s", "--peer_timeout_secs=150", "--stall_secs=15", "--train_dir=train",
            "--save_checkpoint_steps=100", "--report_file=report.json",
        ],
        timeout=DEADLINE_SECS, check=False,
    )  # fmt: skip
    from ps_train.compat import tf

    saved = tf.train.load_checkpoint("train")
    expected = -200 * RATE
    worst = max(abs(saved.get_tensor(f"w{i}") - expected).max() for i in range(4))
    print(f"status {ran.returncode}; worst difference of a weight from {expected}: {worst:.2g}")
    for log in sorted(pathlib.Path("train/logs").glob("*.log")):
        for line in re.findall(r".*\bwaiting\b.*", log.read_text()):
            print(f"  {log.name}: {line}")
    faults = json.loads(pathlib.Path("report.json").read_text())["faults"]
    print(
        "recovery after", ", ".join(f"{fault['fault']}: {fault['recovery_secs']:.1f} s" for fault in faults)
    )
    return int(ran.returncode != 0 or worst != 0)


def memory():
    """The second."""
    flat = [
        grows("20 MB, 500 steps", size=5 * 2**20, steps=500),
        grows("4 bytes, 10,000 steps", size=1, steps=10_000),
    ]
    return int(not all(flat))


def grows(name, size, steps):
    """Prints what the ps's memory did; whether it was level in the last half of the job."""
    flags = [f"--train_steps={steps}"]
    model = pathlib.Path("large.py").resolve()
    folder = pathlib.Path(tempfile.mkdtemp(dir="."))  # a train_dir of its own
    with Job(folder.resolve(), 1, 4, str(model), flags, f"size={size},count=1") as job:
        job.prefixes["ps:0"] = ["taskset", "-c", "0"]
        ps, chief, *_ = job.start_all()
        samples, deadline = [], time.monotonic() + DEADLINE_SECS
        while ps.status is None and time.monotonic() < deadline:
            step = last_step(chief.log)
            if step:
                samples.append((step, resident_mb(ps.pid)))
            time.sleep(0.1)
        statuses = [task.wait(60) for task in job.tasks]
    sizes = [mb for step, mb in samples if mb and step < steps]
    quarter = len(sizes) // 4
    if not quarter:
        sys.exit(f"{name}: the job was over after {len(sizes)} samples; give it more steps")
    half = [statistics.mean(sizes[-2 * quarter : -quarter]), statistics.mean(sizes[-quarter:])]
    print(
        f"{name}: statuses {statuses}; ps {sizes[0]:.0f} MB at first, {max(sizes):.0f} MB at most, {half[0]:.0f} and "
        f"{half[1]:.0f} MB in the third and the last quarter ({len(sizes)} samples)",
        flush=True,
    )
    return half[1] < 1.1 * half[0] + 20 and not any(statuses)


def resident_mb(pid):
    """Resident memory of a process, MB, or None if it is gone."""
    try:
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024
    except (OSError, TypeError):
        return None


if __name__ == "__main__":
    if sys.argv[1:] not in (["stops"], ["memory"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
