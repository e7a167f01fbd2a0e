"""What was recorded is re-applied to the bit, whatever the graph; what was not as recorded is found."""

import dataclasses

import numpy as np
import pytest
from recording import BATCH, Recorded, checkpoint

from ps_train import ModelSpec
from ps_train.compat import tf, tf1
from ps_train.recorded import SaveEvent, read
from ps_train.recorder import explain_unwritten
from ps_train.replay import Replay

pytestmark = pytest.mark.graph
WAYS = {"apart": {"pack_bytes": "0", "fuse_bytes": "0"}, "fused": {}}


def net(optimizer, features, labels, pulled, layer=lambda net: net):
    """Two layers, an embedding whose gradient is sparse, and dropout."""
    table = tf1.get_variable("table", [7, 3])
    inputs = tf.concat([features, tf.gather(table, labels)], 1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf1.get_variable("w0", [6, 8])) + tf1.get_variable("b0", [8]))
    hidden = tf.nn.dropout(layer(hidden), rate=0.3)
    output = tf.matmul(hidden, tf1.get_variable("w1", [8, 1]))
    loss = tf.reduce_mean(tf.square(output[:, 0] - features[:, 0]))
    return ModelSpec(loss=loss + 0 * pulled(loss), optimizer=optimizer())


OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
}


def assert_true(findings, run, folder, count):
    """Every loss and the whole model are those of the run, bit for bit."""
    found = findings.as_dict()
    assert (found["losses_compared"], found["losses_equal"]) == (count, count), findings.lines()
    assert findings.is_true and found["events_left"] == 0, findings.lines()
    assert found["checkpoint"].startswith(str(folder))
    np.testing.assert_equal(checkpoint(found["checkpoint"]), run.values())


@pytest.mark.parametrize(
    "name, way",
    [
        ("sgd", "apart"),
        ("momentum", "fused"),
        ("adam", "apart"),
        ("adam", "fused"),
        ("adagrad", "fused"),
        ("ftrl", "fused"),
    ],
)
def test_a_free_run_is_replayed_to_the_bit(tmp_path, name, way):
    run = Recorded(tmp_path, lambda *args: net(OPTIMIZERS[name], *args), **WAYS[way])
    run.run_freely(8)
    with run.between(1):
        run.step(0)
        run.step(0)
    findings = run.replay(out=str(tmp_path / "out"))
    assert_true(findings, run, tmp_path, 2 * 8 + 3)
    assert findings.as_dict()["pushes"] == findings.global_step == 19


def normalized(net):
    """As a batch normalization in training: what it keeps is on a ps, too."""
    mean, _ = tf.nn.moments(net, 0)
    moving = tf1.get_variable("moving", [8], initializer=tf1.zeros_initializer(), trainable=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, moving.assign_sub(0.1 * (moving - mean)).op)
    return net - mean


def wide(net):
    """Weights that are large enough for int8 and for a choice of their elements."""
    return tf.matmul(net, tf1.get_variable("wide", [8, 200]))[:, :8]


@pytest.mark.parametrize(
    "layer, settings",
    [
        (normalized, {}),
        (normalized, {"num_ps": 1, "max_staleness": 1}),
        (wide, {"max_staleness": 1, "scale_by_staleness": True}),
        (wide, {"wire_dtype": "int8", "topk": 0.5}),
        (wide, {"wire_dtype": "bfloat16", "partition": "auto", "on_nan": "skip"}),
    ],
    ids=["moving", "moving-dropped", "scaled", "int8", "bfloat16"],
)
def test_other_graphs(tmp_path, layer, settings):
    run = Recorded(tmp_path, lambda *args: net(OPTIMIZERS["momentum"], *args, layer=layer), **settings)
    run.run_freely(5)
    with run.between(1) as late:
        run.step(0)
        run.step(0)
    findings = run.replay(out=str(tmp_path / "out"))
    assert_true(findings, run, tmp_path, 2 * 5 + 3)
    rows = findings.as_dict()["order"]
    assert rows[-1]["worker"] == 1 and rows[-1]["staleness"] == 2
    if "max_staleness" in settings:
        assert late[0]["granted"] < 0
        assert findings.global_step < 13
        assert [row["granted"] < 0 for row in rows] == [row["staleness"] > 1 for row in rows]


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_that_is_fetched_is_no_checkpoint(tmp_path, way):
    """A chief that comes again looks at the global step first, and a user's hook at what it likes."""
    run = Recorded(
        tmp_path, lambda *args: net(OPTIMIZERS["sgd"], *args), train_dir=str(tmp_path), **WAYS[way]
    )
    run.step(0)

    def saves():
        events = (event for order in read(run.directory).orders.values() for event in order)
        return [event for event in events if isinstance(event, SaveEvent)]

    run.sessions[0].run(run.variables[0])
    assert saves() == []
    run.save(str(tmp_path / "model"))
    assert len(saves()) == 2, "of each ps"


def scalar(rate=0.5, is_linear=False):
    """One variable, 1 at first, whose gradient is itself, or 1."""

    def model_fn(features, labels, pulled):
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        loss = (w if is_linear else w * w / 2) + 0 * tf.reduce_sum(features)
        return ModelSpec(loss=loss + 0 * pulled(loss), optimizer=tf1.train.GradientDescentOptimizer(rate))

    return model_fn


def test_a_push_is_of_what_its_worker_had_pulled(tmp_path):
    run = Recorded(tmp_path, scalar())
    run.step(0)  # 1 becomes 0.5
    with run.between(1):  # which it pulls
        run.step(0)  # 0.25
        run.step(0)  # 0.125
    run.step(1)  # 0.125 - 0.25 = -0.125 becomes -0.0625
    findings = run.replay(out=str(tmp_path / "out"))
    assert checkpoint(findings.checkpoint)["w"] == run.values()["w"] == -0.0625
    rows = findings.as_dict()["order"]
    assert [(row["worker"], row["batch"], row["staleness"]) for row in rows] == [
        (0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 1, 2), (1, 2, 0),
    ]  # fmt: skip
    assert [row["loss"] for row in rows] == [1 / 2, 0.5**2 / 2, 0.25**2 / 2, 0.5**2 / 2, 0.125**2 / 2]
    assert [row["first_example"] for row in rows] == [0, BATCH, 2 * BATCH, 0, BATCH]
    ((ps, versions),) = {
        (ps, tuple(row["versions"][ps] for row in rows)) for ps in [max(rows[0]["versions"])]
    }
    assert versions == (0, 1, 2, 1, 4) and [row["places"][ps] for row in rows] == [0, 1, 2, 3, 4]
    earlier = run.replay(until=2, out=str(tmp_path / "until"))
    assert earlier.global_step == 2 and checkpoint(earlier.checkpoint)["w"] == 0.25


def test_pushes_in_another_order_are_not_as_recorded(tmp_path):
    run = Recorded(tmp_path, scalar(), num_ps=1)
    with run.between(1):
        run.step(0)
    run.step(0)
    path = tmp_path / "record" / "ps0.order"
    lines = path.read_text().splitlines(keepends=True)
    assert run.replay().is_true
    first, second = lines.index("0 0 1 1\n"), lines.index("0 0 2 0\n")
    lines[first], lines[second] = lines[second], lines[first]  # it pulls before it has pushed
    path.write_text("".join(lines))
    findings = run.replay()
    assert not findings.is_true
    (line,) = [line for line in findings.lines() if line.startswith("NOT AS RECORDED")]
    told = (
        "first of 3: worker:1, batch 1, examples 0-3, global step 2, staleness 0: global_step 1, recorded 2"
    )
    assert told in line, line


@pytest.mark.parametrize("policy", ["ignore", "skip"])
def test_the_first_push_of_nan_is_named(tmp_path, policy):
    run = Recorded(tmp_path, scalar(rate=1e30), on_nan=policy)
    run.step(0)  # -1e30, whose square is too large
    for number in (1, 0):
        try:
            run.step(number)
        except tf.errors.InvalidArgumentError:
            assert policy == "skip"
    bad = {} if policy == "ignore" else {(1, 0, 1): ("NaN in the loss", 1), (0, 0, 2): ("NaN in the loss", 1)}
    assert read(run.directory).bad == bad
    findings = run.replay()
    told = findings.as_dict()["first_nan"]
    assert told.startswith("worker:1, batch 1"), told
    assert told.endswith("loss nan" if policy == "ignore" else "NaN or Inf in the loss; not applied"), told
    assert findings.is_true and findings.as_dict()["pushes"] == (3 if policy == "ignore" else 1)


def test_the_first_jump_of_the_loss_is_named(tmp_path):
    run = Recorded(tmp_path, scalar(rate=-0.9, is_linear=True), num_workers=1)
    for _ in range(12):
        run.step(0)
    assert run.replay().as_dict()["first_jump"] is None
    run = Recorded(
        tmp_path / "other", scalar(rate=3.2)
    )  # each is 2.2 times the one before, with the other sign
    for _ in range(8):
        run.step(1)
    told = run.replay().as_dict()["first_jump"]
    assert told == (  # 2.2 ** 6 / 2, after losses of 0.5, 2.42 and 11.7128
        "worker:1, batch 4, examples 12-15, global step 4, staleness 0: loss 56.69, 12 times the mean before, which is of 3"
    )


def test_a_killed_worker_and_its_next_session(tmp_path):
    run = Recorded(tmp_path, lambda *args: net(OPTIMIZERS["adam"], *args))
    run.run_freely(3)
    run.step(1, is_noted=False)
    run.step(0)
    run.begin_anew(1)
    run.run_freely(3)
    findings = run.replay(out=str(tmp_path / "out"))
    assert_true(findings, run, tmp_path, 3 + 3 + 1 + 6)
    assert findings.as_dict()["pushes"] == 14


def test_a_model_that_was_restored(tmp_path):
    run = Recorded(
        tmp_path, lambda *args: net(OPTIMIZERS["momentum"], *args), train_dir=str(tmp_path / "train")
    )
    path = str(tmp_path / "train" / "model.ckpt-9")
    (tmp_path / "train").mkdir()
    run.run_freely(3)
    with run.between(1):
        run.save(path)
    run.run_freely(2)
    run.restore(path)
    run.run_freely(3)
    findings = run.replay(out=str(tmp_path / "out"))
    assert_true(findings, run, tmp_path, 6 + 1 + 4 + 6)
    assert f"{path}: equal bit for bit" in findings.lines()
    for file in (tmp_path / "train").iterdir():
        file.unlink()
    again = run.replay(out=str(tmp_path / "again"))
    assert_true(again, run, tmp_path, 6 + 1 + 4 + 6)
    assert not any("equal bit for bit" in line and path in line for line in again.lines())


def test_a_step_of_which_one_ps_wrote_nothing(tmp_path):
    run = Recorded(tmp_path, lambda *args: net(OPTIMIZERS["sgd"], *args))
    run.run_freely(2)
    path = tmp_path / "record" / "ps1.order"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]) + lines[-2][:4])
    findings = run.replay()
    # Of the two lines that are lost, any number are pulls; a step whose pushes alone are lost has its loss.
    compared = findings.as_dict()["losses_compared"]
    assert findings.is_true and compared in (2, 3, 4)
    assert compared == 4 or any(line.startswith("not done, as the record lacks") for line in findings.lines())
    assert f"lines that were cut off: ps1.order:{len(lines) - 1}" in findings.lines()
    assert read(run.directory).skipped


def test_initial_values_are_of_the_seed_of_the_process_that_gave_them(tmp_path):
    """A chief that came back, and takes another seed, in the same directory."""
    run = Recorded(tmp_path, lambda *given: net(OPTIMIZERS["sgd"], *given), num_ps=1)
    run.step(0)
    run.step(1)
    path = tmp_path / "record" / "worker0.steps"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    configs = {0: [run.config, dataclasses.replace(run.config, seed=99)], 1: [run.config]}
    found = Replay(read(run.directory), run.directory, configs, run.servers.cluster, run.model).run()
    assert found.is_true and found.as_dict()["losses_equal"] == 2, found.lines()


def test_the_model_is_saved_though_its_record_cannot_be(tmp_path):
    run = Recorded(tmp_path, lambda *given: net(OPTIMIZERS["adam"], *given), train_dir=str(tmp_path))
    run.step(0)
    known = run.values()
    order = tmp_path / "record" / "ps1.order"
    order.unlink()
    order.mkdir()  # what TensorFlow cannot append to
    recorder, creator = run.recorders[0]
    with pytest.raises(tf.errors.OpError) as raised:
        run.step(1)
    assert str(explain_unwritten(raised.value)).startswith("--record cannot be written any more: ")
    with pytest.raises(tf.errors.OpError) as raised:
        creator.saver.save(run.sessions[0], str(tmp_path / "m"), write_meta_graph=False)

    def make_session(graph):
        return run._session(run.servers.cluster.training_tasks[0], graph)

    assert not recorder.save_bare(make_session, OSError("another"), str(tmp_path / "m"), 1)
    assert recorder.save_bare(make_session, raised.value, str(tmp_path / "m"), 1)
    found = checkpoint(str(tmp_path / "m-1"))
    np.testing.assert_equal(found, {name: known[name] for name in found})
    assert set(found) == set(known)
