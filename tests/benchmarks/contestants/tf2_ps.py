"""TensorFlow 2's ParameterServerStrategy: ps and workers serve, and a coordinator (job chief) schedules each step on a worker.

    python tf2_ps.py --net=mlp --job_name=chief --ps_hosts=a:1 --worker_hosts=b:1,c:1 --chief_hosts=d:1

The coordinator does not know which worker makes a step, so it counts them all, by a variable on the ps that it reads now and
then, as it does a loss. Every worker has the data of the first: a dataset's function is not told on which worker it runs.
"""

import collections
import threading
import time

import task
import tensorflow as tf
import tf_nets
from nets import NETS

READ_SECS = 0.1


def coordinate(args, resolver):
    """Trains until it is ended."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        layers = tf_nets.layers(args.net, tf_nets.make_variable)
        count = tf.Variable(0, dtype=tf.int64)
    variables, learning_rate = (
        [variable for pair in layers for variable in pair],
        NETS[args.net].learning_rate,
    )

    @tf.function
    def step(iterator):
        features, labels = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf_nets.loss(features, labels, layers)
        for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
            variable.assign_sub(learning_rate * gradient)
        count.assign_add(1)
        return loss

    per_worker = coordinator.create_per_worker_dataset(
        lambda: tf_nets.dataset(args.net, len(args.worker_hosts), 0, args.records)
    )
    iterator = iter(per_worker)
    scheduled = collections.deque()
    watching = threading.Thread(target=watch, args=(count, scheduled, len(args.worker_hosts)), daemon=True)
    watching.start()
    while True:
        scheduled.append(coordinator.schedule(step, args=(iterator,)))


def watch(count, scheduled, num_workers):
    """Writes the progress: of those scheduled so early that only the workers' latest may not be done, the last one's loss."""
    progress, taken = task.Progress(), 0
    while True:
        time.sleep(READ_SECS)
        done, loss = int(count.numpy()), None
        while taken < done - num_workers:
            loss, taken = scheduled.popleft(), taken + 1
        if loss is not None:
            progress.at(done, loss.fetch())


def main():
    """A task of the cluster."""
    args = task.parse()
    spec = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts, "chief": args.chief_hosts})
    if args.job_name != "chief":
        tf.distribute.Server(spec, args.job_name, args.task_index).join()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    coordinate(args, resolver)


if __name__ == "__main__":
    main()
