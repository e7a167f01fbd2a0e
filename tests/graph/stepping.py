"""Steps of a small model on servers in this process, whose messages can be counted: for the tests of how tensors travel.

run = Run(servers, build(servers, deep(), pack_bytes=4096))
losses, values = run.steps(8)
"""

import collections
import contextlib
import functools

import numpy as np

from ps_train import fusing, task_context
from ps_train import graph as graph_lib
from ps_train.cluster import TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.failing import fail_together
from ps_train.inputs import build_input_init
from ps_train.model import ModelSpec
from ps_train.model.loading import Model
from ps_train.prefetch import Kept
from ps_train.transport import pack
from ps_train.updates.accumulation import ACCUMULATIONS
from ps_train.updates.local import redirect
from ps_train.updates.rounds import MemberHook, UpdateLoop
from ps_train.updates.stale import noting, pull_later

PACK = 4096
FIRST_PULL = "first_pull"


def input_fn(context):
    numbers = np.random.default_rng(0).normal(size=(64, 12)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((numbers, numbers.sum(1) > 0)).repeat().batch(16)


def deep(optimizer=lambda: tf1.train.AdamOptimizer(0.05)):
    """Small weights, one large one, a regularizer, an integer and a float64 beside them, a variable that is read twice."""

    def model_fn(features, labels):
        hidden = features
        for number in range(6):
            width = 1200 if number == 3 else 12
            hidden = tf.nn.relu(dense(hidden, width, number))
        shift = tf1.get_variable("shift", [], tf.float64, tf1.zeros_initializer())
        turns = tf1.get_variable("turns", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, turns.assign_add(2).op)
        logits = tf.reduce_sum(hidden, 1) + tf.cast(shift, tf.float32) + 0.0 * tf.cast(turns, tf.float32)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
        loss += 1e-3 * tf.add_n(
            [tf.nn.l2_loss(v) for v in tf1.trainable_variables() if v.dtype.base_dtype == tf.float32]
        )
        return ModelSpec(loss=loss, optimizer=optimizer())

    return model_fn


def dense(inputs, width, number):
    weights = tf1.get_variable(f"w{number}", [inputs.shape[1], width])
    return tf.matmul(inputs, weights) + tf1.get_variable(
        f"b{number}", [width], initializer=tf1.zeros_initializer()
    )


def build(
    servers,
    model_fn,
    pack_bytes=0,
    update="async",
    wire_dtype="float32",
    fuse_bytes=0,
    index=0,
    prefetches=False,
    topk=1.0,
    **settings,
):
    """(TrainOps of worker 0, what was fused, op that initializes)."""
    context = task_context.TaskContext(
        TaskId("worker", index),
        servers.cluster,
        update,
        pack_bytes=pack_bytes,
        wire_dtype=wire_dtype,
        fuse_bytes=fuse_bytes,
        topk=topk,
        **settings,
    )
    task_context.set_current(context)
    model = Model(input_fn, model_fn, "model", __file__)
    ops = graph_lib.build_train(context, TrainConfig(seed=3, update=update), model)
    rounds = ops.graph.get_collection(ACCUMULATIONS)
    updates = [[optimizer.update_op] for optimizer in ops.sync_optimizers]
    runs = [[ops.step, ops.loss, *(one.add for one in rounds)], [one.start for one in rounds], *updates]
    redirect(ops.graph)
    fail_together(ops.graph, runs[0], context.worker_device)
    with ops.graph.as_default():
        init = tf1.global_variables_initializer()
    kept = Kept() if prefetches else None
    bucket_bytes, worker = context.bucket_bytes, context.worker_device
    fused = fusing.fuse(ops.graph, runs, worker, fuse_bytes, bucket_bytes, wire_dtype, [init], kept)
    pack(ops.graph, runs, worker, pack_bytes, bucket_bytes, wire_dtype, kept)
    if kept is not None:
        with ops.graph.as_default():
            tf1.add_to_collection(FIRST_PULL, noting(ops.graph, kept.pull))
            kept.pull_during(ops.step)
    pull_later(ops.graph, [*runs, [one.start for one in rounds]])
    return ops, fused, init


class Run:
    """A session on a graph's step."""

    def __init__(self, servers, built):
        ops, fused, init = built
        self.ops, self.fused = ops, fused
        with ops.graph.as_default():
            self.variables = tf1.global_variables()
            start = [build_input_init(), tf1.local_variables_initializer()]
        self.session = tf1.Session(servers.target(TaskId("worker", 0)), graph=ops.graph)
        self.session.run(init)
        if fused is not None:
            self.load()
        self.session.run(start)
        self.session.run(ops.graph.get_collection(FIRST_PULL))

    def load(self):
        """Moves what was initialized or restored into the flat variables."""
        for op in self.fused.load:
            self.session.run(op)

    @contextlib.contextmanager
    def serving(self):
        """Within it the rounds of a synchronous job go on."""
        (optimizer,) = self.ops.sync_optimizers
        optimizer.reset(self.session)
        failures = []
        make_session = functools.partial(tf1.Session, self.session.sess_str, graph=self.ops.graph)
        loop = UpdateLoop(optimizer, make_session, lambda: None, failures.append)
        MemberHook(optimizer).after_create_session(self.session, None)
        try:
            yield
        finally:
            loop.end(self.session)
        assert not failures

    def local_rounds(self, count, batches):
        """Steps of several batches each: the loss of each batch, and the variables afterwards."""
        rounds, losses = self.ops.graph.get_collection(ACCUMULATIONS), []
        for _ in range(count):
            self.session.run([one.start for one in rounds])
            for _ in range(batches - 1):
                losses.append(self.session.run([[one.add for one in rounds], self.ops.loss])[1])
            losses += self.steps(1)[0]
        return losses, self.steps(0)[1]

    def steps(self, count):
        losses = [self.session.run([self.ops.step, self.ops.loss])[1] for _ in range(count)]
        return losses, dict(
            zip([v.op.name for v in self.variables], self.session.run(self.variables), strict=True)
        )

    def sends(self, fetches=None):
        """How many tensors go in a step, or to fetch these, from which task to which."""
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(output_partition_graphs=True)
        fetches = fetches or [self.ops.step, self.ops.loss]
        self.session.run(fetches, options=options, run_metadata=metadata)
        return collections.Counter(
            f"{task_of(node, 'send_device')}>{task_of(node, 'recv_device')}"
            for part in metadata.partition_graphs
            for node in part.node
            if node.op == "_Send"
            and not node.attr["tensor_name"].s.endswith((b"NoOp", b"NoOp_1", b"AssignAddVariableOp"))
        )

    def sent_types(self):
        """How many tensors of which type go between tasks in a step."""
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(output_partition_graphs=True)
        self.session.run([self.ops.step, self.ops.loss], options=options, run_metadata=metadata)
        sends = [node for part in metadata.partition_graphs for node in part.node if node.op == "_Send"]
        return collections.Counter(
            tf.as_dtype(node.attr["T"].type).name.replace("float32", "float") for node in sends
        )


def task_of(node, attribute):
    spec = tf.DeviceSpec.from_string(node.attr[attribute].s.decode())
    return f"{spec.job}:{spec.task}"


OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.05),
}
