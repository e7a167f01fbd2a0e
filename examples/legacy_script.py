"""A TensorFlow 1 script with its own loop and parameter servers, before and after porting to ps_train.

legacy_script_before.py uses `tf.train` as such scripts did; legacy_script.py is the same script after porting,
five lines further. Compare:

    diff examples/legacy_script_before.py examples/legacy_script.py

On TensorFlow 2.21 the original trains but does not end: its ps waits for ever, and in two runs of two (once async,
once with --sync_replicas) one of the two workers hung when the other had reached the last step.
The flags stay as they were. One command for each task, here all on this machine:

    python examples/legacy_script.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 \
        --train_dir=runs/legacy --job_name=ps --task_index=0

    ... --job_name=worker --task_index=0
    ... --job_name=worker --task_index=1

With --sync_replicas the workers' gradients are averaged.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import ps_train
from ps_train.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the ps tasks")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the worker tasks")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index of this task in its job")
flags.DEFINE_boolean("sync_replicas", False, "Average the workers' gradients")
flags.DEFINE_integer("batch_size", 32, "Examples per worker and step")
flags.DEFINE_integer("train_steps", 400, "Global steps")
flags.DEFINE_float("learning_rate", 0.003, "Adam's learning rate")
flags.DEFINE_string("train_dir", None, "Directory of the checkpoints")
FLAGS = flags.FLAGS


def build_model(images, labels):
    weights1 = tf.get_variable("weights1", [64, 64])
    biases1 = tf.get_variable("biases1", [64], initializer=tf.zeros_initializer())
    weights2 = tf.get_variable("weights2", [64, 10])
    biases2 = tf.get_variable("biases2", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(tf.nn.relu(tf.matmul(images, weights1) + biases1), weights2) + biases2
    return tf.losses.sparse_softmax_cross_entropy(labels, logits)


def main(_):
    ps_hosts = FLAGS.ps_hosts.split(",")
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = ps_train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    is_chief = FLAGS.task_index == 0
    worker_device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(ps_train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        images = tf.placeholder(tf.float32, [None, 64])
        labels = tf.placeholder(tf.int64, [None])
        loss = build_model(images, labels)
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(FLAGS.learning_rate)
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
        if FLAGS.sync_replicas:
            optimizer = ps_train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=len(worker_hosts), total_num_replicas=len(worker_hosts)
            )
            hooks.append(optimizer.make_session_run_hook(is_chief))
        train_op = optimizer.minimize(loss, global_step=global_step)

    train, _ = load_digits()
    rng = np.random.RandomState(FLAGS.task_index)
    with ps_train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=FLAGS.train_dir,
        hooks=hooks,
    ) as session:
        while not session.should_stop():
            rows = rng.randint(0, len(train.labels), FLAGS.batch_size)
            batch = {images: train.images[rows], labels: train.labels[rows]}
            _, loss_value, step = session.run([train_op, loss, global_step], feed_dict=batch)
            if step % 100 == 0:
                print(f"worker {FLAGS.task_index}: step {step}, loss {loss_value:.3f}")


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.app.run()
