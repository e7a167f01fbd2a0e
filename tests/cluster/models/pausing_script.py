"""A script whose loop is held up now and then by code of its own: `pausing_script.py JOB INDEX PS WORKERS TRAIN_DIR UPDATE`."""

import sys
import time

import tensorflow.compat.v1 as tf

import ps_train

job, index, ps_hosts, worker_hosts = sys.argv[1:5]
cluster = tf.train.ClusterSpec({"ps": ps_hosts.split(","), "worker": worker_hosts.split(",")})
server = ps_train.Server(cluster, job_name=job, task_index=int(index), stall_secs=2)
if job == "ps":
    server.join()
    sys.exit()


def fetch_points():
    time.sleep(6)


with tf.device(ps_train.replica_device_setter(cluster=cluster)):
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.001).minimize(tf.square(w - 1.0), global_step=step)
with ps_train.MonitoredTrainingSession(server.target, index == "0") as session:
    for number in range(60):
        if number == 20 and index == "0":
            fetch_points()
        session.run(train_op)
        time.sleep(0.05)
