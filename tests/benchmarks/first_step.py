"""How long a local cluster takes to its first step, against one bare import of TensorFlow.

    python tests/benchmarks/first_step.py [REPEATS]

Each repeat runs `import tensorflow` in a fresh interpreter, then a cluster of 1 ps and 2 workers with the tasks forked, then
one with the tasks spawned (PS_TRAIN_START=spawn), so that what else the machine does falls on all three. The first step is
the moment at which worker:0's log has it, seen every 10 ms from outside. Prints medians and the spread of all repeats.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from figures import print_rows

DEADLINE_SECS = 120


def import_secs():
    """Seconds that a fresh interpreter takes to import TensorFlow and to end."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import tensorflow"],
        check=True,
        stderr=subprocess.DEVNULL,
        timeout=DEADLINE_SECS,
    )
    return time.perf_counter() - start


def first_step_secs(how):
    """Seconds from the launcher's start to the first step of the chief."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "train", "logs", "worker0.log")
        start = time.perf_counter()
        launcher = subprocess.Popen(
            [sys.executable, "-m", "ps_train", "--train_dir=train", "--train_steps=1000000", "--noevaluate"],
            cwd=folder, env={**os.environ, "PS_TRAIN_START": how},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not (log.exists() and " step " in log.read_text()):
                if time.perf_counter() - start > DEADLINE_SECS or launcher.poll() is not None:
                    sys.exit(f"no step; the launcher's status is {launcher.poll()}")
                time.sleep(0.01)
            return time.perf_counter() - start
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(DEADLINE_SECS)


def main(repeats):
    """Measures and prints."""
    rows = [(import_secs(), first_step_secs("fork"), first_step_secs("spawn")) for _ in range(repeats)]
    names = ("import tensorflow", "first step, forked", "first step, spawned")
    print_rows(names, rows, "imports", digits=2)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
