"""The files of a record: what is read of them, also when they are cut or not all there, and which version each push is of."""

import json
import os
import re

import pytest

from ps_train.config import TrainConfig
from ps_train.errors import ModelError, UsageError
from ps_train.findings import Findings
from ps_train.recorded import Journal, ModelEvent, SaveEvent, StepEvent, order_path, prepare, read, steps_path

# Two ps: both are read, both are updated; then the global step on the first.
SECTIONS = [[0, False, False], [1, False, False], [0, True, True], [1, True, True], [0, True, False]]


def start(**changes):
    replayed = {"seeds": 0, "flags": [], "seed": 1, "cluster": {}, "source": "m.py", "sha256": None}
    return {
        "format": 1, "ps": [0, 1], "num_workers": 2, "digest": "d", "sections": SECTIONS, **replayed, **changes
    }  # fmt: skip


def write(folder, orders, workers):
    for ps, lines in enumerate(orders):
        (folder / f"ps{ps}.order").write_text("".join(f"{line}\n" for line in lines))
    for worker, lines in enumerate(workers):
        (folder / f"worker{worker}.steps").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def record_of_two(folder):
    """Worker 1 pulls before two steps of worker 0, and pushes after them on ps 0, between them on ps 1."""
    orders = [
        [
            "model 0",
            "1 0 1 0",
            "0 0 1 0",
            "0 0 1 2",
            "0 0 1 4",
            "0 0 2 0",
            "0 0 2 2",
            "0 0 2 4",
            "1 0 1 2",
            "1 0 1 4",
        ],
        ["model 0", "0 0 1 1", "1 0 1 1", "0 0 1 3", "1 0 1 3", "0 0 2 1", "save 0 1 0", "0 0 2 3"],
    ]
    chiefs = [
        start(),
        {"model": 0, "checkpoint": None, "kept": None},
        {"session": 0},
        [1, 0.5, 4, 1, None],
        [2, 0.25, 3, 2, None],
    ]
    write(folder, orders, [chiefs, [start(), {"session": 0}, [1, 0.75, 4, 3, None]]])
    return read(str(folder))


def test_what_is_read(tmp_path):
    record = record_of_two(tmp_path)
    assert record.orders[0][:3] == [ModelEvent(0), StepEvent(1, 0, 1, 0), StepEvent(0, 0, 1, 0)]
    assert record.orders[1][6] == SaveEvent(0, 1, 0)
    assert record.steps[0, 0, 2] == (0.25, 3, 4, 2, None)
    assert record.sessions == {(0, 0): 0, (1, 0): 0}
    assert record.models[0]["checkpoint"] is None and record.skipped == []


def test_versions_and_places_of_each_push(tmp_path):
    found = {push[:3]: push for push in record_of_two(tmp_path).pushes()}
    late = found[1, 0, 1]
    assert late.versions == {0: 0, 1: 0} and late.places == {0: 2, 1: 1}
    assert late.staleness == 2, "on ps 0, where it is most"
    second = found[0, 0, 2]
    assert second.versions == {0: 1, 1: 2} and second.places == {0: 1, 1: 2} and second.staleness == 0
    assert second.step.first == 4


def test_versions_begin_anew_with_the_model(tmp_path):
    write(
        tmp_path,
        [["model 0", "0 0 1 0", "0 0 1 1", "0 0 2 0", "model 1", "0 1 1 0", "0 1 1 1", "0 0 2 1"]],
        [[start(ps=[0], sections=[[0, False, False], [0, True, True]]), {"session": 0}, {"session": 1}]],
    )
    pushes = {push[:3]: (push.versions[0], push.places[0]) for push in read(str(tmp_path)).pushes()}
    assert pushes == {(0, 0, 1): (0, 0), (0, 1, 1): (0, 0), (0, 0, 2): (1, 1)}


def test_where_a_replay_up_to_a_step_ends(tmp_path):
    record = record_of_two(tmp_path)
    assert [record.limit(0, until) for until in (None, 0, 1, 2, 3)] == [10, 1, 5, 8, 10]
    assert record.limit(1, 1) == 4, "with what came before on that ps"
    assert record.sections_of_steps({0: 5, 1: 4}) == {(0, 0, 1): {0, 1, 2, 3, 4}, (1, 0, 1): {0, 1}}


def test_lines_that_were_cut_are_skipped_and_named(tmp_path):
    record_of_two(tmp_path)
    for name, cut in (("ps0.order", "1 0 2"), ("worker1.steps", "[2,0.5,4")):
        with open(tmp_path / name, "a") as file:
            file.write(cut)
    with open(tmp_path / "ps1.order", "a") as file:
        file.write("1 0 2 1")  # which looks whole
    record = read(str(tmp_path))
    assert record.skipped == ["ps0.order:11", "ps1.order:9", "worker1.steps:4"]
    assert len(record.orders[1]) == 8 and (1, 0, 2) not in record.steps


def test_a_file_that_was_cut_is_gone_on_with_in_a_new_line(tmp_path):
    directory = str(tmp_path / "deep" / "record")
    path = order_path(directory, 0)
    prepare(path)
    with open(path, "w") as file:
        file.write("model 0\n1 0 1")
    prepare(path)
    prepare(path)
    with open(path) as file:
        assert file.read() == "model 0\n1 0 1\n"
    with open(steps_path(directory, 0), "w") as file:
        file.write('{"session":0}\n{"model":0}\n{"session":1}\n[1,2')
    journal = Journal(directory, 0)
    assert (journal.sessions, journal.models) == (2, 1)
    journal.write([1, float("nan"), 4, 5, None])
    with open(steps_path(directory, 0)) as file:
        assert file.read().endswith("[1,2\n[1,NaN,4,5,null]\n")


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match=r"--record: .*/file/ps0.order cannot be written: .* Choose another directory."
    ):
        prepare(order_path(str(tmp_path / "file"), 0))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_disk_that_gets_full_is_told_in_a_line(tmp_path):
    journal = Journal(str(tmp_path), 0)
    journal._file = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    with pytest.raises(ModelError, match=r"any more: .*worker0.steps: No space left on device. Make room"):
        journal.write({"session": 0})


def test_what_is_no_record(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read(str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"holds no record: expected worker0.steps and ps0.order"):
        read(str(tmp_path))
    record_of_two(tmp_path)
    (tmp_path / "ps1.order").unlink()
    (tmp_path / "worker1.steps").unlink()
    with pytest.raises(UsageError, match=r"lacks ps1.order, worker1.steps. Each host has its own files"):
        read(str(tmp_path))
    write(tmp_path, [["model 0"], ["model 0"]], [[start()], [start(digest="e")]])
    with pytest.raises(UsageError, match="records of different jobs"):
        read(str(tmp_path))
    write(tmp_path, [["model 0"], ["model 0"]], [[start()], [start(format=0)]])
    with pytest.raises(UsageError, match="by another version of ps_train"):
        read(str(tmp_path))


def test_what_cannot_be_recorded_is_refused():
    def problems(**settings):
        return TrainConfig(record="r", **settings).problems()

    assert (
        problems()
        == problems(max_staleness=3, wire_dtype="int8", topk=0.5, on_nan="skip", warmup_steps=4)
        == []
    )
    (line,) = problems(update="sync")
    assert line.startswith(
        "--record is for --update=async: a run in sync with a --seed does not depend on timing."
    )
    for name, value in (
        ("prefetch", True),
        ("local_steps", 2),
        ("towers", 2),
        ("max_lead", 1),
        ("colocate_ps", True),
    ):
        (line,) = problems(**{name: value})
        assert line.startswith(f"--record does not know --{name}: ")
    (line,) = problems(input="workqueue")
    assert line.startswith("--record does not know --input=workqueue, where timing decides")


def test_losses_that_differ_in_the_last_bits_or_more(tmp_path):
    fetches = {"loss": "l"}
    for by, told in (
        (1e-7, "losses: 1 of 3 equal bit for bit, the others within"),
        (1e-2, "NOT AS RECORDED, first of 2: worker:0"),
    ):
        findings = Findings(record_of_two(tmp_path))
        for name, loss in (((0, 0, 1), 0.5 + by), ((1, 0, 1), 0.75), ((0, 0, 2), 0.25 - by)):
            findings.note_step(name, {"l": loss}, fetches)
        assert any(line.startswith(told) for line in findings.lines()), findings.lines()
        assert findings.is_true == (by < 1e-4)
        assert findings.as_dict()["losses_equal"] == 1


def test_a_jump_from_losses_of_zero_and_a_loss_of_nan_are_told(tmp_path):
    findings = Findings(record_of_two(tmp_path))
    assert "losses: there are none to compare" in findings.lines()
    for number, loss in enumerate([*([0.0] * 5), 0.25, float("nan")], 10):
        findings.note_step((0, 0, number), {"l": loss}, {"loss": "l"})
    found = findings.as_dict()
    assert found["first_jump"] == "worker:0, batch 15: loss 0.25, after losses of 0"
    assert found["first_nan"] == "worker:0, batch 16: loss nan"


@pytest.mark.parametrize(
    "first, told",
    [
        (
            '{"format": 1',
            "worker1.steps:1 is damaged: a worker's file begins with a line on its process, with flags",
        ),
        (
            '{"format": 1}',
            "worker1.steps:1 is damaged: it lacks 'ps'. Copy the file from its host once more.",
        ),
        (json.dumps({"ps": [0, 1]}), "worker1.steps:1 is damaged: a worker's file begins with a line on its"),
        (None, "worker1.steps:1 is damaged: a worker's file begins with"),
    ],
    ids=["cut", "short", "other", "gone"],
)
def test_a_damaged_first_line_is_named(tmp_path, first, told):
    record_of_two(tmp_path)
    path = tmp_path / "worker1.steps"
    lines = path.read_text().splitlines()[1:]
    path.write_text("\n".join([*([] if first is None else [first]), *lines, ""]))
    with pytest.raises(UsageError, match="^--record: .*/" + re.escape(told)):
        read(str(tmp_path))


def test_other_lines_that_lack_something(tmp_path):
    for line, told in (('{"model": 1}', "it lacks 'checkpoint'"), ('{"save": 1}', "it lacks 'path'")):
        record_of_two(tmp_path)
        with open(tmp_path / "worker0.steps", "a") as file:
            file.write(f"{line}\n")
        with pytest.raises(UsageError, match=f"worker0.steps:6 is damaged: {told}"):
            read(str(tmp_path))
    record_of_two(tmp_path)
    (tmp_path / "worker0.steps").write_text("")  # as of a process that was killed at once
    with pytest.raises(UsageError, match=r"lacks worker0.steps. Each host"):
        read(str(tmp_path))


def test_of_many_lines_that_were_cut_the_first_is_named(tmp_path):
    findings = Findings(record_of_two(tmp_path))
    findings.end(0, [f"ps0.order:{number}" for number in range(11, 201)])
    assert "lines that were cut off: ps0.order:11 and 189 more" in findings.lines()


def looked_at(tmp_path, losses, ends_badly=False):
    """What is found of worker 0's losses from batch 10 on."""
    findings = Findings(record_of_two(tmp_path))
    for number, loss in enumerate(losses, 10):
        findings.note_step((0, 0, number), {"l": loss}, {"loss": "l"})
    if ends_badly:
        findings.note_failure((0, 0, 99), "ps_train found the loss : Tensor had Inf values")
    findings.end(0, [])
    return findings.as_dict()["first_jump"]


def test_a_job_that_diverges_in_its_first_steps_has_a_jump(tmp_path):
    """2, then 50 and more: 25 times the one before."""
    told = "worker:0, batch 11: loss 50, 25 times the mean before, which is of 1"
    assert looked_at(tmp_path, [2.0, 50.0, 3e4]) == told
    assert looked_at(tmp_path, [2.0, 50.0, float("inf")]) == told
    assert looked_at(tmp_path, [2.0, 50.0], ends_badly=True) == told
    assert looked_at(tmp_path, [2.0, 50.0]) == told, "nothing speaks against it"
    grown = "worker:0, batch 13: loss 250, 12 times the mean before, which is of 3"  # 20.67
    assert looked_at(tmp_path, [2.0, 10.0, 50.0, 250.0]) == grown
    assert looked_at(tmp_path, [float("nan")]) is None


def test_a_single_loss_out_of_line_among_the_first_is_no_jump(tmp_path):
    assert looked_at(tmp_path, [2.0, 50.0, 2.0, 2.0]) is None
    later = looked_at(tmp_path, [1.0, 50.0, 1.0, 1.0, 2.0, 1000.0, 1.0])  # a mean of 11
    assert later == "worker:0, batch 15: loss 1000, 91 times the mean before"


def test_a_step_that_was_bad_in_the_run_is_read_and_compared(tmp_path):
    record_of_two(tmp_path)
    with open(tmp_path / "worker1.steps", "a") as file:
        file.write('{"bad":2,"what":"Inf in the loss","global_step":2}\n')
    record = read(str(tmp_path))
    assert record.bad == {(1, 0, 2): ("Inf in the loss", 2)}
    findings = Findings(record)
    findings.note_failure((1, 0, 2), "ps_train found the loss : Tensor had Inf values")
    findings.note_step(
        (1, 0, 2), {"l": 0.5}, {"loss": "l"}
    )  # of a gradient alone, as of another piece than the loss
    assert findings.is_true
    assert findings.as_dict()["first_nan"] == (
        "worker:1, batch 2, after global step 2: NaN or Inf in the loss; not applied"
    )
    findings = Findings(record)
    findings.note_step((1, 0, 2), {"l": 0.5}, {"loss": "l"})
    assert not findings.is_true
    assert findings.as_dict()["first_difference"] == (
        "worker:1, batch 2, after global step 2: loss 0.5, recorded Inf in the loss"
    )
