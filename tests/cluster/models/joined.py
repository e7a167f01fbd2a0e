"""A script whose worker 0 trains on a device of worker 1, which only joins: `joined.py JOB INDEX PS WORKERS TRAIN_DIR CHIEF SECS [STEPS]`.

CHIEF is "trains", "pins" (the variable, too, is on worker 1), or "joins" as a mistake; SECS is how long a lost peer is waited for.
"""

import sys
import time

import tensorflow.compat.v1 as tf

import ps_train

job, index, ps_hosts, worker_hosts, train_dir, chief, secs = sys.argv[1:8]
cluster = tf.train.ClusterSpec({"ps": ps_hosts.split(","), "worker": worker_hosts.split(",")})
server = ps_train.Server(
    cluster, job_name=job, task_index=int(index), peer_timeout_secs=float(secs), shutdown_timeout_secs=8
)
if (job, index) != ("worker", "0") or chief == "joins":
    server.join()
    print("joined", flush=True)
    sys.exit()

with tf.device(ps_train.replica_device_setter(worker_device="/job:worker/task:1", cluster=cluster)):
    with tf.device("/job:worker/task:1" if chief == "pins" else None):
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.001).minimize(tf.square(w - 1.0), global_step=step)
steps = int(sys.argv[8]) if len(sys.argv) > 8 else 10**9
hooks = [tf.train.StopAtStepHook(last_step=steps)]
with ps_train.MonitoredTrainingSession(
    server.target, checkpoint_dir=train_dir, hooks=hooks, save_checkpoint_steps=50
) as session:
    while not session.should_stop():
        if session.run([train_op, step])[1] % 20 == 0:
            print("trained", flush=True)
        time.sleep(0.01)
