"""What packing and fewer bits on the way are worth: a job's rate with such flags over that of the same job without.

    python tests/benchmarks/transport.py                                    # loopback, 2 workers
    python tests/benchmarks/transport.py --link_mbit=1000 --num_workers=1   # hosts of their own, with links of 1 Gbit/s (root)
    python tests/benchmarks/transport.py --models=mlp --variant='--pack_bytes=4000000' --variant='--wire_dtype=float16'

One ps and the workers are processes on this machine, started anew for each figure: first with `--pack_bytes=0 --fuse_bytes=0`, as
a plain script sends its variables, then with each variant's flags; the ratio of neighbours is one number. Rates are global steps a
second while all train. Hosts of their own are network namespaces, whose links `tc tbf` slows down.

The models are those of `contestants/nets.py`: deep, many small variables; mlp; big, bytes.
"""

import argparse
import contextlib
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from contestants.nets import NETS
from figures import last_step
from harness import Job
from namespaces import Network, spread

MODEL = pathlib.Path(__file__).parent / "contestants" / "command_line_model.py"
PLAIN = "--pack_bytes=0 --fuse_bytes=0"
VARIANTS = ("--fuse_bytes=0", "", "--wire_dtype=bfloat16", "--wire_dtype=int8")
WARM_SECS = 2.0


def rate(name, variant, args, network):
    """Global steps a second."""
    flags = [
        f"--model={MODEL}", f"--model_params=net={name}", f"--batch_size={NETS[name].batch}", f"--update={args.update}",
        "--train_steps=100000000", "--log_every_secs=0.1", *variant.split(),
    ]  # fmt: skip
    with Job(pathlib.Path(tempfile.mkdtemp()), 1, args.num_workers, flags=flags) as job:
        if network is not None:
            spread(job, network)
        _, *workers = job.start_all()
        for worker in workers:
            worker.wait_for_line(r"step \d+/")
        time.sleep(WARM_SECS)
        (step, at), until = next_step(workers[0]), time.monotonic() + args.secs
        while time.monotonic() < until:
            time.sleep(0.01)
        end, end_at = next_step(workers[0])
        return (end - step) / (end_at - at)


def next_step(worker):
    """The next step that its log shows, and when."""
    first = last_step(worker.log)
    while True:
        step = last_step(worker.log)
        if step != first:
            return step, time.monotonic()
        time.sleep(0.002)


def main():
    """Prints a line for each model and variant."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="deep,mlp,big")
    parser.add_argument("--update", default="async")
    parser.add_argument("--variant", action="append", help=f"flags; default {VARIANTS}")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--link_mbit", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--secs", type=float, default=6.0)
    args = parser.parse_args()
    variants = args.variant or VARIANTS
    with Network(1 + args.num_workers) if args.link_mbit else contextlib.nullcontext() as network:
        if network is not None:
            network.shape(args.link_mbit)
        for name in args.models.split(","):
            rounds = [
                [rate(name, variant, args, network) for variant in (PLAIN, *variants)]
                for _ in range(args.repeats)
            ]
            print(
                f"{name}, {args.update}, {args.num_workers} workers: {statistics.median(row[0] for row in rounds):.1f} steps/s",
                flush=True,
            )
            for number, variant in enumerate(variants, 1):
                ratios = sorted(row[number] / row[0] for row in rounds)
                print(
                    f"  {variant}: {statistics.median(ratios):.2f} times ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
