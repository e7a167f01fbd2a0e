"""Whether a model learns as well with fewer bits on the way: accuracy on Fashion-MNIST's test data after the same steps.

    python tests/benchmarks/convergence.py                        # 3 seeds, 2000 steps in sync on 1 ps and 2 workers
    python tests/benchmarks/convergence.py --variant= --variant=--prefetch --update=async
    python tests/benchmarks/convergence.py --variant= --variant="--local_steps=4 --train_steps=500"     # as many batches

Needs Debian's package `dataset-fashion-mnist`. Each figure is a job of its own of examples/fashion_mnist_mlp.py, with the same
seed and so the same first weights and batches for all variants. Async is not the same twice: look at the spread of the seeds.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "examples" / "fashion_mnist_mlp.py"
VARIANTS = ("", "--wire_dtype=bfloat16", "--wire_dtype=float16", "--wire_dtype=int8")
DEADLINE_SECS = 900


def accuracy(variant, seed, args):
    """Percent right of the test data."""
    with tempfile.TemporaryDirectory() as directory:
        train_dir, report = f"{directory}/train", pathlib.Path(directory, "report.json")
        run(
            "--evaluate=false", f"--train_dir={train_dir}", f"--seed={seed}", f"--train_steps={args.steps}",
            f"--update={args.update}", f"--num_workers={args.num_workers}", *variant.split(),
        )  # fmt: skip
        run("eval", f"--train_dir={train_dir}", f"--report_file={report}")
        return 100 * json.loads(report.read_text())["metrics"]["accuracy"]


def run(*args):
    """The command line on the model; raises CalledProcessError, and prints what the command said, if it fails."""
    command = [sys.executable, "-m", "ps_train", *args, f"--model={MODEL}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECS)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()


def main():
    """Prints a line for each variant: accuracy of each seed, and the mean difference to the first variant in points."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--variant", action="append", help=f"flags; default {VARIANTS}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--update", default="sync")
    parser.add_argument("--num_workers", type=int, default=2)
    args = parser.parse_args()
    variants = args.variant or VARIANTS
    print(f"{MODEL.name}, {args.update}, {args.num_workers} workers, {args.steps} steps", flush=True)
    first = None
    for variant in variants:
        found = [accuracy(variant, seed, args) for seed in range(1, args.seeds + 1)]
        first = first or found
        points = [one - other for one, other in zip(found, first, strict=True)]
        each = ", ".join(f"{value:.2f}" for value in found)
        spread = f"{statistics.mean(points):+.2f} ({min(points):+.2f} to {max(points):+.2f})"
        print(f"{variant or 'as it is':<24} {each} %   {spread} points", flush=True)


if __name__ == "__main__":
    main()
