"""A variable that is split over the ps tasks is used, trained and saved as the whole one would be."""

import numpy as np
import pytest
from in_process import lend_servers
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
    monkeypatch.setattr(splitting, "MIN_PART_BYTES", 48)


@pytest.fixture
def servers():
    return lend_servers(num_ps=2, num_workers=1)


@pytest.fixture
def scope():
    with tf1.Graph().as_default(), scope_of("auto"):
        yield


def scope_of(partition, cluster=CLUSTER):
    return placement.scope(task_context.TaskContext(TaskId("worker", 0), cluster, partition=partition))


def evaluate(servers, *tensors):
    """Their values once all variables are initialized."""
    with tf1.Session(servers.target(TaskId("worker", 0)), graph=tf1.get_default_graph()) as session:
        session.run(tf1.global_variables_initializer())
        return session.run(tensors)


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
    for name in sorted(
        values, key=lambda name: [int(w[5:]) if w[:5] == "part_" else 0 for w in name.split("/")]
    ):
        key = "/".join(word for word in name.split("/") if not word.startswith("part_"))
        found[key] = (
            np.concatenate([found[key], values[name]]) if "part_" in name and key in found else values[name]
        )
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
        np.testing.assert_allclose(
            joined[name], plain[name], rtol=0 if exact else 2e-6, atol=0 if exact else 1e-7
        )


@pytest.mark.parametrize(
    ("name", "update"), [*((name, "async") for name in OPTIMIZERS), ("sgd", "sync"), ("adam", "sync")]
)
def test_every_optimizer_does_the_same(servers, name, update):
    assert_trains_alike(servers, model_of(OPTIMIZERS[name]), update, exact=False)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_step_is_the_same_bit_for_bit(servers, kind):
    model_fn = model_of(OPTIMIZERS["adam"], is_dense=kind == "dense", is_sparse=kind == "sparse")
    assert_trains_alike(servers, model_fn)


@pytest.mark.parametrize("name", ["momentum", "adam", "ftrl"])
@pytest.mark.parametrize(
    "options", [{}, {"default_id": 4, "combiner": "sum"}, {"is_weighted": True, "max_norm": 0.7}], ids=str
)
def test_a_safe_lookup_leaves_alone_what_it_does_not_read(servers, name, options):
    """Optimizers with a memory change a row whose gradient is there, though it be zero."""

    def model_fn(features, labels):
        numbers, more = tf.unstack(tf.reshape(features[:3], [2, 3, 6])[:, :, :2]), dict(options)
        ids = tf.where(
            numbers[0] < -0.5, tf.cast(-1, tf.int64), tf.cast(tf.abs(numbers[0]) * 7, tf.int64) % 11
        )
        places = tf.where(tf.ones_like(ids, tf.bool))
        ids, weights = (tf.SparseTensor(places, tf.reshape(v, [-1]), [3, 2]) for v in (ids, numbers[1]))
        if more.pop("is_weighted", False):
            more["sparse_weights"] = weights
        table = tf1.get_variable("emb/table", initializer=TABLE)
        loss = tf.reduce_sum(tf.square(tf1.nn.safe_embedding_lookup_sparse(table, ids, **more)))
        return ModelSpec(loss=loss, optimizer=OPTIMIZERS[name]())

    assert_trains_alike(servers, model_fn, exact=False)


@pytest.mark.parametrize(
    ("update", "options"),
    [
        ("async", {"pack_bytes": PACK}),
        ("async", {"pack_bytes": PACK, "fuse_bytes": 40}),
        ("async", {"pack_bytes": PACK, "fuse_bytes": PACK}),
        ("sync", {"pack_bytes": PACK, "fuse_bytes": PACK}),
    ],
    ids=str,
)
def test_however_it_travels(servers, update, options):
    assert_trains_alike(servers, model_of(OPTIMIZERS["adam"]), update, exact=False, **options)


@pytest.mark.parametrize("options", [{"prefetches": True}, {"wire_dtype": "int8"}, {"topk": 0.5}], ids=str)
def test_what_loses_something_on_the_way_still_learns(options):
    """A worker's own variables go by their place in the graph, so that each graph has servers of its own."""
    own = lend_servers(num_ps=2, num_workers=1)
    model_fn = model_of(OPTIMIZERS["sgd"])
    losses, _ = Run(own, build(own, model_fn, PACK, partition="auto", **options)).steps(12)
    assert losses[-1] < losses[0]


def test_batches_are_added_up(servers):
    built = build(servers, model_of(OPTIMIZERS["sgd"], is_sparse=False), partition="auto", accumulate_steps=2)
    Run(servers, built).steps(1)


def test_a_number_gone_wrong_is_named(servers):
    def model_fn(features, labels):
        kernel = tf1.get_variable("kernel", initializer=KERNEL)
        return ModelSpec(tf.reduce_sum(tf.math.log(kernel - 1e9)), optimizer=OPTIMIZERS["sgd"]())

    run = Run(servers, build(servers, model_fn, partition="auto"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train found the loss"):
        run.steps(1)


def test_a_lookup_pulls_rows_and_no_table(servers):
    def model_fn(features, labels):
        table = tf1.get_variable("big", initializer=np.ones([6000, 4], np.float32))
        rows = tf.nn.embedding_lookup(table, [3, 5999, 3, 0])
        return ModelSpec(tf.reduce_sum(rows * rows), optimizer=OPTIMIZERS["sgd"]())

    run = Run(servers, build(servers, model_fn, partition="auto"))
    options, metadata = tf1.RunOptions(output_partition_graphs=True), tf1.RunMetadata()
    run.session.run([run.ops.step, run.ops.loss], options=options, run_metadata=metadata)
    on_ps = [n.op for part in metadata.partition_graphs for n in part.node if "job:ps" in n.device]
    everywhere = [n.op for part in metadata.partition_graphs for n in part.node]
    assert on_ps.count("ResourceGather") == everywhere.count("ResourceGather") == 2
    reads = [n for part in metadata.partition_graphs for n in part.node if n.op == "ReadVariableOp"]
    assert not [n.name for n in reads if "big" in n.name]
    assert everywhere.count("ConcatV2") <= 1, "the shape of the rows"


# What a model can do with one.


def table_and_kernel():
    return tf1.get_variable("table", initializer=TABLE), tf1.get_variable("kernel", initializer=KERNEL)


def uses():
    """Name -> tensor of the two variables, whatever they are."""
    table, kernel = table_and_kernel()
    ids = tf.constant(IDS)
    sparse = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [2, 1]], tf.constant([2, 10, 0, 10], tf.int64), [4, 2])
    odd = tf.SparseTensor(sparse.indices, tf.constant([2, -1, 9, -5], tf.int64), sparse.dense_shape)
    weights = tf.SparseTensor(sparse.indices, [0.5, 2.0, 1.0, 3.0], sparse.dense_shape)
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([3, 9, 10]), [2, 0, 1])
    x = tf.ones([2, 12])
    return {
        "lookup": tf.nn.embedding_lookup(table, ids),
        "lookup of v1": tf1.nn.embedding_lookup([table], ids, max_norm=0.7),
        "lookup, mod": tf1.nn.embedding_lookup(table, [1, 2, 10], partition_strategy="mod"),
        "lookup of one": tf.nn.embedding_lookup(table, 7),
        "lookup of none": tf.nn.embedding_lookup(table, np.zeros([0, 2], np.int64)),
        "lookup, ragged": tf.nn.embedding_lookup(table, ragged).flat_values,
        "gather": tf.gather(table, tf.constant([[10], [4]], tf.int64)),
        "gather of an axis": tf.gather(table, [1, 3], axis=1),
        "gather_nd": tf.gather_nd(table, [[10, 3], [0, 1]]),
        "sparse": tf.nn.embedding_lookup_sparse(table, sparse, None, combiner="sum"),
        "sparse, mean": tf1.nn.embedding_lookup_sparse(table, sparse, weights, combiner="mean"),
        "safe": tf1.nn.safe_embedding_lookup_sparse(table, odd),
        "safe, default": tf1.nn.safe_embedding_lookup_sparse(table, odd, default_id=4, combiner="sum"),
        "sampled": tf1.nn.sampled_softmax_loss(
            table, tf.zeros([11]), tf.constant([[10]]), tf.ones([1, 4]), 3, 11,
            sampled_values=(tf.constant([1, 8, 9], tf.int64), tf.ones([1, 1]), tf.ones([3])),
        ),
        "matmul": tf.matmul(x, kernel),
        "operators": 1.0 - kernel * 2.0 + kernel @ tf.ones([4, 1]) + np.float32(3) * kernel / [1.0, 2.0, 3.0, 4.0],
        "slice": kernel[5:9, :2] + kernel[tf.constant(3), 0],
        "l2": tf.nn.l2_loss(kernel),
        "cast": tf.cast(kernel, tf.float64),
        "stack": tf.stack([kernel, tf.ones([12, 4])]),
        "concat": tf.concat([kernel, table], 0),
        "add_n": tf.add_n([kernel, kernel]),
        "shape": tf.shape(kernel),
        "identity": tf.identity(kernel.value()) + kernel.read_value() + tf1.convert_to_tensor(kernel),
        "loop": tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + tf.reduce_sum(tf.gather(table, i))),
                              [tf.constant(0), tf.constant(0.0)])[1],
        "condition": tf.cond(tf.constant(True), lambda: tf.matmul(x, kernel), lambda: tf.zeros([2, 4])),
        "assigned": kernel.assign(kernel * 2.0) * 1.0,
    }  # fmt: skip


def test_it_reads_as_the_whole_one(servers):
    found = []
    for partition in ("none", "auto"):
        with tf1.Graph().as_default(), scope_of(partition, servers.cluster):
            used = uses()
            losses = [
                tf.reduce_sum(t * t)
                for name, t in used.items()
                if t.dtype == tf.float32 and name != "assigned"
            ]
            variables = tf1.trainable_variables()
            assert len(variables) == (4 if partition == "auto" else 2)
            gradients = tf1.gradients(tf.add_n(losses), variables)
            used |= {v.op.name: tf.convert_to_tensor(g) for v, g in zip(variables, gradients, strict=True)}
            assigned = used.pop("assigned")
            values = dict(zip(used, evaluate(servers, *used.values()), strict=True))
            values["assigned"] = evaluate(servers, assigned)[0]
            found.append(whole(values))
    expected, values = found
    assert values.keys() == expected.keys()
    for name in expected:
        assert values[name].shape == expected[name].shape, name
        np.testing.assert_allclose(values[name], expected[name], rtol=1e-5, err_msg=name)


def test_what_it_says_of_itself(scope):
    with tf1.variable_scope("a"):
        table = tf1.get_variable("table", [11, 4])
    assert isinstance(table, Split) and not isinstance(table, tf.Variable)
    assert (table.name, table.op.name, table.dtype, table.shape) == (
        "a/table:0",
        "a/table",
        tf.float32,
        [11, 4],
    )
    assert (
        table.get_shape().as_list() == [11, 4] and table.graph is tf1.get_default_graph() and table.trainable
    )
    assert [part.shape[0] for part in table] == [4, 4, 3]
    assert [part.device for part in table] == [f"/job:ps/task:{i}" for i in range(3)]
    assert repr(table) == "<Split 'a/table:0' shape=(11, 4) dtype=float32 in 3 parts>"
    assert table in {table} and table != tf1.trainable_variables()[0]
    assert table.initializer.type == "NoOp" and table.initial_value.shape == [11, 4]
    assert placement.describe_splits(tf1.global_variables()) == [
        "a/table [11, 4], 176 B: rows 0-3 on ps:0, 4-7 on ps:1, 8-10 on ps:2"
    ]


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda v: v.handle, "its handle"),
        (lambda v: v.op.type, "its op.type"),
        (lambda v: v.device, "its device"),
        (lambda v: v.scatter_update(0), "its scatter_update"),
        (lambda v: tf1.scatter_add(v, [0], [1.0]), "an update of its rows"),
        (lambda v: tf.gradients(tf.reduce_sum(v * v), [v]), "tf.gradients or colocate_with of it"),
        (lambda v: OPTIMIZERS["sgd"]().minimize(tf.reduce_sum(v * v), var_list=[v]), "its op.type"),
        (lambda v: tf1.colocate_with(v).__enter__(), "its handle"),
        (lambda v: tf1.control_dependencies([v.op]).__enter__(), "its op"),
        (lambda v: tf.nn.embedding_lookup([v, v], [1]), "a lookup in several"),
    ],
)
def test_what_only_one_variable_has_is_refused_in_words(scope, use, what):
    table = tf1.get_variable("table", [11, 4])
    with pytest.raises(ModelError) as refused:
        use(table)
    assert str(refused.value).startswith(
        "The variable table is split in 3 parts by --partition=auto, and " + what
    )
    assert "needs a whole one. Leave out --partition=auto, or split it by hand and use its parts" in str(
        refused.value
    )
    with pytest.raises(AttributeError):
        table.no_such_attribute  # noqa: B018


@pytest.mark.parametrize("local_steps", [1, 2])
def test_an_optimizer_that_is_wrapped_takes_it(scope, monkeypatch, local_steps):
    from ps_train.updates.rules import DistributedOptimizer

    local = task_context.TaskContext(TaskId("worker", 0), CLUSTER, partition="auto", local_steps=local_steps)
    monkeypatch.setattr(task_context, "_current", [local])
    table, other = tf1.get_variable("table", [11, 4]), tf1.get_variable("other", [2])
    loss = tf.reduce_sum(table * table) + tf.reduce_sum(other)
    pairs = DistributedOptimizer(OPTIMIZERS["sgd"]()).compute_gradients(loss, [table])
    assert [variable.op.name for _, variable in pairs] == [part.op.name for part in table]


# Which variables are split.


def parts_of(name, *args, **kwargs):
    made = tf1.get_variable(name, *args, **kwargs)
    return len(made.parts) if isinstance(made, Split) else 1


def test_which_are_split(scope):
    assert parts_of("large", [12, 100]) == 3
    assert parts_of("two", [24]) == 2, "parts have 48 bytes or more"
    assert parts_of("small", [23]) == 1
    assert parts_of("wide", [2, 100]) == 2 and parts_of("row", [1, 100]) == 1
    assert parts_of("double", [12, 1], tf.float64) == 2 and parts_of("integers", [99], tf.int64) == 1
    assert parts_of("brief", [48, 1], tf.bfloat16) == 2
    assert parts_of("half", [99], tf.float16) == 1, "TensorFlow restores no slices of it"
    assert parts_of("frozen", [99], trainable=False) == 1
    assert parts_of("constrained", [99], constraint=tf.abs) == 1
    assert parts_of("scalar", []) == 1 and parts_of("array", initializer=TABLE) == 3
    assert parts_of("tensor", initializer=tf.zeros([12], tf.float64)) == 2
    assert (
        parts_of("list", initializer=[0.0] * 99) == 1 and parts_of("reference", [99], use_resource=False) == 1
    )
    with tf1.device("/device:CPU:0"):
        assert parts_of("cpu", [99]) == 3, "names no task"
    with tf1.device("/job:ps/task:1"):
        pinned = tf1.get_variable("pinned", [99])
    assert pinned.device == "/job:ps/task:1" and tf1.get_variable_scope().reuse is False
    with tf1.colocate_with(pinned):
        assert parts_of("beside", [99]) == 1
    by_hand = tf1.get_variable("by_hand", [99], partitioner=tf1.fixed_size_partitioner(2))
    with tf1.variable_scope("v", partitioner=tf1.fixed_size_partitioner(2)):
        assert type(by_hand) is type(tf1.get_variable("by_hand", [99])) is not Split
    local = tf1.get_local_variable("local", [99])
    assert local in tf1.local_variables() and len(tf1.local_variables()) == 1


def test_one_ps_and_none_split_nothing():
    for partition, cluster in (("auto", Cluster.from_hosts("p0:1", "w0:1")), ("none", CLUSTER)):
        with tf1.Graph().as_default(), scope_of(partition, cluster):
            assert parts_of("large", [12, 100]) == 1
            with tf1.device("/job:ps/task:0"):
                tf1.get_variable("pinned", [12, 100])
            assert tf1.get_collection(splitting.SPLITTABLE) == (["large"] if partition == "none" else [])


def test_reuse_gives_the_same_object(scope):
    with tf1.variable_scope("a"):
        table = tf1.get_variable("table", [11, 4])
        with pytest.raises(ValueError, match="already exists"):
            tf1.get_variable("table", [11, 4])
    with tf1.variable_scope("a", reuse=True):
        assert tf1.get_variable("table") is tf1.get_variable("table", [11, 4]) is table
        with pytest.raises(ValueError, match="does not exist"):
            tf1.get_variable("other", [11, 4])
        with pytest.raises(ValueError, match="shape"):
            tf1.get_variable("table", [12, 4])
    with tf1.variable_scope("a", reuse=tf1.AUTO_REUSE):
        assert tf1.get_variable("table", [11, 4]) is tf1.get_variable("table", initializer=TABLE) is table
        assert tf1.get_variable("new", [11, 4]) is tf1.get_variable("new", [11, 4])
        with tf1.device("/job:ps/task:1"):
            pinned = tf1.get_variable("pinned", [99])
        assert tf1.get_variable("pinned", [99]) is pinned
    assert len(tf1.trainable_variables()) == 7


def test_a_getter_of_the_users_gets_it_and_names_stay(scope):
    seen = []

    def half(getter, name, *args, **kwargs):
        seen.append(getter(name, *args, **kwargs))
        return tf.cast(seen[-1], tf.float16)

    with tf1.variable_scope("a", custom_getter=half):
        made = tf1.get_variable("table", [11, 4])
    with tf1.variable_scope(None, "a"):
        tf1.get_variable("b", [2])
    assert isinstance(seen[0], Split) and made.dtype == tf.float16
    assert [v.op.name for v in tf1.global_variables()] == [*(f"a/table/part_{i}" for i in range(3)), "a_1/b"]


def test_a_regularizer_is_applied_to_the_whole_once(servers):
    with tf1.Graph().as_default(), scope_of("auto", servers.cluster):
        for reuse in (False, True):
            with tf1.variable_scope("", reuse=reuse):
                tf1.get_variable("table", initializer=TABLE, regularizer=tf.norm)
        (loss,) = tf1.losses.get_regularization_losses()
        np.testing.assert_allclose(evaluate(servers, loss)[0], np.linalg.norm(TABLE), rtol=1e-6)


# Initial values.


def initial(servers, shape, initializer):
    with tf1.Graph().as_default(), scope_of("auto", servers.cluster):
        table = tf1.get_variable("table", shape, initializer=initializer)
        assert isinstance(table, Split)
        return evaluate(servers, table)[0]


def test_arrays_tensors_and_functions_give_their_rows(servers):
    rows = np.arange(44, dtype=np.float32).reshape(11, 4)
    for shape, initializer in (
        (None, rows),
        ([11, 4], tf1.constant_initializer(rows)),
        ([11, 4], tf.constant_initializer(rows)),
        ([11, 4], lambda shape, dtype: tf.reshape(tf.range(44, dtype=dtype), shape)),
        ([11, 4], lambda shape, dtype, partition_info: rows),
    ):
        np.testing.assert_array_equal(initial(servers, shape, initializer), rows)
    np.testing.assert_array_equal(initial(servers, [11, 4], tf1.ones_initializer), np.ones([11, 4]))


def test_random_ones_are_those_of_the_whole(servers):
    """As large as the whole shape has them, other ones in each part, and of properties that only the whole has."""
    square = initial(servers, [64, 64], tf1.orthogonal_initializer())
    np.testing.assert_allclose(square @ square.T, np.eye(64), atol=1e-5)
    np.testing.assert_array_equal(initial(servers, [12, 12], tf1.initializers.identity()), np.eye(12))
    for initializer in (None, tf1.glorot_uniform_initializer(seed=5), tf1.glorot_uniform_initializer):
        values = initial(servers, [600, 100], initializer)
        assert 0.98 * np.sqrt(6 / 700) < values.max() <= np.sqrt(6 / 700)
        assert abs(values[:300] - values[300:]).max() > 0.1
    seeded = initial(servers, [10, 8], tf1.random_normal_initializer(seed=5))
    assert abs(seeded[:5] - seeded[5:]).max() > 0.1


# The job.


def test_checkpoints_go_both_ways_and_to_any_number_of_ps(servers, tmp_path):
    model_fn = model_of(OPTIMIZERS["adam"])
    kept = {}
    others = {"one": lend_servers(num_ps=1, num_workers=1), "three": lend_servers(num_ps=3, num_workers=1)}
    path = None
    for number, (on, partition) in enumerate(
        [
            (servers, "auto"),
            (others["one"], "none"),
            (servers, "auto"),
            (others["three"], "auto"),
            (servers, "none"),
        ]
    ):
        ops, fused, init = build(on, model_fn, partition=partition)
        with ops.graph.as_default():
            saver = tf1.train.Saver()
        run = Run(on, (ops, fused, init))
        if path is None:
            run.steps(3)
            path = saver.save(run.session, str(tmp_path / "0"), write_meta_graph=False)
            kept = whole(
                dict(zip([v.op.name for v in run.variables], run.session.run(run.variables), strict=True))
            )
            continue
        saver.restore(run.session, path)
        values = whole(
            dict(zip([v.op.name for v in run.variables], run.session.run(run.variables), strict=True))
        )
        assert values.keys() == kept.keys() and {"kernel/Adam", "emb/table/Adam_1"} <= values.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(value, kept[name], name)
        path = saver.save(run.session, str(tmp_path / str(number)), write_meta_graph=False)
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        assert shapes["emb/table"] == shapes["emb/table/Adam"] == [11, 4] and not any(
            "part_" in n for n in shapes
        )


def test_all_tasks_have_to_agree():
    texts = {}
    for partition in ("none", "auto"):
        context = task_context.TaskContext(TaskId("worker", 0), CLUSTER, partition=partition)
        with tf1.Graph().as_default(), placement.scope(context):
            tf1.get_variable("table", [11, 4])
            texts[partition] = fingerprint.describe(tf1.global_variables(), context)
    assert fingerprint.differences(texts["auto"], texts["auto"], "worker:1") == []
    assert fingerprint.differences(texts["none"], texts["auto"], "worker:1")[0] == (
        "worker:1 has --partition=none and the others have --partition=auto. Give all the same."
    )


def test_the_advice_names_the_flag_where_it_helps(monkeypatch):
    monkeypatch.setattr(splitting, "MIN_PART_BYTES", 4 * 2**20)
    for make, how in (
        (
            lambda: tf1.get_variable("v", [5000, 1000]),
            "Split it: --partition=auto, or tf.compat.v1.get_variable(",
        ),
        (lambda: tf1.Variable(tf.zeros([5000, 1000]), name="v"), "Split it: tf.compat.v1.get_variable("),
    ):
        with tf1.Graph().as_default(), scope_of("none"):
            make()
            said = placement.advice(
                placement.shares(CLUSTER, placement.held(CLUSTER, tf1.global_variables()))
            )
        assert said.startswith("ps:0 has v, which is more than its part. " + how)
    with tf1.Graph().as_default(), scope_of("auto"):
        tf1.get_variable("v", [2, 2_000_000])
        assert (
            placement.advice(placement.shares(CLUSTER, placement.held(CLUSTER, tf1.global_variables()))) == ""
        )
