"""MobileNetV2 of `tf.keras.applications` on a folder of pictures for each class, under MultiWorkerMirroredStrategy.

    python -m ps_train launch --num_workers=2 --max_restarts=3 -- \
        python examples/keras_mobilenet.py --steps=300 --train_dir=runs/mobilenet

On hosts that ssh reaches, with a worker and the pictures on each, and train_dir shared by all:

    python -m ps_train launch --hosts=host1,host2 --max_restarts=3 -- \
        python examples/keras_mobilenet.py --images=/data/pictures --steps=300 --train_dir=/shared/mobilenet

Without the launcher it is a single worker. The pictures are the stamps of Tux Paint, Debian's package
tuxpaint-stamps-default, or any directory with a folder for each class; every fifth is held out. The network starts from
random weights, so nothing is downloaded, but hundreds of pictures do not make it a good one.

Gradients are averaged over the workers. Batch normalization is not: each worker's batch is normalized by itself, and so are
the moving averages its own. Those of worker 0, the chief, are saved, and evaluated with.

Measured once, both workers on two shared, busy cores: 51.2% of 160 pictures in 16 classes after 300 steps of 2 x 32.
"""

import argparse
import os
import pathlib
import tempfile

import tensorflow as tf

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", default="/usr/share/tuxpaint/stamps", help="has a folder for each class")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=32, help="of each worker")
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--size", type=int, default=64, help="pixels, to which the pictures are scaled")
    parser.add_argument("--save_steps", type=int, default=50)
    parser.add_argument("--train_dir", default="runs/mobilenet")
    return parser.parse_args()


def find_pictures(directory):
    """(number of classes, (paths, labels) to train with, held-out ones); labels go by the folders' sorted names."""
    root = pathlib.Path(directory)
    paths = sorted(path for path in root.glob("*/**/*") if path.suffix.lower() in SUFFIXES)
    names = [path.relative_to(root).parts[0] for path in paths]
    classes = sorted(set(names))
    if len(classes) < 2:
        raise SystemExit(
            f"--images={directory} has {len(classes)} folders with pictures in them; two or more are expected, each a class of "
            f"{', '.join(SUFFIXES)} files. The stamps are Debian's package tuxpaint-stamps-default."
        )
    paths, labels = tf.constant([str(path) for path in paths]), tf.constant(list(map(classes.index, names)))
    is_held_out = tf.range(len(paths)) % 5 == 0
    return len(classes), *(
        (tf.boolean_mask(paths, mask), tf.boolean_mask(labels, mask)) for mask in (~is_held_out, is_held_out)
    )


def read_picture(path, size):
    """float32 `[size, size, 3]`, -1 to 1; grey becomes RGB, and what is transparent white."""
    image = tf.cast(tf.io.decode_image(tf.io.read_file(path), expand_animations=False), tf.float32) / 255
    if tf.shape(image)[-1] % 2 == 0:  # grey or RGB, and alpha
        alpha = image[..., -1:]
        image = image[..., :-1] * alpha + (1 - alpha)
    image = tf.ensure_shape(image + tf.zeros([1, 1, 3]), [None, None, 3])
    return tf.image.resize(image, [size, size], antialias=True) * 2 - 1


def make_model(num_classes, size):
    model = tf.keras.applications.MobileNetV2(
        (size, size, 3), alpha=0.35, weights=None, classes=num_classes, classifier_activation=None
    )
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.9  # its 0.999 is for many thousands of steps
    return model


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


def evaluate(model, data):
    """(mean loss, accuracy) on batches of (images, labels)."""
    predict = tf.function(
        lambda images: model(images, training=False), input_signature=[data.element_spec[0]]
    )
    loss, accuracy = tf.keras.metrics.Mean(), tf.keras.metrics.SparseCategoricalAccuracy()
    for images, labels in data:
        logits = predict(images)
        loss.update_state(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        accuracy.update_state(labels, logits)
    return loss.result().numpy(), accuracy.result().numpy()


def main(args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first: it starts the collectives' server
    is_chief = strategy.cluster_resolver.task_id in (0, None)  # None: there is no TF_CONFIG
    tf.keras.utils.set_random_seed(1)  # weights and order
    num_classes, train, held_out = find_pictures(args.images)

    def read(path, label):
        return read_picture(path, args.size), label

    def input_of_one(context):
        data = tf.data.Dataset.from_tensor_slices(train)
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(10000).repeat()
        return data.map(read, tf.data.AUTOTUNE).batch(args.batch_size).prefetch(2)

    batches = iter(strategy.distribute_datasets_from_function(input_of_one))
    num_workers = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model(num_classes, args.size)
        optimizer = tf.keras.optimizers.SGD(args.learning_rate, momentum=0.9)
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
    losses = []
    while step.numpy() < args.steps:
        losses.append(train_step(next(batches)))
        step.assign_add(1)
        if step.numpy() % args.save_steps == 0 or step.numpy() == args.steps:
            manager.save(step.numpy())
            loss = sum(losses) / len(losses)
            print(f"step {step.numpy()}/{args.steps}, mean loss {loss:.4f}, saved", flush=True)
            losses = []
    if is_chief:
        loss, accuracy = evaluate(model, tf.data.Dataset.from_tensor_slices(held_out).map(read).batch(64))
        print(f"{num_workers} workers, {args.steps} steps: loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(parse_args())
