"""What it costs a job to be watched: its rate while `python -m ps_train status` runs once a second, over that without it.

    python tests/benchmarks/watched.py [--update=sync] [--segments=12] [--secs=6]

1 ps and 2 workers on this machine, whose step is a wait of 10 ms and some arithmetic, as on an accelerator, or arithmetic
alone (`--pause_ms=0`), which has to share the cores with the watcher. Segments with and without it take turns; the ratio of
each pair of neighbours is one number. The other figure is the processor time of the ps for each look.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from figures import cpu_secs
from harness import Job

from ps_train.board import Board
from ps_train.cluster import TaskId


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", default="async")
    parser.add_argument("--segments", type=int, default=12)
    parser.add_argument("--secs", type=float, default=6.0)
    parser.add_argument("--pause_ms", type=int, default=10)
    args = parser.parse_args()
    flags = [f"--update={args.update}", "--train_steps=100000000"]
    folder = pathlib.Path(tempfile.mkdtemp())
    with Job(folder, 1, 2, flags=flags, params=f"slow=all:{args.pause_ms}") as job:
        ps, *workers = job.start_all()
        for worker in workers:
            worker.wait_for_line(r"step \d+/")
        time.sleep(3)
        board = Board(job.ps_hosts[0], TaskId("ps", 0))
        found = [measure(job, ps, board, i % 2 == 1, args.secs) for i in range(args.segments)]
    ratios = [watched[0] / alone[0] for alone, watched in zip(found[::2], found[1::2], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    rate = statistics.median(rate for rate, _, _ in found[::2])
    extra = statistics.median(w[1] for w in found[1::2]) - statistics.median(a[1] for a in found[::2])
    looks = statistics.median(looks for _, _, looks in found[1::2]) / args.secs
    print(
        f"{args.update}, {rate:.0f} global steps/s alone; watched {looks:.2f} times a second: {middle:.3f} "
        f"({low:.3f}-{high:.3f}) of that; the ps needs {1000 * extra / looks:.1f} ms of a core more for each look"
    )


def measure(job, ps, board, is_watched, secs):
    """(global steps a second, cores of the ps, looks) in a segment."""
    step, at, cpu, looks = read_step(board), time.monotonic(), cpu_secs(ps.pid), 0
    end, due, watchers = at + secs, at, []
    command = [sys.executable, "-m", "ps_train", "status", "--ps_hosts=" + ",".join(job.ps_hosts)]
    while time.monotonic() < end:
        if is_watched and time.monotonic() >= due:
            watchers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            looks, due = looks + 1, due + 1.0
        time.sleep(0.02)
    took = time.monotonic() - at
    result = (read_step(board) - step) / took, (cpu_secs(ps.pid) - cpu) / took, looks
    for watcher in watchers:
        watcher.wait(60)
    time.sleep(0.5)
    return result


def read_step(board):
    """The newest step, right after a record was written, so that its age does not count."""
    first = newest(board)
    while True:
        step = newest(board)
        if step != first:
            return step
        time.sleep(0.005)


def newest(board):
    return max(record.get("step") or 0 for record in board.exchange([], 10).values())


if __name__ == "__main__":
    main()
