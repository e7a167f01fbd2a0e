"""MultiWorkerMirroredStrategy with a loop of its own on Fashion-MNIST: workers that average their gradients, no ps.

    python -m ps_train launch --num_workers=2 --max_restarts=3 -- \
        python examples/keras_multi_worker.py --steps=600 --train_dir=runs/multi_worker

On hosts that ssh reaches, with a worker on each (train_dir has to be shared, as all go on from it):

    python -m ps_train launch --hosts=host1,host2 --max_restarts=3 -- \
        python examples/keras_multi_worker.py --steps=600 --train_dir=/shared/multi_worker

Keras 3's `fit` does not run under this strategy (it fails with "Attempt to convert a value (PerReplica..."), so the loop is
written out. A collective never heals: when a worker is lost all have to start again, as --max_restarts has it, and go on
from the newest checkpoint. The chief is worker 0; the others take part in a save, and write theirs to a directory of no use.

Measured once, both workers on two shared cores: 84.2% after 600 steps of 2 x 64 pictures.
"""

import argparse
import os
import tempfile

import tensorflow as tf

from ps_train.datasets import load_idx_images


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch_size", type=int, default=64, help="of each worker")
    parser.add_argument("--save_steps", type=int, default=100)
    parser.add_argument("--train_dir", default="runs/multi_worker")
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser.parse_args()


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input([28, 28]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def make_train_step(strategy, model, optimizer, global_batch_size):
    """One step on all workers: (images, labels) of each -> mean loss."""

    def step_of_one(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(step_of_one, batch), axis=None)

    return train_step


def main(args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first: it starts the collectives' server
    cluster = strategy.cluster_resolver
    is_chief = cluster.task_type == "chief" or (cluster.task_type, cluster.task_id) == ("worker", 0)
    train, test = load_idx_images(args.data_dir)

    def input_of_one(context):
        data = tf.data.Dataset.from_tensor_slices((train.images, train.labels))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(10000).repeat()
        return data.batch(args.batch_size).map(
            lambda images, labels: (tf.cast(images, tf.float32) / 255, labels)
        )

    batches = iter(strategy.distribute_datasets_from_function(input_of_one))
    num_workers = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, name="step")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    newest = tf.train.latest_checkpoint(args.train_dir)
    if newest:
        checkpoint.restore(newest).assert_existing_objects_matched()
        print(f"restored step {step.numpy()}", flush=True)
    if strategy.reduce("SUM", strategy.run(lambda: step + 0), None).numpy() != num_workers * step.numpy():
        raise SystemExit(f"--train_dir={args.train_dir} is not one directory for all workers. Share one.")
    directory = args.train_dir if is_chief else os.path.join(tempfile.mkdtemp(), "of_no_use")
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3, step_counter=step)

    train_step = make_train_step(strategy, model, optimizer, args.batch_size * num_workers)
    while step.numpy() < args.steps:
        loss = train_step(next(batches))
        step.assign_add(1)
        if step.numpy() % args.save_steps == 0 or step.numpy() == args.steps:
            manager.save()
            print(f"step {step.numpy()}/{args.steps}, loss {loss.numpy():.4f}, saved", flush=True)
    if is_chief:
        logits = model(test.images / 255.0, training=False)
        accuracy = tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == test.labels, tf.float32)).numpy()
        print(f"{num_workers} workers, {args.steps} steps: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(parse_args())
