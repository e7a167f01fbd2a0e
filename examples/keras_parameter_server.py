"""ParameterServerStrategy and its ClusterCoordinator on Fashion-MNIST: the chief hands out steps, the workers run them.

    python -m ps_train launch --chief --num_ps=1 --num_workers=2 -- \
        python examples/keras_parameter_server.py --steps=600 --train_dir=runs/parameter_server

On hosts that ssh reaches, where the ps has host0, and the chief and two workers the other slots:

    python -m ps_train launch --hosts=host0,host1:2,host2 --chief --num_ps=1 -- \
        python examples/keras_parameter_server.py --steps=600 --train_dir=runs/parameter_server

Ps tasks and workers are servers that never end by themselves: the launcher ends them when the chief is done. Keras 3's `fit`
does not know this strategy, so the loop is written out, and the optimizer is a line of its own.

Measured once, all four tasks on two shared cores: 80.6% after 600 steps of 64 pictures.
"""

import argparse

import tensorflow as tf

from ps_train.datasets import load_idx_images


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600, help="over all workers")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument(
        "--steps_per_round", type=int, default=100, help="handed out before the chief looks and saves"
    )
    parser.add_argument("--train_dir", default="runs/parameter_server")
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser.parse_args()


class Mlp(tf.Module):
    """784-128-10; variables are made one after the other on the ps tasks in turn."""

    def __init__(self):
        super().__init__()
        self.layers = [
            (tf.Variable(tf.random.normal([n, m], stddev=n**-0.5)), tf.Variable(tf.zeros([m])))
            for n, m in ((784, 128), (128, 10))
        ]

    def __call__(self, images):
        """Logits of pictures `[batch, 28, 28]`."""
        (weights, biases), (weights_out, biases_out) = self.layers
        hidden = tf.nn.relu(tf.matmul(tf.reshape(images, [-1, 784]), weights) + biases)
        return tf.matmul(hidden, weights_out) + biases_out


def serve(resolver):
    """What a ps or a worker does."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()


def coordinate(args, resolver):
    """What the chief does."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Mlp()
        step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, step=step)
    manager = tf.train.CheckpointManager(checkpoint, args.train_dir, max_to_keep=3, step_counter=step)
    if manager.restore_or_initialize():
        print(f"restored step {step.numpy()}", flush=True)

    train, test = load_idx_images(args.data_dir)

    def input_of_a_worker():  # called on each worker
        data = tf.data.Dataset.from_tensor_slices((train.images, train.labels)).shuffle(10000).repeat()
        return data.batch(args.batch_size).map(
            lambda images, labels: (tf.cast(images, tf.float32) / 255, labels)
        )

    @tf.function
    def train_step(iterator):
        def step_of_one(images, labels):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
                loss = tf.reduce_mean(losses)
            for variable, gradient in zip(
                model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                variable.assign_sub(args.learning_rate * gradient)
            step.assign_add(1)
            return loss

        return strategy.run(step_of_one, next(iterator))

    batches = iter(coordinator.create_per_worker_dataset(input_of_a_worker))
    while step.numpy() < args.steps:
        count = min(args.steps_per_round, args.steps - step.numpy())
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(count)]
        coordinator.join()
        manager.save()
        print(f"step {step.numpy()}/{args.steps}, loss {losses[-1].fetch():.4f}, saved", flush=True)
    logits = model(tf.constant(test.images / 255.0, tf.float32))
    accuracy = tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == test.labels, tf.float32)).numpy()
    print(f"{args.steps} steps: accuracy {accuracy:.4f}")


def main(args):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    else:
        coordinate(args, resolver)


if __name__ == "__main__":
    main(parse_args())
