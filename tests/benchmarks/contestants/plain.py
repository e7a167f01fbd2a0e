"""The script for parameter servers as TensorFlow 1's documentation has it, with no line of ps_train; alone without hosts.

python plain.py --net=mlp --job_name=ps --task_index=0 --ps_hosts=a:1 --worker_hosts=b:1,c:1
python plain.py --net=mlp --job_name=worker --task_index=0 --ps_hosts=a:1 --worker_hosts=b:1,c:1 --update=sync
python plain.py --net=mlp                      # one process, no server: what training costs by itself
"""

import task
import tensorflow.compat.v1 as tf
import tf_nets
from nets import NETS


def train(args, target, device):
    """Trains until it is ended."""
    num_workers, is_chief = len(args.worker_hosts) or 1, args.task_index == 0
    with tf.device(device):
        dataset = tf_nets.dataset(args.net, num_workers, args.task_index, args.records)
        iterator = tf.data.make_initializable_iterator(dataset)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        features, labels = iterator.get_next()
        loss = tf_nets.loss(features, labels, tf_nets.layers(args.net, tf.get_variable))
        optimizer = tf.train.GradientDescentOptimizer(NETS[args.net].learning_rate)
        hooks = []
        if args.update == "sync":
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, num_workers, num_workers)
            hooks = [optimizer.make_session_run_hook(is_chief, num_tokens=0)]
        train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    if not is_chief:
        task.wait_for_chief()
    hooks += [tf_nets.ProgressHook(loss)]
    with tf.train.MonitoredTrainingSession(target, is_chief, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)


def main():
    """A task of the cluster, or the one process."""
    args = task.parse()
    tf.disable_v2_behavior()
    if not args.worker_hosts:
        return train(args, "", None)
    cluster = tf.train.ClusterSpec({"ps": args.ps_hosts, "worker": args.worker_hosts})
    server = tf.train.Server(cluster, args.job_name, args.task_index)
    if args.job_name == "ps":
        return server.join()
    worker = f"/job:worker/task:{args.task_index}"
    return train(args, server.target, tf.train.replica_device_setter(cluster=cluster, worker_device=worker))


if __name__ == "__main__":
    main()
