"""TFRecord files: the digits that come with ps_train, written as gzipped `tf.train.Example`s and read by every worker for itself.

    python examples/tfrecords.py runs/digits_tfrecords

On this machine, with one ps and two workers, each of which reads two of the four files:

    python -m ps_train --model=examples/tfrecords.py --model_params=data_dir=runs/digits_tfrecords \
        --train_steps=600 --train_dir=runs/tfrecords

On hosts, one command each (host0 is the ps, the others are workers 0 and 1):

    python -m ps_train --job_name=worker --task_index=0 --ps_hosts=host0:2222 --worker_hosts=host1:2222,host2:2222 \
        --model=examples/tfrecords.py --model_params=data_dir=/shared/digits_tfrecords \
        --train_steps=600 --train_dir=/shared/tfrecords

Accuracy on the 300 held-out digits:

    python -m ps_train eval --model=examples/tfrecords.py --model_params=data_dir=runs/digits_tfrecords --train_dir=runs/tfrecords

Measured once, all three tasks on two shared, busy cores: 97.7% after 601 steps in 3.4 s of training.

params: data_dir, hidden (units, 64), learning_rate (0.3), clip_norm (1.0)
"""

import os
import sys

import tensorflow as tf
from digits_mlp import model_fn

import ps_train
from ps_train import datasets

__all__ = ["input_fn", "model_fn"]

SPEC = {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
NUM_FILES = 4


def input_fn(context):
    """(images float32 [batch, 64], labels int64 [batch])."""
    files = "train-*.tfrecord.gz" if context.mode == "train" else "test.tfrecord.gz"
    files = os.path.join(context.params.get("data_dir", "runs/digits_tfrecords"), files)
    data = ps_train.data.from_tfrecords(context, files, SPEC, label="label")
    return data.map(lambda features, label: (features["image"], label))


def write_file(path, images, labels):
    """One gzipped file of all of them."""
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        for image, label in zip(images, labels, strict=True):
            feature = {
                "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def write_files(directory):
    """Writes the digits for training and the held-out ones into `directory`."""
    os.makedirs(directory, exist_ok=True)
    train, test = datasets.load_digits()
    write_file(os.path.join(directory, "test.tfrecord.gz"), *test)
    for number in range(NUM_FILES):
        path = os.path.join(directory, f"train-{number}.tfrecord.gz")
        write_file(path, train.images[number::NUM_FILES], train.labels[number::NUM_FILES])


if __name__ == "__main__":
    write_files(*sys.argv[1:])
    print(f"The files are in {sys.argv[1]}.")
