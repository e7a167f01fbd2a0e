"""In-graph replication: one client builds the graph of all workers, the other worker tasks lend it their devices.

Variables are on the ps, and each worker task has a tower: its own shard of the digits and its own copy of the ops. The client is
worker 0, the chief; the others call `server.join()`, which returns when the job is over. One command for each task, here on one host:

    python examples/in_graph.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 \
        --train_dir=runs/in_graph --job_name=ps --task_index=0

    ... --job_name=worker --task_index=1
    ... --job_name=worker --task_index=0

With --update=sync (the default) the mean of the towers' gradients is applied once. With --update=async each tower has a thread of the
client's that applies its gradients as they come. If a worker is lost, the client goes on as soon as it is back.

Measured once, on two shared cores: sync 97.3% of the held-out digits after 300 steps, async 97.3% after 601.
"""

import threading

import ps_train
from ps_train.compat import tf1 as tf
from ps_train.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the ps tasks")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the worker tasks")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index of this task in its job")
flags.DEFINE_enum("update", "sync", ["sync", "async"], "How the towers' gradients are applied")
flags.DEFINE_integer("batch_size", 32, "Examples per tower and step")
flags.DEFINE_integer("train_steps", 300, "Global steps")
flags.DEFINE_float("learning_rate", 0.5, "Of gradient descent")
flags.DEFINE_string("train_dir", None, "Directory of the checkpoints")
FLAGS = flags.FLAGS


def read_shard(digits, index, count):
    """(images [batch, 64], labels [batch]) of every count-th digit; the reading goes on on the task of the device scope."""
    shard = tf.data.Dataset.from_tensor_slices((digits.images[index::count], digits.labels[index::count]))
    iterator = tf.data.make_initializable_iterator(shard.repeat().batch(FLAGS.batch_size))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)  # run with each new session
    return iterator.get_next()


def build_logits(images):
    weights = tf.get_variable("weights", [64, 10], initializer=tf.zeros_initializer())
    biases = tf.get_variable("biases", [10], initializer=tf.zeros_initializer())
    return tf.matmul(images, weights) + biases


def build_towers(cluster, digits, optimizer):
    """[(gradient, variable), ...] of each worker's tower; all towers have the same variables."""
    towers, count = [], cluster.num_tasks("worker")
    for index in range(count):
        setter = ps_train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
        with tf.device(setter), tf.variable_scope("model", reuse=index > 0), tf.name_scope(f"tower_{index}"):
            images, labels = read_shard(digits, index, count)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=build_logits(images))
            )
            towers.append(optimizer.compute_gradients(loss))
    return towers


class TowerThreads(tf.train.SessionRunHook):
    """Trains each of some towers in a thread on the client's session, until the last step or until its Coordinator says stop."""

    def __init__(self, steps, last_step):
        self._steps, self._last_step = steps, last_step
        self.counts = [0] * len(steps)

    def after_create_session(self, session, coord):
        """Starts the threads; also in a session that is made after a loss, which has ended those on the one before."""
        self._coord = coord
        self._threads = [
            threading.Thread(target=self._train, args=(session, index), daemon=True)
            for index in range(len(self._steps))
        ]
        for thread in self._threads:
            thread.start()

    def _train(self, session, index):
        coord = self._coord
        with coord.stop_on_exception():
            while not coord.should_stop():
                step = session.run(self._steps[index])
                self.counts[index] += 1
                if step >= self._last_step:
                    coord.request_stop()

    def end(self, session):
        """Comes before the last checkpoint, which none of these steps may pass."""
        self._coord.request_stop()
        self._coord.join(self._threads, stop_grace_period_secs=30)
        print("steps of the threads:", *self.counts)


def train(server, cluster):
    train_digits, test_digits = load_digits()
    with tf.device(ps_train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(FLAGS.learning_rate)
        towers = build_towers(cluster, train_digits, optimizer)
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
        if FLAGS.update == "sync":
            means = [
                (tf.add_n([gradient for gradient, _ in pairs]) / len(pairs), pairs[0][1])
                for pairs in zip(*towers, strict=True)
            ]
            train_op = optimizer.apply_gradients(means, global_step=global_step)
        else:  # the main thread has the first tower, and its steps the hooks
            steps = []
            for tower in towers:
                with tf.control_dependencies([optimizer.apply_gradients(tower, global_step=global_step)]):
                    steps.append(global_step.read_value())
            train_op, *others = steps
            hooks.append(TowerThreads(others, FLAGS.train_steps))
        with tf.variable_scope("model", reuse=True):
            is_right = tf.equal(tf.argmax(build_logits(test_digits.images), 1), test_digits.labels)
        accuracy = tf.reduce_mean(tf.cast(is_right, tf.float32))

    with ps_train.MonitoredTrainingSession(
        server.target, is_chief=True, checkpoint_dir=FLAGS.train_dir, hooks=hooks
    ) as session:
        while not session.should_stop():
            session.run(train_op)
        step, value = session.run_step_fn(
            lambda step_context: step_context.session.run([global_step, accuracy])
        )
        print(f"step {step}: {value:.1%} of the held-out digits")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = ps_train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "worker" and FLAGS.task_index == 0:
        train(server, cluster)
    else:
        server.join()


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.app.run()
