"""What --record costs: the speed of an asynchronous local cluster with it, over that without, in pairs of runs one after the other.

    python tests/benchmarks/record_cost.py                        # 3 pairs of 2000 steps, 1 ps, 2 workers
    python tests/benchmarks/record_cost.py --num_ps=2 --model=examples/fashion_mnist_mlp.py --pairs=5

Prints the ratio of each pair, and their median and range. The order within a pair changes from pair to pair. The speed is the
global steps over the chief's seconds of training, of its report.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

RUN_SECS = 600


def rate(folder, args, is_recorded):
    """Global steps a second of one run in an empty folder."""
    flags = [
        f"--num_ps={args.num_ps}", f"--num_workers={args.num_workers}", f"--train_steps={args.steps}", "--seed=1", "--noevaluate",
        f"--train_dir={folder}", f"--report_file={folder}/report.json", *([f"--model={args.model}"] if args.model else []),
        *([f"--record={folder}/record"] if is_recorded else []),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "ps_train", *flags], capture_output=True, text=True, timeout=RUN_SECS
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
        report = json.load(file)
    return report["global_step"] / report["train_secs"]


def main():
    """Prints a line for each pair, and the median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_ps", type=int, default=1)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--model")
    args = parser.parse_args()
    ratios = []
    for pair in range(args.pairs):
        rates = {}
        for is_recorded in (False, True) if pair % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                rates[is_recorded] = rate(folder, args, is_recorded)
        ratios.append(rates[True] / rates[False])
        print(f"{rates[False]:.1f} steps/s, with --record {rates[True]:.1f}: {ratios[-1]:.2f}", flush=True)
    print(f"median {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


if __name__ == "__main__":
    main()
