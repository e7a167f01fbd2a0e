"""A script with a loop of its own at module level, as users write them: `script.py JOB INDEX PS WORKERS TRAIN_DIR sync|async`."""

import sys
import time

import tensorflow.compat.v1 as tf

import ps_train

job, index, ps_hosts, worker_hosts, train_dir, update = sys.argv[1:7]
index, worker_hosts = int(index), worker_hosts.split(",")
cluster = tf.train.ClusterSpec({"ps": ps_hosts.split(","), "worker": worker_hosts})
server = ps_train.Server(
    cluster, job_name=job, task_index=index, peer_timeout_secs=8, shutdown_timeout_secs=8
)
if job == "ps":
    server.join()
    sys.exit()

with tf.device(ps_train.replica_device_setter(cluster=cluster)):
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.GradientDescentOptimizer(0.001)
    if update == "sync":
        optimizer = ps_train.SyncReplicasOptimizer(optimizer, len(worker_hosts), len(worker_hosts))
    train_op = optimizer.minimize(tf.square(w - 1.0), global_step=step)
steps = int(sys.argv[7]) if len(sys.argv) > 7 else 10**9
hooks = [tf.train.StopAtStepHook(last_step=steps)]
with ps_train.MonitoredTrainingSession(
    server.target, index == 0, checkpoint_dir=train_dir, hooks=hooks
) as session:
    while not session.should_stop():
        session.run(train_op)
        time.sleep(0.01)
print("the loop has ended", flush=True)
time.sleep(float(sys.argv[8]) if len(sys.argv) > 8 else 0)
