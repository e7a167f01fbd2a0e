"""MultiWorkerMirroredStrategy with Keras's `fit` on Fashion-MNIST: Keras 2 alone can do it, of the extra legacy-layers.

    TF_USE_LEGACY_KERAS=1 python -m ps_train launch --num_workers=2 --max_restarts=3 -- python examples/keras_fit.py --epochs=6

Under Keras 3 this `fit` fails with "Attempt to convert a value (PerReplica ...) to a Tensor": keras_multi_worker.py has a loop of
its own for that. `launch` sets TF_CONFIG for each task. When a task fails, all are started again, and go on from the last epoch that
is backed up in train_dir, which all have to share. The data is Debian's package dataset-fashion-mnist.

Measured once on two shared, busy cores: 84.5% after 600 steps of 128 pictures.
"""

import argparse

import tensorflow as tf

from ps_train.datasets import load_idx_images


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps_per_epoch", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=128, help="of all workers together")
    parser.add_argument("--train_dir", default="runs/keras_fit")
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser.parse_args()


def main(args):
    if tf.keras.Model.__module__.startswith("keras."):
        raise SystemExit("Keras 3's fit does not work here. Set TF_USE_LEGACY_KERAS=1 for all tasks.")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train, test = load_idx_images(args.data_dir)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=[28, 28]),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.001),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    train_data = tf.data.Dataset.from_tensor_slices((train.images / 255.0, train.labels))
    train_data = train_data.shuffle(10000).repeat().batch(args.batch_size)
    test_data = tf.data.Dataset.from_tensor_slices((test.images / 255.0, test.labels)).batch(500)
    seen = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: print(
            f"epoch {epoch + 1} of {args.epochs}: loss {logs['loss']:.4f}", flush=True
        )
    )
    backup = tf.keras.callbacks.BackupAndRestore(args.train_dir)
    model.fit(
        train_data, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, callbacks=[seen, backup], verbose=0
    )  # fmt: skip
    _, accuracy = model.evaluate(test_data, verbose=0)  # every worker takes part
    if strategy.cluster_resolver.task_id in (0, None):
        print(f"{strategy.num_replicas_in_sync} workers, {args.epochs} epochs: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(parse_args())
