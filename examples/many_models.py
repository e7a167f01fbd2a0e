"""Many models at once: a search for the best learning rate, each experiment a job of its own, with no variable shared.

Here --parallel of them at a time, each a process with its own train_dir, and a table of the results at the end:

    python examples/many_models.py --dir=runs/search --learning_rates=0.01,0.03,0.1,0.3,1,3

On several hosts or under srun, with --dir on a disk of all: each task takes every --num_tasks-th experiment.

    python examples/many_models.py --dir=/shared/search --num_tasks=3 --task_index=0    # on host0; 1 on host1, 2 on host2

The same command again does what is left: an experiment that is done is not run again, one that was stopped goes on from its
checkpoint. With more --train_steps all go on. The model is examples/digits_mlp.py; --model names another one that has
`params["learning_rate"]` and a metric `accuracy`.

Measured once, on two shared cores, 400 steps each: the best of six is 1, with 98.0% of the held-out digits, the worst 3, with 8.3%.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys


def read_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = pathlib.Path(__file__).parent / "digits_mlp.py"
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="for a directory of each experiment")
    parser.add_argument("--learning_rates", default="0.01,0.03,0.1,0.3,1,3", help="comma-separated")
    parser.add_argument("--train_steps", type=int, default=400, help="global steps of each experiment")
    parser.add_argument("--parallel", type=int, default=2, help="experiments at a time in this task")
    parser.add_argument("--num_tasks", type=int, default=1, help="tasks that divide the experiments")
    parser.add_argument("--task_index", type=int, default=0, help="which of them this is")
    parser.add_argument("--model", default=model, help="path of the model's file")
    return parser.parse_args()


def read_result(directory, train_steps):
    """(step, accuracy) of an experiment that is done, else None."""
    try:
        report = json.loads((directory / "report.json").read_text())
        accuracy = re.search(
            r"^Held-out data:.* accuracy ([\d.]+)", (directory / "output.txt").read_text(), re.M
        )
    except FileNotFoundError:
        return None
    is_done = report["outcome"] == "done" and report["global_step"] >= train_steps
    return (report["global_step"], float(accuracy[1])) if is_done and accuracy else None


def run(rate, directory, args):
    """Runs one experiment to its end, unless it is done; its exit status, 128 + the signal's number if that ended it."""
    if read_result(directory, args.train_steps):
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "ps_train", f"--model={args.model}", f"--model_params=learning_rate={rate}",
        "--colocate_ps", "--num_workers=1", f"--train_steps={args.train_steps}", f"--train_dir={directory}",
        f"--report_file={directory / 'report.json'}", "--seed=1", "--evaluate",
    ]  # fmt: skip
    with open(directory / "output.txt", "w") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    return 128 - code if code < 0 else code


def main():
    args = read_args()
    rates = args.learning_rates.split(",")
    directories = {rate: args.dir / f"learning_rate_{rate}" for rate in rates}
    mine = rates[args.task_index :: args.num_tasks]
    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        statuses = dict(
            zip(mine, pool.map(lambda rate: run(rate, directories[rate], args), mine), strict=True)
        )
    print("learning rate   step   accuracy")
    for rate, directory in directories.items():
        result = read_result(directory, args.train_steps)
        status = (
            f"status {statuses[rate]}: see {directory / 'output.txt'}" if statuses.get(rate) else "not done"
        )
        print(f"{rate:>13}" + ("   {:>4}   {:>8.1%}".format(*result) if result else f"   {status}"))
    sys.exit(max(statuses.values(), default=0))


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    main()
