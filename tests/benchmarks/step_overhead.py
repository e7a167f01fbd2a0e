"""What ps_train's own code costs a step: its session, hooks and loop against a bare `session.run` on the same graph.

    python tests/benchmarks/step_overhead.py [--segments=20] [--steps=300]

One ps and one worker as two processes on loopback. Segments of steps are run in turn by a raw session that runs the train op
alone, by one that fetches the loss and the global step too, as scripts do, and by the training loop, on the same graph and
server. The figures are the ratios of the loop's time to those of the other two, segment by segment. Not a timed test.
"""

import argparse
import os
import statistics
import time

from ps_train.board import Board  # noqa: F401, before the fork: TensorFlow is imported once
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.model import Model, ModelSpec, load_model
from ps_train.net import reserve_ports
from ps_train.runner import run_task


def mlp_input(context):
    """Random pixels."""
    images = tf.random.stateless_uniform([context.batch_size, 784], seed=[1, 2])
    return tf.data.Dataset.from_tensors((images, tf.zeros([context.batch_size], tf.int64))).repeat()


def mlp_model(features, labels):
    """784-512-512-10."""
    hidden = features
    for index, width in enumerate((512, 512, 10)):
        weights = tf1.get_variable(f"w{index}", [hidden.shape[1], width])
        hidden = tf.matmul(tf.nn.relu(hidden) if index else hidden, weights)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, hidden)
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.01))


MODELS = {
    "digits (64-64-10)": lambda: load_model("ps_train.builtin_model"),
    "mlp (784-512-512-10)": lambda: Model(mlp_input, mlp_model, "mlp", __file__),
}


def measure(model, cluster, update, segments, steps):
    """(ratios to the train op alone, ratios to the same fetches, ms of the train op alone), each for each segment."""
    from ps_train import graph, session
    from ps_train.hooks import StepHook, StepRunner
    from ps_train.reports import Report
    from ps_train.startup import start_task
    from ps_train.task_context import TaskContext

    task = TaskId("worker", 0)
    report = Report(task, is_chief=True)
    runtime = start_task(TaskContext(task, cluster, update), report)
    ops = graph.build_train(runtime.context, TrainConfig(update=update), model)
    fetches = {"loss": ops.loss, "examples": ops.examples, **ops.steps_seen}
    hook = StepHook(report, runtime.monitor, runtime.guard, ops.global_step, fetches)
    rows = []
    with ops.graph.as_default():
        runner = StepRunner(ops, hook, fetches)
        with session.make(runtime, hook, session.Saving(), step_runner=runner) as sess:
            raw = sess._tf_sess()
            for segment in range(segments + 1):
                bare = step_secs(lambda: raw.run(ops.step), steps)
                fetching = step_secs(lambda: raw.run([ops.step, fetches]), steps)
                start, before = time.perf_counter(), report.local_steps
                while report.local_steps < before + steps:
                    sess.run_step_fn(runner.run)
                loop = (time.perf_counter() - start) / (report.local_steps - before)
                if segment:  # the first warms up
                    rows.append((loop / bare, loop / fetching, bare * 1e3))
    from ps_train import worker

    worker.leave(runtime, "left", 0, "benchmark")
    return zip(*rows, strict=True)


def step_secs(step, steps):
    """Mean seconds of a step."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def run_pair(make_model, update, segments, steps):
    """Starts the ps, measures in a child, prints a line."""
    with reserve_ports(2) as ports:
        pass
    cluster = Cluster.from_hosts(ps=f"localhost:{ports[0]}", worker=f"localhost:{ports[1]}")
    ps = os.fork()
    if ps == 0:
        os._exit(run_task(TaskId("ps", 0), cluster, TrainConfig()))
    read, write = os.pipe()
    worker = os.fork()
    if worker == 0:
        to_bare, to_fetching, bare_ms = measure(make_model(), cluster, update, segments, steps)
        line = f"{spread(to_bare)} of the train op alone ({statistics.median(bare_ms):.2f} ms), "
        os.write(write, (line + f"{spread(to_fetching)} with the same fetches").encode())
        os._exit(0)
    os.waitpid(worker, 0)
    os.close(write)
    os.waitpid(ps, 0)
    return os.read(read, 1000).decode()


def spread(ratios):
    """Their median and quartiles in words."""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"


def main():
    """Prints a line for each model and update rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    print(
        "time of the training loop over session.run, median (quartiles) of "
        f"{args.segments} segments of {args.steps} steps, TF {tf.__version__}"
    )
    for name, make_model in MODELS.items():
        for update in ("async", "sync"):
            print(
                f"{name:22} {update:5}  {run_pair(make_model, update, args.segments, args.steps)}", flush=True
            )


if __name__ == "__main__":
    main()
