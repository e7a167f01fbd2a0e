"""TensorFlow 2's MultiWorkerMirroredStrategy in a training loop of its own; Keras 3's `fit` fails with it.

python multiworker.py --net=mlp --task_index=0 --worker_hosts=a:1,b:1
"""

import json
import os

import task
import tensorflow as tf
import tf_nets
from nets import NETS


def train(args):
    """Trains until it is ended."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = tf_nets.layers(args.net, tf_nets.make_variable)
        optimizer = tf.keras.optimizers.SGD(NETS[args.net].learning_rate)
        variables = [variable for pair in layers for variable in pair]
        optimizer.build(variables)
    iterator = iter(
        strategy.distribute_datasets_from_function(
            lambda context: tf_nets.dataset(
                args.net, context.num_input_pipelines, context.input_pipeline_id, args.records
            )
        )
    )

    def replica_step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf_nets.loss(features, labels, layers)
            part = loss / strategy.num_replicas_in_sync
        optimizer.apply_gradients(zip(tape.gradient(part, variables), variables, strict=True))
        return loss

    @tf.function
    def step():
        return strategy.run(replica_step, args=next(iterator))

    progress = task.Progress()
    progress.begin()
    while True:
        progress.step(strategy.experimental_local_results(step())[0])


def main():
    """A worker."""
    args = task.parse()
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": args.worker_hosts}, "task": {"type": "worker", "index": args.task_index}}
    )
    train(args)


if __name__ == "__main__":
    main()
