"""MirroredStrategy with Keras's `fit` on Fashion-MNIST: one process, a replica on each of two devices.

    python examples/keras_mirrored.py --steps=600

Without GPUs the two are logical devices of the CPU. Nothing of ps_train runs but the reader of the data, Debian's package
dataset-fashion-mnist; `python -m ps_train launch --num_workers=1 -- python examples/keras_mirrored.py` starts it, too.

Measured once on two shared cores: 85.0% after 600 steps of 128 pictures.
"""

import argparse

import tensorflow as tf

from ps_train.datasets import load_idx_images


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch_size", type=int, default=128, help="of both replicas together")
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser.parse_args()


def two_devices():
    """Two GPUs, or else two logical devices of the CPU."""
    if len(tf.config.list_physical_devices("GPU")) >= 2:
        return ["GPU:0", "GPU:1"]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["CPU:0", "CPU:1"]


def main(args):
    strategy = tf.distribute.MirroredStrategy(two_devices())
    train, test = load_idx_images(args.data_dir)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input([28, 28]),
                tf.keras.layers.Flatten(),
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
    model.fit(train_data, steps_per_epoch=args.steps, verbose=0)
    _, accuracy = model.evaluate(test_data, verbose=0)
    print(f"{strategy.num_replicas_in_sync} replicas, {args.steps} steps: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(parse_args())
