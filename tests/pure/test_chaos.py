"""Faults of a rehearsal: how they are read, and the verdict as a function of what was recorded."""

import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train import flags
from ps_train.cluster import TaskId
from ps_train.commands import chaos
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.faults import (
    KINDS,
    Fault,
    Recording,
    Strike,
    fatal_faults,
    find_recovery,
    judge,
    parse_fault,
    usual_faults,
)

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))
PS, PS1, CHIEF, WORKER = TaskId("ps", 0), TaskId("ps", 1), TaskId("worker", 0), TaskId("worker", 1)
ASYNC = TrainConfig(train_steps=600)
SYNC = TrainConfig(train_steps=600, update="sync")


def plan(*args):
    return chaos.make_plan(flags.parse(["chaos", *args])[0])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("kill", "ps:1@200", Fault("kill", PS1, 200, 1.0)),
        ("kill", "worker:1@7:never", Fault("kill", WORKER, 7, None)),
        ("term", "chief@1:0s", Fault("term", CHIEF, 1, 0.0)),
        ("stop", "worker:1@300:2.5s", Fault("stop", WORKER, 300, 2.5)),
        ("stop", "ps:0@3:0.000001s", Fault("stop", PS, 3, 1e-6)),
    ],
)
def test_faults(kind, text, fault):
    assert parse_fault(kind, text) == fault
    assert parse_fault(kind, str(fault).partition("=")[2]) == fault


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("kill", "ps:1", "--kill=ps:1 has no '@'. Expected TASK@STEP, such as ps:0@200."),
        ("kill", "p@5", "--kill=p@5 has the task 'p'. Expected ps:0, worker:1, chief."),
        ("term", "ps:0@x", "--term=ps:0@x has the step 'x'. Expected a whole number from 1."),
        ("kill", "ps:0@0", "--kill=ps:0@0 has the step '0'. Expected a whole number from 1."),
        ("kill", "ps:0@1:5", "--kill=ps:0@1:5 has the time '5'. Expected seconds below a million, such as 5s, or never."),
        ("stop", "ps:0@1", "--stop=ps:0@1 does not say for how long. Expected TASK@STEP:SECSs."),
        ("stop", "ps:0@1:0s", "--stop=ps:0@1:0s has the time '0s'. Expected seconds above 0 and below a million, such as 20s."),
        ("stop", "ps:0@1:never", "--stop=ps:0@1:never has the time 'never'. Expected seconds above 0 and below a million, such as 20s."),
    ],
)  # fmt: skip
def test_mistakes(kind, text, message):
    with pytest.raises(UsageError) as caught:
        parse_fault(kind, text)
    assert str(caught.value) == message


VALID = ("ps:1@200", "worker:12@7:never", "chief@300:2.5s")


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(
    st.text(max_size=6) | st.sampled_from([":", "@", "s", "never", "0", "-1", "nan", "1e9", ".", "\n", "٣"])
)
def test_fuzz_faults(text):
    """Each text at every place of every fault, beside and instead of what is there: 200 inputs an example."""
    for valid in VALID:
        for place in range(len(valid) + 1):
            check_value_or_mistake(valid[:place] + text + valid[place:])
            check_value_or_mistake(valid[:place] + text + valid[place + 2 :])


def check_value_or_mistake(text):
    for kind in KINDS:
        try:
            fault = parse_fault(kind, text)
        except UsageError as error:
            assert len(str(error).splitlines()) == 1 and "Expected" in str(error)
            continue
        assert fault.step > 0 and (fault.secs is None or 0 <= fault.secs < math.inf)
        assert parse_fault(kind, str(fault).partition("=")[2]) == fault


def test_all_problems_come_in_one_message(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"\n')
    (tmp_path / "model.ckpt-5.index").touch()
    found = problems(
        "--kill=ps:1@5", "--kill=x@5", "--stop=worker:2@2000:1s", "--train_steps=1000", "--batch_size=0",
        f"--train_dir={tmp_path}", "--job_name=ps", "--colocate_ps",
    )  # fmt: skip
    assert found == [
        "The command chaos starts a local cluster. Leave out --job_name, --task_index and the lists of hosts.",
        "--batch_size=0 is out of range. Expected a whole number from 1.",
        "The command chaos ends ps tasks by themselves. Leave out --colocate_ps and --update=allreduce.",
        f"--train_dir={tmp_path} holds a checkpoint, {tmp_path}/model.ckpt-5. Expected a new directory: a rehearsal "
        "begins at step 0, and nothing of a real job is put at risk.",
        "--kill=ps:1@5:1s is for a task that is not there: --num_ps=1. Expected ps:0 to ps:0.",
        "--kill=x@5 has the task 'x'. Expected ps:0, worker:1, chief.",
        "--stop=worker:2@2000:1s is for a task that is not there: --num_workers=2. Expected worker:0 to worker:1.",
        "--stop=worker:2@2000:1s is for a step beyond --train_steps=1000. Expected one before.",
    ]


def test_a_model_of_ones_own_needs_a_target(tmp_path):
    (tmp_path / "m.py").touch()
    assert problems(f"--model={tmp_path}/m.py") == [
        "The command chaos rehearses up to a target, but no --train_steps is given. Add it."
    ]


def test_the_flags_are_those_of_one_command():
    with pytest.raises(
        UsageError, match="^--kill is a flag of the command chaos. Write python -m ps_train chaos"
    ):
        flags.parse(["--kill=ps:0@3"])


def test_plan():
    made = plan("--kill=chief@300", "--stop=worker:1@30:2s", "--kill=ps:0@100", "--train_steps=600")
    assert [fault.step for fault in made.faults] == [30, 100, 300]
    assert (made.config.save_checkpoint_steps, made.num_ps, made.num_workers) == (60, 1, 2)
    assert plan("--save_checkpoint_secs=5").config.save_checkpoint_steps is None


def test_the_usual_rehearsal():
    found = [(str(fault.task), fault.step) for fault in usual_faults(2, 3, 400)]
    assert found == [("worker:2", 100), ("worker:0", 200), ("ps:1", 300)]
    assert [str(fault.task) for fault in usual_faults(1, 1, 2)] == ["worker:0", "ps:0"]
    assert all(fault.waits for fault in plan().faults)


def steps(*points):
    return [(float(secs), step) for secs, step in points]


def recorded(faults, strikes, observed, restores=(), final=600, **statuses):
    tasks = {task: 0 for task in (PS, CHIEF, WORKER)}
    tasks |= {TaskId.from_string(name.replace("_", ":")): status for name, status in statuses.items()}
    return Recording(list(strikes), steps(*observed), list(restores), tasks, {}, final)


KILL_WORKER, KILL_PS = Fault("kill", WORKER, 200), Fault("kill", PS, 300)


def test_a_worker_is_killed_and_nothing_is_lost():
    recording = recorded(
        [KILL_WORKER], [Strike(10.0, 201)], [(9.9, 201), (10.2, 204), (10.5, 207), (30, 600)]
    )
    verdict = judge([KILL_WORKER], recording, ASYNC, 2)
    assert verdict.is_pass
    assert verdict.outcomes[0].recovery_secs == pytest.approx(0.5)  # 204 may have been under way
    assert verdict.lines() == [
        "fault                 struck at         recovery  steps lost  verdict",
        "kill=worker:1@200:1s  step 201, 10.0 s  0.5 s     0           pass",
        "PASS: 1 fault; every task ended with 0; checkpoint at step 600.",
    ]


def test_a_ps_is_killed_and_the_model_taken_back():
    observed = [(19, 301), (20.2, 303), (25, 250), (25.2, 251), (60, 600)]
    recording = recorded([KILL_PS], [Strike(20.0, 302, saved=250)], observed, [(1.0, 0), (25.1, 250)])
    assert find_recovery(KILL_PS, recording.strikes[0], recording) == (pytest.approx(5.2), 250)
    verdict = judge([KILL_PS], recording, SYNC, 2)
    assert verdict.is_pass and verdict.outcomes[0].steps_lost == 53


def test_steps_beyond_the_checkpoint_are_lost():
    recording = recorded(
        [KILL_PS], [Strike(20.0, 302, saved=250)], [(19, 301), (25, 200), (25.2, 201)], [(25.1, 200)]
    )
    assert judge([KILL_PS], recording, SYNC, 2).reasons == [
        "kill=ps:0@300:1s: back to step 200, though there was a checkpoint at 250"
    ]


def test_steps_are_lost_though_no_ps_was_killed():
    fault = Fault("kill", CHIEF, 200)
    recording = recorded([fault], [Strike(10.0, 210, 200)], [(9, 210), (15, 200), (16, 220)], [(15.0, 200)])
    assert judge([fault], recording, SYNC, 2).reasons == [
        "kill=worker:0@200:1s: 10 steps lost, though no ps was killed"
    ]


def test_a_worker_and_a_ps_at_once_share_the_roll_back():
    faults = [KILL_WORKER, Fault("kill", PS, 200)]
    strikes = [Strike(10.0, 200, 180), Strike(10.01, 200, 180)]
    recording = recorded(faults, strikes, [(9, 200), (15, 180), (15.5, 190), (30, 600)], [(15.0, 180)])
    verdict = judge(faults, recording, ASYNC, 2)
    assert verdict.is_pass and [outcome.steps_lost for outcome in verdict.outcomes] == [20, 20]


def test_a_roll_back_without_a_fault():
    recording = recorded(
        [KILL_WORKER], [Strike(10.0, 201)], [(9, 201), (10.5, 230), (20, 300), (21, 250)], [(20.5, 250)]
    )
    assert judge([KILL_WORKER], recording, ASYNC, 2).reasons == [
        "the model was taken back from step 300 to 250 without a fault at 20.5 s"
    ]


def test_whatever_else_is_wrong():
    observed = [(9, 201), (10.2, 201)]
    recording = recorded(
        [KILL_WORKER, KILL_PS], [Strike(10.0, 201), None], observed, final=None, worker_1=138
    )
    recording.reasons[WORKER], recording.cut_short = "ps:0 has been gone", "no step for 5 s"
    assert judge([KILL_WORKER, KILL_PS], recording, ASYNC, 2).reasons == [
        "kill=worker:1@200:1s: no new step came after it",
        "kill=ps:0@300:1s was not done: the job was over, or ps:0 was gone (last step seen: 201)",
        "no step for 5 s",
        "worker:1 ended with 138: ps:0 has been gone",
        "there is no checkpoint, not at the target of 600",
    ]


def test_a_worker_that_is_left_dead_in_sync_ends_the_job():
    fault = Fault("kill", WORKER, 200, None)
    observed = [(9, 201)]
    recording = recorded(
        [fault], [Strike(10, 201)], observed, final=201, worker_1=137, worker_0=138, ps_0=138
    )
    verdict = judge([fault], recording, SYNC, 2)
    assert verdict.is_pass and verdict.outcomes[0].note == "the job ended with 138"
    assert verdict.lines()[-1] == (
        "PASS: 1 fault; the job ended with 138, as it has to if worker:1 stays away; checkpoint at step 201."
    )
    recording.final_step = 190
    assert judge([fault], recording, SYNC, 2).reasons == [
        "kill=worker:1@200:never: the chief did not save the last 11 steps"
    ]
    recording = recorded([fault], [Strike(10, 201)], observed, final=201, worker_1=137)
    assert judge([fault], recording, SYNC, 2).reasons == [
        "kill=worker:1@200:never: expected the job to end with 138"
    ]


def test_a_worker_that_is_left_dead_in_async_does_not():
    fault = Fault("term", WORKER, 200, None)
    recording = recorded([fault], [Strike(10, 201)], [(9, 201), (11, 240)], worker_1=143)
    verdict = judge([fault], recording, ASYNC, 2)
    assert verdict.is_pass
    assert verdict.praise == "1 fault; every task but worker:1 ended with 0; checkpoint at step 600."


def test_which_faults_end_a_job():
    dead = [Fault("kill", TaskId("worker", index), 5, None) for index in range(3)]
    backup = TrainConfig(update="sync", replicas_to_aggregate=2)
    assert fatal_faults(dead[1:2], ASYNC, 3) == fatal_faults(dead[1:2], backup, 3) == []
    assert fatal_faults(dead[1:2], SYNC, 3) == dead[1:2]
    assert fatal_faults(dead[1:], backup, 3) == dead[1:]
    assert fatal_faults(dead[1:], TrainConfig(update="sync", on_worker_loss="continue"), 3) == []
    assert fatal_faults(dead[:1], ASYNC, 3) == dead[:1]
    stop = Fault("stop", PS, 5, 20.0)
    assert fatal_faults([stop], ASYNC, 3) == []
    assert fatal_faults([stop], TrainConfig(peer_timeout_secs=20.0), 3) == [stop]


def test_a_verdict_is_json():
    recording = recorded([KILL_WORKER, KILL_PS], [Strike(10.0, 201), None], [(9, 201), (11, 220)])
    found = json.loads(
        json.dumps(judge([KILL_WORKER, KILL_PS], recording, ASYNC, 2).as_dict(), allow_nan=False)
    )
    assert found["outcome"] == "FAIL" and [fault["verdict"] for fault in found["faults"]] == ["pass", "fail"]
