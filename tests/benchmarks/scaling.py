"""How a job's rate grows with its workers: compute is a sleep, so that links and ps decide and not this machine's processors.

    python tests/benchmarks/scaling.py                                 # 1 to 16 workers, 1 to 4 ps, links of 100 Mbit/s; root
    python tests/benchmarks/scaling.py --num_ps=1 --num_workers=1,2,4 --updates=sync --flags=--wire_dtype=bfloat16
    python tests/benchmarks/scaling.py --flags=--colocate_ps           # the workers hold the variables; --num_ps is left out

Every task is a host of its own, a network namespace whose link `tc tbf` slows down. A worker's step is a sleep of --sleep_secs
between the pull of --kb of variables and the push of as many bytes of gradients (`contestants/sleeping_model.py`). For each
cluster:

- steps/s: summed over the workers, while all train;
- efficiency: a worker's steps/s over a worker's in the fewest workers with as many ps, the line of 1.00: of --num_workers=1,...
  that is one worker alone, which with --colocate_ps has all variables itself and sends nothing;
- link of a ps: the share of what its link could carry in one direction that its part of the variables takes, by the steps/s; with
  --colocate_ps of a worker's link, which carries its part to the others and its gradients, too;
- ps: processors that the busiest ps (or worker that is one) kept busy, and all tasks together, of this machine's.

Efficiency falls when a ps's link is full, or this machine's processors are; before that, workers that come at the same time
share a link for a while.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from contest import PROGRAMS, Contest, Contestant
from namespaces import Network
from standings import ContestError, kb_per_sec


class Scaling(Contest):
    """Runs of the sleeping model; `num_ps` and `num_workers` are set for each."""

    min_cores = 0.0  # sleeping is its work

    def __init__(self, args, network):
        super().__init__(args, network, "")
        self._args = args

    def rate(self, contestant, num_ps, num_workers):
        """Measured of one cluster."""
        self.num_ps, self._num_workers = num_ps, num_workers
        return self.run(contestant, "")

    def _ps_train(self, contestant, net, flags):
        params = f"kb={self._args.kb},parts={self._args.parts},secs={self._args.sleep_secs}"
        return [
            sys.executable, "-m", "ps_train", *flags, f"--model={PROGRAMS / 'sleeping_model.py'}", f"--model_params={params}",
            f"--update={contestant.update}", "--train_steps=1000000000", *contestant.flags.split(),
        ], {}  # fmt: skip


def numbers(text):
    """The list in a flag's value, the smallest first."""
    return sorted(int(number) for number in text.split(","))


def parse():
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_ps", type=numbers, default=[1, 2, 4])
    parser.add_argument("--num_workers", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--updates", default="async,sync")
    parser.add_argument("--link_mbit", type=int, default=100)
    parser.add_argument("--kb", type=int, default=1000)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--sleep_secs", type=float, default=0.5)
    parser.add_argument("--secs", type=float, default=15.0)
    parser.add_argument("--flags", default="", help="ps_train's")
    args = parser.parse_args()
    args.torch_python = ""
    return args


def main():
    """Prints a line for each cluster."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with what was started ended, as by Ctrl-C
    print(
        f"{args.kb} kB in {args.parts} variables, {args.sleep_secs} s of sleep, links of {args.link_mbit} Mbit/s {args.flags}"
    )
    print(
        f"| update | ps | workers | steps/s | efficiency | link of a ps | ps, all of {os.cpu_count()} processors |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    failed = False
    for update in args.updates.split(","):
        contestant = Contestant("ps_train", update, args.flags)
        for num_ps in [0] if contestant.is_colocated else args.num_ps:
            alone = None
            for num_workers in args.num_workers:
                with contextlib.ExitStack() as stack:
                    network = stack.enter_context(Network(num_ps + num_workers))
                    network.shape(args.link_mbit)
                    try:
                        measured = Scaling(args, network).rate(contestant, num_ps, num_workers)
                    except ContestError as error:
                        failed = True
                        print(
                            f"FAILED: {update}, {num_ps} ps, {num_workers} workers: {error}", file=sys.stderr
                        )
                        continue
                alone = alone or measured.rate / num_workers
                used = kb_per_sec(measured.rate, args.kb, num_ps, num_workers) * 8e3 / (args.link_mbit * 1e6)
                holder = "ps" if num_ps else "worker"
                busiest = max(cores for name, cores in measured.cores.items() if name.startswith(holder))
                print(
                    f"| {update} | {num_ps} | {num_workers} | {measured.rate:.2f} | {measured.rate / num_workers / alone:.2f} "
                    f"| {used:.2f} | {busiest:.2f}, {sum(measured.cores.values()):.2f} |",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
