"""A variable that is split over the ps tasks is used, trained and saved as the whole one would be."""

import numpy as np
import pytest
from in_process import Servers
from stepping import PACK, Run, build

from ps_train import fingerprint, placement, splitting, task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.model import ModelSpec
from ps_train.split_variable import Split

pytestmark = pytest.mark.graph

CLUSTER = Cluster.from_hosts("p0:1,p1:1,p2:1", "w0:1")
TABLE = np.random.default_rng(1).normal(size=(11, 4)).astype(np.float32)
KERNEL = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
IDS = [[0, 10, 3], [5, 0, 7]]
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.05),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.05),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.05),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.05),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(task_context, "_current", [])
    monkeypatch.setattr(splitting, "MIN_PART_BYTES", 48)


@pytest.fixture(scope="module")
def servers():
    return Servers(num_ps=2, num_workers=1)


@pytest.fixture
def scope():
    with tf1.Graph().as_default(), scope_of("auto"):
        yield


def scope_of(partition, cluster=CLUSTER):
    return placement.scope(task_context.TaskContext(TaskId("worker", 0), cluster, partition=partition))


def evaluate(*tensors):
    """Their values, here and whatever their devices, once all variables are initialized."""
    with tf1.get_default_graph().as_default():
        init = tf1.global_variables_initializer()
    meta = tf1.train.export_meta_graph(clear_devices=True)
    names = [tensor.name for tensor in tensors]
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.train.import_meta_graph(meta)
        session.run(init.name)
        return session.run(names)


# Training.


def model_of(optimizer, is_dense=True, is_sparse=True):
    def model_fn(features, labels):
        hidden = tf.zeros([1, 4])
        if is_sparse:
            table = tf1.get_variable("emb/table", initializer=TABLE)
            ids = tf.cast(tf.abs(features[:, :3]) * 7, tf.int64) % 11
            hidden += tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
            hidden += tf.gather(table, ids[:, 0])
        if is_dense:
            kernel = tf1.get_variable("kernel", initializer=KERNEL)
            hidden += tf.matmul(features, kernel)
            tf1.losses.add_loss(0.01 * tf.nn.l2_loss(kernel))
        bias = tf1.get_variable("bias", [4], initializer=tf1.zeros_initializer())
        logits = tf.reduce_sum(tf.tanh(hidden + bias), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits))
        return ModelSpec(loss=loss + tf1.losses.get_regularization_loss(), optimizer=optimizer())

    return model_fn


def whole(values):
    """The parts of each variable and slot put together."""
    found = {}
    for name in sorted(values, key=lambda name: [int(w[5:]) if w[:5] == "part_" else 0 for w in name.split("/")]):
        key = "/".join(word for word in name.split("/") if not word.startswith("part_"))
        found[key] = np.concatenate([found[key], values[name]]) if "part_" in name and key in found else values[name]
    return found


def assert_trains_alike(servers, model_fn, update="async", exact=True, **options):
    results = []
    for partition in ("none", "auto"):
        run = Run(servers, build(servers, model_fn, update=update, partition=partition, **options))
        if update == "sync":
            with run.serving():
                losses, values = run.steps(5)
        else:
            losses, values = run.steps(5)
        results.append((losses, values))
    (expected, plain), (losses, values) = results
    assert any("part_1" in name for name in values) and not any("part_" in name for name in plain)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    joined = whole(values)
    assert joined.keys() == plain.keys()
    for name in joined.keys():
        np.testing.assert_allclose(joined[name], plain[name], rtol=0 if exact else 2e-6, atol=0 if exact else 1e-7)


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_does_the_same(servers, name, update):
    assert_trains_alike(servers, model_of(OPTIMIZERS[name]), update, exact=False)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_step_is_the_same_bit_for_bit(servers, kind):
    model_fn = model_of(OPTIMIZERS["adam"], is_dense=kind == "dense", is_sparse=kind == "sparse")
    assert_trains_alike(servers, model_fn)


@pytest.mark.parametrize(
    "options",
    [
        {"pack_bytes": PACK},
        {"pack_bytes": PACK, "fuse_bytes": PACK},
        {"pack_bytes": PACK, "fuse_bytes": 40},
        {"pack_bytes": PACK, "prefetches": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("update", ["async", "sync"])
def test_however_it_travels(servers, update, options):
    if update == "sync" and "prefetches" in options:
        pytest.skip("no --prefetch in sync")
    assert_trains_alike(servers, model_of(OPTIMIZERS["adam"]), update, exact=False, **options)
