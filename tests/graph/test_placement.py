"""Where each thing of a graph lands, read off the GraphDef, and that layers' updates run, once a step, with their formula."""

import numpy as np
import pytest
from in_process import lend_servers

from ps_train import graph as graph_lib
from ps_train import placement, splitting, task_context
from ps_train.cluster import Cluster, TaskId
from ps_train.compat import tf, tf1
from ps_train.config import TrainConfig
from ps_train.model import ModelSpec
from ps_train.model.loading import Model

pytestmark = pytest.mark.graph

CLUSTER = Cluster.from_hosts("p0:1,p1:1,p2:1", "w0:1,w1:1")
WORKER = "/job:worker/task:1"


def context_of(index=1, update="async"):
    return task_context.TaskContext(TaskId("worker", index), CLUSTER, update)


@pytest.fixture
def scope():
    with tf1.Graph().as_default(), placement.scope(context_of()):
        yield


def is_on_ps(thing):
    return "/job:ps/" in device_of(thing)


def device_of(thing):
    """Device in the GraphDef of a tensor, an op, a variable or a table."""
    thing = getattr(thing, "handle", getattr(thing, "resource_handle", thing))
    op = getattr(thing, "op", thing)
    nodes = {node.name: node.device for node in op.graph.as_graph_def().node}
    return nodes[op.name]


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("dtype", [tf.float32, tf.int64, tf.bool])
def test_variables_of_any_type_take_turns_on_the_ps(scope, dtype, trainable):
    trainable = trainable and dtype is tf.float32
    made = [
        tf1.get_variable(f"v{i}", [2], dtype, tf1.zeros_initializer(), trainable=trainable) for i in range(4)
    ]
    assert [device_of(v) for v in made] == [f"/job:ps/task:{i}" for i in (0, 1, 2, 0)]


@pytest.mark.parametrize("use_resource", [True, False])
def test_string_variable(scope, use_resource):
    words = tf1.get_variable(
        "words", initializer=tf.constant(["a", "b"]), trainable=False, use_resource=use_resource
    )
    assert is_on_ps(words) and is_on_ps(words.initializer)


def test_variables_are_read_and_written_beside_them():
    """As the runtime places it: the GraphDef leaves reads to the worker, and the handle's device wins."""
    servers = lend_servers(num_ps=2, num_workers=1)
    context = task_context.TaskContext(TaskId("worker", 0), servers.cluster)
    with tf1.Graph().as_default() as graph, placement.scope(context):
        a, b = (tf1.get_variable(name, [2]) for name in "ab")
        train = tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(a * b))
        init = tf1.global_variables_initializer()
    options = tf1.RunOptions(output_partition_graphs=True)
    with tf1.Session(servers.target(context.task), graph=graph) as session:
        session.run(init)
        metadata = tf1.RunMetadata()
        session.run(train, options=options, run_metadata=metadata)
    placed = {(n.op, n.device) for part in metadata.partition_graphs for n in part.node}
    for op in ("ReadVariableOp", "ResourceApplyAdam"):
        devices = {device for kind, device in placed if kind == op}
        assert devices == {f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)}, op


CLUSTER_OF_4 = Cluster.from_hosts("p0:1,p1:1,p2:1,p3:1", "w0:1")


def make_layers(*shapes):
    """Weights and biases in turn, which round-robin places on two ps of four (P22 of what users reported)."""
    with (
        tf1.Graph().as_default(),
        placement.scope(task_context.TaskContext(TaskId("worker", 0), CLUSTER_OF_4)),
    ):
        for number, shape in enumerate(shapes):
            tf1.get_variable(f"w{number}", shape)
            tf1.get_variable(f"b{number}", shape[-1:])
        return placement.shares(CLUSTER_OF_4, placement.held(CLUSTER_OF_4, tf1.global_variables()))


def test_the_ps_that_holds_least_gets_the_next_variable():
    found = make_layers([784, 1000], [1000, 1000], [1000, 1000], [1000, 800])
    assert [share.num_bytes for share in found] == [3_139_200, 4_004_000, 4_000_000, 3_208_000]
    assert [share.largest for share in found] == ["w0", "w2", "w1", "w3"]
    assert placement.advice(found) == ""


def test_the_first_ps_is_filled_first():
    strategy = placement.LeastLoaded([2, 5, 7], first_bytes=100)
    with tf1.Graph().as_default(), tf1.device("/job:worker"):
        ops = [
            tf1.get_variable(f"v{size}", [size], tf.int8).handle.op for size in (60, 39, 1, 50, 51, 200, 8)
        ]
    assert [strategy(op) for op in ops] == [2, 2, 2, 5, 7, 5, 7]
    strategy = placement.LeastLoaded([0, 1], first_bytes=1000)
    with tf1.Graph().as_default(), tf1.device("/job:worker"):
        parts = list(tf1.get_variable("t", [8, 2], partitioner=tf1.fixed_size_partitioner(4)))
        assert [strategy(part.handle.op) for part in parts] == [0, 1, 0, 1], "parts are to be spread"
        assert strategy(tf1.get_variable("v", [1]).handle.op) == 0


@pytest.mark.parametrize(
    ("hosts", "limit"),
    [
        ("h0:1,h1:1", placement.FAR_BYTES),
        ("127.0.0.1:1,localhost:2,127.0.0.1:3", placement.GATHERED_BYTES),
        ("h0:1", placement.GATHERED_BYTES),
        ("h0:1,h0:2,h1:1,h1:2", placement.FAR_BYTES // 3),
    ],
)
def test_how_much_the_first_worker_holds_by_itself(hosts, limit):
    cluster = Cluster.from_hosts(worker=hosts, is_colocated=True)
    assert placement.first_ps_limit("auto", cluster) == limit
    assert placement.first_ps_limit("0", cluster) == 0 and placement.first_ps_limit("77", cluster) == 77
    assert placement.first_ps_limit("auto", CLUSTER) == 0


def test_a_variable_that_is_more_than_a_part_is_named():
    found = make_layers([5000, 1000], [1000, 10])
    assert [share.num_bytes for share in found] == [20_000_000, 4_000, 40_000, 40]
    assert [share.num_variables for share in found] == [1, 1, 1, 1]
    assert placement.advice(found) == (
        "ps:0 has w0, which is more than its part. Split it: "
        "tf.compat.v1.get_variable(..., partitioner=tf.compat.v1.fixed_size_partitioner(4))"
    )
    assert placement.advice(make_layers([500, 10])) == "", "it is small"


def test_slots_count_with_their_variable():
    """So that Adam's are not taken for variables to be split, and the variable for a third of what it takes."""
    cluster = Cluster.from_hosts("p0:1,p1:1", "w0:1")
    with tf1.Graph().as_default(), placement.scope(task_context.TaskContext(TaskId("worker", 0), cluster)):
        rows = tf.nn.embedding_lookup(tf1.get_variable("a/table", [500_000, 10]), [1, 2])
        tf1.train.AdamOptimizer().minimize(tf.reduce_sum(rows) + tf1.get_variable("b", [1000])[0])
        found = placement.shares(cluster, placement.held(cluster, tf1.global_variables()))
    assert (found[0].largest, found[0].largest_bytes) == ("a/table", 60_000_000)
    assert placement.advice(found).startswith("ps:0 has a/table, which is more than its part.")


@pytest.mark.parametrize("partition", ["none", "auto"])
def test_what_is_held_is_what_a_checkpoint_has(tmp_path, monkeypatch, partition):
    """Its names, shapes, types and bytes; slots are counted with their variables, and parts add up to the whole."""
    monkeypatch.setattr(splitting, "MIN_PART_BYTES", 4000)
    cluster = Cluster.from_hosts("p0:1,p1:1", "w0:1")
    context = task_context.TaskContext(TaskId("worker", 0), cluster, partition=partition)
    with tf1.Graph().as_default() as graph, placement.scope(context):
        tf1.train.get_or_create_global_step()
        table = tf1.get_variable("a/table", [600, 10])
        rows = tf.nn.embedding_lookup(table, [1, 2])
        half = tf1.get_variable("half", [7], tf.float64)
        tf1.train.AdamOptimizer().minimize(tf.reduce_sum(rows) + tf.cast(tf.reduce_sum(half), tf.float32))
        found = placement.held(cluster, tf1.global_variables())
        saver, init = tf1.train.Saver(), tf1.global_variables_initializer()
    for op in graph.get_operations():
        op._set_device("")
    with tf1.Session(graph=graph) as session:
        session.run(init)
        path = saver.save(session, str(tmp_path / "model"))
    reader = tf.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert {row.name for row in found} == {"global_step", "a/table", "half", "beta1_power", "beta2_power"}
    assert sum(row.total_bytes for row in found) == sum(value.nbytes for value in values.values())
    for name in {row.name for row in found}:
        parts = [row for row in found if row.name == name]
        own = [value for key, value in values.items() if key == name or key.startswith(f"{name}/")]
        assert sum(row.total_bytes for row in parts) == sum(value.nbytes for value in own), name
        assert {row.dtype for row in parts} == {values[name].dtype.name}
        assert {row.whole or row.shape for row in parts} == {values[name].shape}
        assert [row.num_slots for row in parts] == [len(own) - 1] * len(parts)
    parts = [row for row in found if row.name == "a/table"]
    assert [(row.ps, row.part, row.shape) for row in parts] == (
        [("ps:1", None, (600, 10))]
        if partition == "none"
        else [("ps:1", (0, 0), (300, 10)), ("ps:0", (300, 0), (300, 10))]
    )


def test_what_a_device_scope_puts_somewhere_counts_there(scope):
    with tf1.device("/job:ps/task:1"):
        pinned = tf1.get_variable("pinned", [1000])
    others = [tf1.get_variable(f"v{i}", [100]) for i in range(4)]
    assert device_of(pinned) == "/job:ps/task:1"
    assert [device_of(v) for v in others] == [f"/job:ps/task:{i}" for i in (0, 2, 0, 2)]


def test_a_ps_may_hold_nothing():
    found = make_layers([10, 10])
    assert [share[:4] for share in found[2:]] == [("ps:2", 0, 0, ""), ("ps:3", 0, 0, "")]
    assert placement.advice(make_layers()) == ""


def test_parts_of_a_table_are_spread(scope):
    table = tf1.get_variable("t", [9, 2], partitioner=tf1.fixed_size_partitioner(3))
    assert sorted(device_of(part) for part in table) == [f"/job:ps/task:{i}" for i in range(3)]


@pytest.mark.parametrize("optimizer", [tf1.train.AdamOptimizer(0.1), tf1.train.MomentumOptimizer(0.1, 0.9)])
def test_slots_are_with_their_variable(scope, optimizer):
    a, b = (tf1.get_variable(name, [2]) for name in "ab")
    optimizer.minimize(tf.reduce_sum(a * b))
    for variable in (a, b):
        for name in optimizer.get_slot_names():
            assert device_of(optimizer.get_slot(variable, name)) == device_of(variable)
    assert all(is_on_ps(variable) for variable in optimizer.variables())


def test_local_variables_stay_on_the_worker(scope):
    accuracy, update = tf1.metrics.accuracy(tf.constant([1]), tf.constant([1]))
    epochs = tf1.get_variable("epochs", [], collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False)
    local = tf1.local_variables()
    assert len(local) == 3 and epochs in local
    assert [device_of(variable) for variable in local] == [WORKER] * 3
    assert device_of(accuracy) == WORKER and device_of(update) == WORKER


def test_tables(scope):
    """Static ones are each worker's own copy; mutable ones hold what is learnt."""
    initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64))
    static = tf.lookup.StaticHashTable(initializer, -1)
    mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2)
    assert device_of(static) == WORKER
    assert all(device_of(op) == WORKER for op in tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS))
    assert is_on_ps(mutable) and is_on_ps(dense)
    assert is_on_ps(mutable.insert(tf.constant(["c"]), tf.constant([2], tf.int64)))


def test_a_device_scope_of_the_users_wins(scope):
    with tf1.device("/job:ps/task:2"):
        pinned = tf1.get_variable("pinned", [2])
        product = pinned * 2.0
    assert device_of(pinned) == device_of(product) == "/job:ps/task:2"


def test_no_cluster_no_device():
    with tf1.Graph().as_default(), placement.scope(None):
        assert device_of(tf1.get_variable("v", [2])) == ""


def test_setter_of_a_script_takes_its_task_from_the_server():
    task_context.set_current(context_of())
    with tf1.Graph().as_default(), tf1.device(placement.replica_device_setter(cluster=CLUSTER.as_dict())):
        v = tf1.get_variable("v", [2])
        assert device_of(v) == "/job:ps/task:0"
        assert device_of(tf.constant(1.0)) == WORKER


# Whole graphs.

DATA = np.arange(48, dtype=np.float32).reshape(6, 8)


def input_fn(context):
    return tf.data.Dataset.from_tensor_slices((DATA, DATA[:, :1])).repeat().batch(6)


def normalized_model(features, labels, mode, params):
    keras = tf.keras.layers
    hidden = keras.BatchNormalization(momentum=0.75, name="bn")(features, training=True)
    hidden = keras.Dropout(0.5)(hidden, training=True)
    loss = tf.reduce_mean(tf.square(keras.Dense(1)(hidden) - labels))
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.0))


def hand_made_model(features, labels, mode, params):
    """A moving mean as a TF1 script has it."""
    mean = tf1.get_variable("mean", [8], initializer=tf1.zeros_initializer(), trainable=False)
    update = mean.assign_sub(0.25 * (mean - tf.reduce_mean(features, 0)))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    w = tf1.get_variable("w", [8, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
    return ModelSpec(loss=loss, optimizer=tf1.train.GradientDescentOptimizer(0.0))


def build(model_fn, index=0, update="async", context=None):
    context = context or context_of(index, update)
    task_context.set_current(context)
    return graph_lib.build_train(
        context, TrainConfig(batch_size=6), Model(input_fn, model_fn, "test", "test.py")
    )


def ancestors(op):
    """All ops that run when `op` does."""
    found, todo = set(), [op]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def as_op(thing):
    return thing if isinstance(thing, tf.Operation) else thing.op


@pytest.mark.parametrize("update", ["async", "sync"])
def test_every_op_of_a_training_graph_has_a_task(update):
    """But for reads, which TensorFlow puts beside their variable, and initializers, which it leaves free."""
    nodes = build(normalized_model, 1, update).graph.as_graph_def().node
    free = [n for n in nodes if not n.device and n.op != "ReadVariableOp" and "/Initializer/" not in n.name]
    assert not free
    tasks = {node.device.split("/device")[0] for node in nodes if node.device}
    assert tasks == {WORKER, *(f"/job:ps/task:{i}" for i in range(3))}


def test_input_is_on_the_worker():
    ops = build(normalized_model, 1)
    iterators = [op for op in ops.graph.get_operations() if "Iterator" in op.type]
    assert {"IteratorV2", "IteratorGetNext", "MakeIterator"} <= {op.type for op in iterators}
    assert {device_of(op) for op in iterators} == {WORKER + "/device:CPU:0"}


def test_keras_layers_variables_are_on_the_ps():
    ops = build(normalized_model, 1)
    variables = ops.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    names = " ".join(v.op.name for v in variables)
    assert all(is_on_ps(v) for v in variables)
    for part in ("gamma", "moving_mean", "moving_variance", "kernel", "seed_generator_state", "global_step"):
        assert part in names


@pytest.mark.parametrize("model_fn, count", [(normalized_model, 3), (hand_made_model, 1)])
def test_update_ops_run_with_the_step(model_fn, count):
    ops = build(model_fn)
    updates = ops.graph.get_collection(tf1.GraphKeys.UPDATE_OPS)
    assert len(updates) == count  # two moving averages and the dropout's seed, or the one by hand
    assert {as_op(update) for update in updates} <= ancestors(as_op(ops.step))


@pytest.mark.parametrize("model_fn, count", [(normalized_model, 3), (hand_made_model, 1)])
def test_in_sync_the_chief_updates_moving_averages_with_its_step(model_fn, count):
    """Once a step and not with the update besides, which would take a batch of its own out of the input."""
    for index in (0, 1):
        ops = build(model_fn, index, "sync")
        updates = {as_op(op) for op in ops.graph.get_collection(tf1.GraphKeys.UPDATE_OPS)}
        assert len(updates) == count
        assert len(updates & ancestors(as_op(ops.step))) == (count if index == 0 else 0)


@pytest.mark.parametrize("model_fn", [normalized_model, hand_made_model])
def test_in_sync_nothing_but_the_step_reads_input(model_fn):
    (optimizer,) = build(model_fn, 0, "sync").sync_optimizers
    ledger = optimizer.ledger
    for op in (
        optimizer.update_op, optimizer._move_accumulators, *optimizer._takes, *optimizer._counts, optimizer._set_stamp,
        ledger.reset, ledger.join, ledger.leave, ledger.attach, ledger.freeze, ledger.thaw, ledger.token,
        ledger.snapshot, ledger.is_initialized,
    ):  # fmt: skip
        types = {ancestor.type for ancestor in ancestors(as_op(op))}
        assert "IteratorGetNext" not in types, f"{op.name} reads input"


def test_moving_averages_follow_their_formula():
    """In one process: after each step new = 0.75 * old + 0.25 * mean of the batch."""
    server = tf1.train.Server.create_local_server()
    for model_fn, part in ((normalized_model, "moving_mean"), (hand_made_model, "mean")):
        with tf1.Graph().as_default():
            ops = build(model_fn)
            meta = tf1.train.export_meta_graph(graph=ops.graph, clear_devices=True)
        mean = next(
            v for v in ops.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES) if v.op.name.endswith(part)
        )
        with tf1.Graph().as_default(), tf1.Session(server.target) as session:
            tf1.train.import_meta_graph(meta)
            session.run([tf1.global_variables_initializer(), "MakeIterator"])
            expected = np.zeros(8)
            for _ in range(3):
                session.run(as_op(ops.step).name)
                expected = 0.75 * expected + 0.25 * DATA.mean(0)
                np.testing.assert_allclose(
                    session.run(f"{mean.op.name}/Read/ReadVariableOp:0"), expected, rtol=1e-5
                )


def test_ps_indices_with_gaps():
    """A sparse cluster's variables go to the ps tasks that there are."""
    cluster = Cluster.from_dict({"ps": {"0": "p0:1", "2": "p2:1"}, "worker": ["w0:1"]})
    context = task_context.TaskContext(TaskId("worker", 0), cluster)
    with tf1.Graph().as_default(), placement.scope(context):
        devices = [tf1.get_variable(f"v{i}", [1]).device for i in range(4)]
    assert devices == ["/job:ps/task:0", "/job:ps/task:2"] * 2
