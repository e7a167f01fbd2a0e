"""A pipeline of queues on the ps: producers read files, trainers take batches, and each digit is trained on exactly once.

    files (FIFOQueue) -> producers -> digits (RandomShuffleQueue) -> producers -> batches (PaddingFIFOQueue) -> trainers

The last --producers of the workers are producers. Whichever is free takes the next CSV file; its QueueRunners put the rows into
`digits`, and of each one the pixels that have ink, a list of any length, into `batches`, which pads a batch to its longest. The last
producer that has nothing more for a queue closes it. Then what is left is taken, and whoever takes next gets an OutOfRangeError, by
which a loop ends: so does every process. First write the files, then one command for each task, here all on this machine:

    python examples/queue_pipeline.py --write_files --data_dir=runs/digits_csv
    python examples/queue_pipeline.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224,localhost:2225 \
        --data_dir=runs/digits_csv --train_dir=runs/queues --job_name=ps --task_index=0

    ... --job_name=worker --task_index=0    # trainer, as is worker 1; worker 2 is the producer

A trainer that gets no batch for --wait_secs says so, and the job ends with 1. What queues hold is lost with their ps.

Measured once, 2 trainers and 2 producers on two shared cores: 1497 digits, each once, in 47 batches; 92.0% of the held-out ones.
"""

import glob
import os
import sys
import time

import numpy as np

import ps_train
from ps_train.compat import tf1 as tf
from ps_train.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the ps tasks")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the worker tasks")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index of this task in its job")
flags.DEFINE_integer("producers", 1, "How many of the workers, the last ones, are producers")
flags.DEFINE_float("wait_secs", 60, "How long a trainer waits for a batch")
flags.DEFINE_string("data_dir", "runs/digits_csv", "Directory of the CSV files")
flags.DEFINE_string("train_dir", None, "Directory of the checkpoints")
flags.DEFINE_boolean("write_files", False, "Write the CSV files and end")
FLAGS = flags.FLAGS
BATCH_SIZE, NUM_DIGITS = 32, 1497


def write_files():
    """The digits for training in ten files: number, label and the 64 pixels of each."""
    os.makedirs(FLAGS.data_dir, exist_ok=True)
    digits, _ = load_digits()
    table = np.column_stack([np.arange(NUM_DIGITS), digits.labels, digits.images])
    for part, rows in enumerate(np.array_split(table, 10)):
        np.savetxt(os.path.join(FLAGS.data_dir, f"part-{part}.csv"), rows, "%g", ",")


def build_queues():
    """On the ps, by names that all processes share."""
    types = [tf.int64, tf.int64, tf.float32]  # number, label, pixels
    padded = [tf.int64, *types]
    with tf.device("/job:ps/task:0"):
        return (
            tf.FIFOQueue(100, [tf.string], [[]], shared_name="files"),
            tf.RandomShuffleQueue(600, 200, types, [[], [], [64]], shared_name="digits"),
            tf.PaddingFIFOQueue(300, padded, [[], [], [None], [None]], shared_name="batches"),
        )


def build_producer(files, digits, batches):
    """The QueueRunners of the two stages; the session starts them, and they end when there is nothing more to take."""
    text = tf.strings.strip(tf.io.read_file(files.dequeue()))
    columns = tf.io.decode_csv(tf.strings.split([text], "\n").values, [[0], [0], *[[0.0]] * 64])
    numbers, labels = (tf.cast(column, tf.int64) for column in columns[:2])
    read = digits.enqueue_many([numbers, labels, tf.stack(columns[2:], axis=1)])
    number, label, image = digits.dequeue()
    inked = tf.where(image > 0)[:, 0]
    pad = batches.enqueue([number, label, inked, tf.gather(image, inked)])
    for name, queue, enqueue in (("digits", digits, read), ("batches", batches, pad)):
        # The cancel_op that a QueueRunner has by itself would close the queue for all, if this producer ends early.
        close = build_close(queue, name)
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue], close, cancel_op=tf.no_op()))


def build_close(queue, name):
    """Closes a queue for the last of the producers: an earlier close would refuse what the others still have."""
    with tf.device("/job:ps/task:0"):
        ended = tf.FIFOQueue(1000, [tf.bool], [[]], shared_name=f"{name}_ended")
        with tf.control_dependencies([ended.enqueue(True)]):
            is_last = tf.greater_equal(ended.size(), FLAGS.producers)
        return tf.cond(is_last, lambda: tf.group(queue.close()), tf.no_op)


def build_trainer(batches):
    """The step: softmax regression on the inked pixels, which counts how often it has seen each digit."""
    numbers, labels, inked, values = batches.dequeue_up_to(BATCH_SIZE)
    weights = tf.get_variable("weights", [64, 10], initializer=tf.zeros_initializer())
    biases = tf.get_variable("biases", [10], initializer=tf.zeros_initializer())
    seen = tf.get_variable("seen", [NUM_DIGITS], tf.int32, tf.zeros_initializer(), trainable=False)
    rows = tf.nn.embedding_lookup(weights, inked)  # padding is pixel 0, with no ink
    logits = tf.reduce_sum(rows * values[:, :, tf.newaxis], axis=1) + biases
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    step = tf.train.GradientDescentOptimizer(0.5).minimize(loss, tf.train.get_or_create_global_step())
    with tf.device(seen.device):
        count = tf.scatter_add(seen, numbers, tf.ones_like(numbers, tf.int32))
    return tf.group(step, count)


def train(session, step):
    """A trainer's loop, until the batches are used up."""
    options = tf.RunOptions(timeout_in_ms=int(1000 * FLAGS.wait_secs))
    while not session.should_stop():
        try:
            session.run(step, options=options)
        except tf.errors.DeadlineExceededError:
            sys.exit(f"No batch for {FLAGS.wait_secs:g} s: are all {FLAGS.producers} producers running?")


def show_result():
    found = tf.train.load_checkpoint(FLAGS.train_dir)
    seen, (_, test) = found.get_tensor("seen"), load_digits()
    logits = test.images @ found.get_tensor("weights") + found.get_tensor("biases")
    accuracy = np.mean(logits.argmax(1) == test.labels)
    print(f"each digit trained on {seen.min()} to {seen.max()} times; {accuracy:.1%} of the held-out ones")


def main(_):
    if FLAGS.write_files:
        return write_files()
    workers, index = FLAGS.worker_hosts.split(","), FLAGS.task_index
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    server = ps_train.Server(cluster, job_name=FLAGS.job_name, task_index=index)
    if FLAGS.job_name == "ps":
        return server.join()
    is_chief, is_producer = index == 0, index >= len(workers) - FLAGS.producers
    with tf.device(
        ps_train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    ):
        files, digits, batches = build_queues()
        step = build_trainer(batches)  # in a producer, too: all tasks have the same variables
        if is_producer:
            build_producer(files, digits, batches)
        paths = sorted(glob.glob(os.path.join(FLAGS.data_dir, "*.csv")))
        with tf.control_dependencies([files.enqueue_many([paths])]):
            fill = files.close()
        is_filled, is_produced = files.is_closed(), batches.is_closed()

    with ps_train.MonitoredTrainingSession(server.target, is_chief, FLAGS.train_dir) as session:
        if is_chief and not session.run(is_filled):
            session.run(fill)
        if is_producer:  # its QueueRunners work
            while not (session.should_stop() or session.run(is_produced)):
                time.sleep(0.2)
        else:
            train(session, step)
    if is_chief and FLAGS.train_dir:
        show_result()


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.app.run()
