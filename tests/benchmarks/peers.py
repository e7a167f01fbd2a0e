"""ps_train beside what else trains on several machines: one model, one set of data, plain SGD, one command.

    python tests/benchmarks/peers.py                                       # loopback, 2 workers, all models
    python tests/benchmarks/peers.py --models=mlp --contestants=plain,ps_train,ddp --variant='--wire_dtype=bfloat16'
    python tests/benchmarks/peers.py --contestants=ps_train --variant='--fuse_bytes=0' --variant=''      # over the first one
    python tests/benchmarks/peers.py --link_mbit=1000 --num_workers=1      # hosts of their own, with links of 1 Gbit/s (root)

The contestants, programs in `contestants/`, whose models and data are those of `contestants/nets.py`:

- plain: TensorFlow 1's script with replica_device_setter and MonitoredTrainingSession, and no line of ps_train; async, and
  sync with SyncReplicasOptimizer (num_tokens=0);
- ps_train: the command line, for each `--variant` of flags, async and sync; --variant=--update=allreduce is that in place of sync;
- tf2_ps: TensorFlow 2's ParameterServerStrategy with its ClusterCoordinator, a process more;
- multiworker: MultiWorkerMirroredStrategy, with a training loop of its own;
- ddp: PyTorch's DistributedDataParallel over gloo, with as many threads as there are cores for each worker, as torchrun has it;
- single: one process and no server, what training costs by itself with the whole machine.

One ps (none with --colocate_ps or --update=allreduce) and the workers are processes on this machine, started anew for each
figure; a repeat runs every contestant once, so that what else the machine does meets all of them. A rate is the workers' steps a second, summed, while all of them train; the loss
has to fall, or the benchmark fails. One step of all workers of a synchronous job counts as so many steps. The last lines name
each case in which ps_train is slower than a peer with the same kind of update. Hosts of their own are network namespaces, whose
links `tc tbf` slows down; the coordinator of tf2_ps has one, too.

The cnn needs Debian's package dataset-fashion-mnist. PyTorch is looked for in this Python and in the system's: `pip install
torch`, or `apt-get install python3-torch libopenblas0-pthread` (without OpenBLAS a product took eight times as long), or
`--torch_python` names the interpreter of an environment that has it. What is missing is said, and left out.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from contest import Contest, Contestant
from contestants.nets import NETS, write_records
from namespaces import Network
from standings import ContestError, losses, spread, table

from ps_train.datasets import load_idx_images
from ps_train.errors import UsageError

DATA_DIR = "/usr/share/datasets/fashion-mnist"
UPDATES = {
    "plain": ("async", "sync"), "ps_train": ("async", "sync"), "tf2_ps": ("async",), "multiworker": ("sync",),
    "ddp": ("sync",), "single": ("",),
}  # fmt: skip
VARIANTS = ("", "--wire_dtype=bfloat16", "--colocate_ps")


def chosen(flag, text, known):
    """The names in a flag's value; ends the program if one is not known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            sys.exit(f"--{flag}={name} is not one of {', '.join(known)}.")
    return names


def contestants(args):
    """All that take part, in the order of the table."""
    for family in chosen("contestants", args.contestants, UPDATES):
        for variant in args.variant or VARIANTS if family == "ps_train" else [""]:
            yield from (
                Contestant(family, update, variant)
                for update in UPDATES[family]
                if update in ("", *args.updates.split(","))
            )


def why_not(contestant, args):
    """Why one cannot take part, or ""."""
    if contestant.family == "ddp" and not args.torch_python:
        return "no PyTorch with gloo was found; see --torch_python"
    if contestant.family in ("multiworker", "ddp") and args.num_workers == 1:
        return "one worker has nobody to send to"
    return ""


def find_torch(wanted):
    """The interpreter that has PyTorch with gloo, or ""."""
    check = (
        "import sys; from torch import distributed as d; assert d.is_gloo_available(); print(sys.executable)"
    )
    env = {**os.environ, "PYTHONPATH": ""}  # as the contestant runs: it may hold another Python's packages
    for python in [wanted] if wanted else [sys.executable, "/usr/bin/python3"]:
        with contextlib.suppress(OSError):
            ran = subprocess.run([python, "-c", check], capture_output=True, text=True, env=env, timeout=120)
            if ran.returncode == 0:
                return ran.stdout.strip()
    return ""


def find_records(names, folder):
    """The file of the cnn's pictures; without them the cnn goes from `names`."""
    path = pathlib.Path(folder) / "pictures"
    if "cnn" in names:
        try:
            write_records(path, *load_idx_images(DATA_DIR)[0])
        except UsageError as error:
            print(f"cnn is left out: {error}", flush=True)
            names.remove("cnn")
    return path


def compete(name, args, contest):
    """Prints the table of one model; the measurements of each repeat, and whether all trained."""
    absent = {each.name: reason for each in contestants(args) if (reason := why_not(each, args))}
    present = [each for each in contestants(args) if each.name not in absent]
    rounds, failed = [], {}
    for repeat in range(args.repeats):
        rounds.append({})
        for contestant in (each for each in present if each.name not in failed):
            try:
                rounds[-1][contestant.name] = contest.run(contestant, name)
                note = f"{rounds[-1][contestant.name].rate:.2f} steps/s"
            except ContestError as error:
                failed[contestant.name] = str(error)
                note = f"FAILED: {error}"
            print(f"{name}, repeat {repeat + 1}, {contestant.name}: {note}", file=sys.stderr, flush=True)
    rates = [{key: each.rate for key, each in measured.items() if key not in failed} for measured in rounds]
    link = f"links of {args.link_mbit} Mbit/s" if args.link_mbit else "loopback"
    print(f"\n{name}, 1 ps, {args.num_workers} workers, {link}, repeats: {args.repeats}\n", flush=True)
    print(*table(rates), sep="\n")
    for key, reason in (absent | failed).items():
        print(f"| {key} | {reason.splitlines()[0]} | |")
    print()
    for ours, theirs, over in losses(rates):
        print(f"- {name}: {ours} loses to {theirs}: {spread(over)}", flush=True)
    return [{key: each._asdict() for key, each in measured.items()} for measured in rounds], failed


def parse():
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(NETS))
    parser.add_argument("--contestants", default=",".join(UPDATES))
    parser.add_argument("--updates", default="async,sync")
    parser.add_argument("--variant", action="append", help=f"ps_train's flags; default {VARIANTS}")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--link_mbit", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--secs", type=float, default=8.0)
    parser.add_argument("--torch_python", default="", help="an interpreter that has PyTorch")
    parser.add_argument("--json", help="file for all that was measured")
    return parser.parse_args()


def main():
    """Prints a table for each model; the exit status is 1 if a contestant did not run or train."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with what was started ended, as by Ctrl-C
    args.torch_python = find_torch(args.torch_python)
    names, found, failures = chosen("models", args.models, NETS), {}, {}
    with contextlib.ExitStack() as stack:
        records = find_records(names, stack.enter_context(tempfile.TemporaryDirectory()))
        network = None
        if args.link_mbit:
            network = stack.enter_context(Network(2 + args.num_workers))
            network.shape(args.link_mbit)
        contest = Contest(args, network, records)
        for name in names:
            found[name], failed = compete(name, args, contest)
            failures |= {f"{key} on {name}": text for key, text in failed.items()}
            if args.json:
                pathlib.Path(args.json).write_text(
                    json.dumps({"flags": vars(args), "rounds": found}, indent=1)
                )
    for key, text in failures.items():
        print(f"FAILED: {key}: {text.splitlines()[0]}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
