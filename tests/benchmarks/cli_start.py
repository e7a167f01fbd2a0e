"""How long `ps_train` takes for what needs no TensorFlow: its help and the refusal of a mistake in the flags.

    python tests/benchmarks/cli_start.py [REPEATS]

Runs each command REPEATS times (default 20), in turn with a bare `python -c pass`, and prints medians and ranges of both the
seconds and the ratios to the bare interpreter.
"""

import subprocess
import sys
import tempfile
import time

from figures import print_rows

DEADLINE_SECS = 60
PS_TRAIN = ("-m", "ps_train")
# What is run, and the status it must end with.
COMMANDS = {
    "python -c pass": (("-c", "pass"), 0),
    "--help": ((*PS_TRAIN, "--help"), 0),
    "eval --help": ((*PS_TRAIN, "eval", "--help"), 0),
    "an unknown flag": ((*PS_TRAIN, "--train_step=3"), 1),
    "a value that is no number": ((*PS_TRAIN, "--train_steps=many"), 1),
    "a host given twice": (
        (*PS_TRAIN, "--job_name=ps", "--task_index=0", "--ps_hosts=a:1,a:1", "--worker_hosts=b:1"),
        1,
    ),
    "a model that is not there": ((*PS_TRAIN, "--model=nowhere.py"), 1),
}


def secs(args, status, folder):
    """Seconds that one command takes; ends the script if it does not end with `status`."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    taken = time.perf_counter() - start
    if done.returncode != status:
        sys.exit(f"{args} ended with {done.returncode}, not {status}:\n{done.stderr}")
    return taken


def main(repeats):
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [[secs(*command, folder) for command in COMMANDS.values()] for _ in range(repeats)]
    print_rows(COMMANDS, rounds, "interpreters", digits=3)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
