"""What packing is worth: the rate of a job with `--pack_bytes` over that of the same job without, on loopback.

    python tests/benchmarks/transport.py [--models=deep,mlp,big] [--pack_bytes=auto] [--update=async] [--repeats=5] [--secs=6]

1 ps and 2 workers as processes on this machine, started anew for each figure, without and with it in turn; the ratio of each pair of
neighbours is one number. Steps a second are the global ones, counted by the ps while both workers train.

- deep: 101 layers of 64x64, 202 variables, 1.7 MB, batch 32: many small variables;
- mlp: 784-512-512-10, 2.7 MB, batch 64;
- big: 1024-4096-4096-10, 84 MB, batch 32: bytes.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from harness import Job
from watched import read_step

import ps_train
from ps_train.board import Board
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1

WIDTHS = {"deep": [64] * 102, "mlp": [784, 512, 512, 10], "big": [1024, 4096, 4096, 10]}
BATCHES = {"deep": 32, "mlp": 64, "big": 32}
WARM_STEPS = 20


def input_fn(context):
    """One batch of random numbers, again and again."""
    widths = WIDTHS[context.params["widths"]]
    features = tf.random.stateless_uniform([context.batch_size, widths[0]], seed=[1, context.shard_index])
    labels = tf.zeros([context.batch_size], tf.int64)
    return tf.data.Dataset.from_tensors((features, labels)).cache().repeat()


def model_fn(features, labels, params):
    """Dense layers, plain SGD."""
    hidden, widths = features, WIDTHS[params["widths"]]
    for index, width in enumerate(widths[1:]):
        weights = tf1.get_variable(f"w{index}", [hidden.shape[1], width])
        biases = tf1.get_variable(f"b{index}", [width], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(tf.nn.relu(hidden) if index else hidden, weights) + biases
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, hidden)
    return ps_train.ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(1e-4))


def rate(name, update, pack_bytes, secs):
    """Global steps a second."""
    flags = [
        f"--model={__file__}", f"--model_params=widths={name}", f"--batch_size={BATCHES[name]}", f"--update={update}",
        f"--pack_bytes={pack_bytes}", "--train_steps=100000000", "--log_every_secs=0.2",
    ]  # fmt: skip
    with Job(pathlib.Path(tempfile.mkdtemp()), 1, 2, flags=flags) as job:
        _, *workers = job.start_all()
        for worker in workers:
            worker.wait_for_line(rf"step (\d*[1-9]\d|{WARM_STEPS})/")
        time.sleep(1)
        board = Board(job.ps_hosts[0], TaskId("ps", 0))
        step, at = read_step(board), time.monotonic()
        time.sleep(secs)
        end = read_step(board)
        return (end - step) / (time.monotonic() - at)


def main():
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="deep,mlp,big")
    parser.add_argument("--update", default="async")
    parser.add_argument("--pack_bytes", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--secs", type=float, default=6.0)
    args = parser.parse_args()
    for name in args.models.split(","):
        pairs = [
            [rate(name, args.update, pack_bytes, args.secs) for pack_bytes in ("0", args.pack_bytes)]
            for _ in range(args.repeats)
        ]
        ratios = sorted(packed / plain for plain, packed in pairs)
        print(
            f"{name} {args.update}: {statistics.median(plain for plain, _ in pairs):.1f} steps/s, with "
            f"--pack_bytes={args.pack_bytes} {statistics.median(ratios):.2f} times that ({ratios[0]:.2f}-{ratios[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
