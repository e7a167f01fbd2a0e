"""Containers: what two clients on different servers share of the ps, what each keeps for itself, and how that alone is cleared.

Both workers count the digits of their half of the data. `total`, of all jobs, has a name that both use; `own` has one name, too, but
is in a container for each worker, and so there are two of them. One command for each task, here all on this machine:

    python examples/shared_variables.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224 \
        --job_name=ps --task_index=0

    ... --job_name=worker --task_index=0
    ... --job_name=worker --task_index=1

At the end worker 0 clears its container by tf.Session.reset: its `own` is gone, and made anew by the next session; `total` and the
other worker's `own` are as they were. A reset also ends every session of the server that it goes through, and of no other one. Here
that is worker 0's, and a ps_train session is made anew for the next step. A reset that names no container clears `total`, too.

Measured once, on two shared cores: worker 0 prints a total of 1497 and its own 749 before the reset, 1497 and 0 after it; worker 1 has its 748.
"""

import time

import numpy as np

import ps_train
from ps_train.compat import tf1 as tf
from ps_train.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated host:port of the ps tasks")
flags.DEFINE_string("worker_hosts", "", "Comma-separated host:port of the two worker tasks")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Index of this task in its job")
FLAGS = flags.FLAGS


def make_counts(name, collection):
    """How often each of the ten digits was seen; those of the local collection are initialized with each session of a task's."""
    return tf.get_variable(
        name, [10], tf.int64, tf.zeros_initializer(), trainable=False, collections=[collection]
    )


def wait_for(session, counter, value):
    while session.run(counter) < value:
        time.sleep(0.1)


def main(_):
    index, workers = FLAGS.task_index, FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    server = ps_train.Server(cluster, job_name=FLAGS.job_name, task_index=index)
    if FLAGS.job_name == "ps":
        return server.join()

    container = f"worker{index}"  # letters, digits and dots
    with tf.device(ps_train.replica_device_setter(cluster=cluster)):
        stage = (
            tf.train.get_or_create_global_step()
        )  # 2: both have counted; 3: worker 0 has cleared its container
        total = make_counts("total", tf.GraphKeys.GLOBAL_VARIABLES)
        with tf.container(container):
            own = make_counts("own", tf.GraphKeys.LOCAL_VARIABLES)
        counts = np.bincount(load_digits()[0].labels[index :: len(workers)], minlength=10)
        with tf.control_dependencies(
            [tf.assign_add(total, counts, use_locking=True), tf.assign_add(own, counts)]
        ):
            count = tf.assign_add(stage, 1, use_locking=True)
        advance = tf.assign_add(stage, 1, use_locking=True)
        sums = [tf.reduce_sum(total), tf.reduce_sum(own)]

    with ps_train.MonitoredTrainingSession(server.target, is_chief=index == 0) as session:
        session.run(count)
        wait_for(session, stage, 2)
        if index == 0:
            print("before the reset: total {}, own {}".format(*session.run(sums)))
            tf.Session.reset(server.target, [container])
            print("after the reset: total {}, own {}".format(*session.run(sums)))
            session.run(advance)
        else:
            wait_for(session, stage, 3)
            print("after the other's reset: total {}, own {}".format(*session.run(sums)))


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.app.run()
