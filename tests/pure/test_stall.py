"""What a task that completes no step is said to wait for, given the evidence; and how Python stacks are reduced to it."""

import pathlib
import sys
import threading

import pytest

from ps_train import stacks
from ps_train.stacks import Stack, main_stack, python_calls
from ps_train.stall import Evidence, Peer, Server, conclude, describe_round, explain
from ps_train.updates.standing import Standing

PS = (Server("ps:0", "p0:1", True), Server("ps:1", "p1:1", True))
WORKERS = ("worker:0", "worker:1", "worker:2")
ALIVE = [Peer(name, "training", 0.4, 312) for name in WORKERS]
IN_SESSION = Stack(
    "session", "main in train.py:40", ("train.py:40 in main: session.run(train_op)", "session.run")
)


def evidence(own="worker:0", peers=None, **more):
    """That of a worker of three; `peers` take the places of those that are alive."""
    known = {peer.name: peer for peer in [*ALIVE, *(peers or [])]}
    others = [known[name] for name in WORKERS if name != own]
    values = {"servers": PS, "stack": IN_SESSION, **more}
    return Evidence(own, "worker:0", 41.2, 312, peers=others, **values)


def standing(arrived=(), claimed=None, needed=3, members=WORKERS, **more):
    claimed = arrived if claimed is None else claimed
    return Standing(7, needed, tuple(members), claimed=tuple(claimed), arrived=tuple(arrived), **more)


def test_a_ps_that_does_not_answer_comes_first():
    refused = "connection refused (nothing listens there)"
    down = [PS[0], Server("ps:1", "p1:1", False, refused)]
    seen = evidence(servers=down, standings=[standing()], calls=["decode in mine.py:12"])
    assert conclude(seen) == f"ps:1 at p1:1 does not answer: {refused}"


@pytest.mark.parametrize(
    ("peer", "known"),
    [
        (Peer("worker:2", "training", 41, 300), "was last heard of 41 s ago"),
        (Peer("worker:2"), "has not been heard of"),
        (Peer("worker:2", "failed", 41, reason="no loss"), "has ended (no loss)"),
        (Peer("worker:2", "starting", 0.2), "is alive (starting)"),
        (Peer("worker:2", "training", 0.2, 312), "is alive"),
        (
            Peer("worker:2", "training", 0.2, 312, "this worker's own input gives no data: f in m.py:1 has not returned"),
            "is alive and says: this worker's own input gives no data: f in m.py:1 has not returned",
        ),
    ],
)  # fmt: skip
def test_sync_another_worker_owes_its_gradient(peer, known):
    seen = evidence(peers=[peer], standings=[standing(["worker:0", "worker:1"])])
    assert (
        conclude(seen) == f"waiting for worker:2, which has not given its gradient for step 313 and {known}"
    )


def test_sync_several_workers_owe():
    silent = Peer("worker:1", "training", 41, 312)
    seen = evidence(peers=[silent], standings=[standing(["worker:0"])])
    assert conclude(seen) == (
        "waiting for the gradients for step 313 of worker:1, which was last heard of 41 s ago, of worker:2, which is alive"
    )


def test_sync_only_those_that_can_still_give_are_waited_for():
    """With a backup worker, two places, and one of them taken by a worker that died halfway through its push."""
    dead = Peer("worker:1", "training", 6)
    half = standing(["worker:0"], claimed=["worker:0", "worker:1"], needed=2)
    assert "waiting for worker:1," in conclude(evidence(peers=[dead], standings=[half]))
    late = standing(["worker:0"], needed=2)
    assert conclude(evidence(standings=[late])).startswith(
        "waiting for the gradients for step 313 of worker:1, "
    )


@pytest.mark.parametrize(
    ("round_", "conclusion"),
    [
        (
            standing(WORKERS, is_rung=True, num_rung=1),
            "all gradients for step 313 are there, but the chief, worker:0, which was last heard of 9 s ago, does not apply them",
        ),
        (
            standing(WORKERS, is_updating=True),
            "the update of step 313 was begun on the ps tasks, by the chief, worker:0, which was last heard of 9 s ago, and is "
            "not over",
        ),
        (
            standing(WORKERS, is_paused=True),
            "the chief, worker:0, which was last heard of 9 s ago, holds the update of step 313 back while it saves a checkpoint",
        ),
        (
            standing(["worker:1"], is_torn=True),
            "a worker was lost halfway through its push, and the chief, worker:0, which was last heard of 9 s ago, has to have "
            "the round done again",
        ),
    ],
)  # fmt: skip
def test_sync_the_chief_is_waited_for(round_, conclusion):
    chief = Peer("worker:0", "training", 9, 312)
    assert conclude(evidence("worker:1", [chief], standings=[round_])) == conclusion


def test_the_chief_does_not_speak_of_itself_as_of_another():
    full = standing(WORKERS, is_rung=True, num_rung=1)
    assert conclude(evidence(standings=[full])) == (
        "all gradients for step 313 are there, but the chief, worker:0 does not apply them"
    )


def test_own_gradient_is_on_its_way():
    half = standing(["worker:1"], claimed=["worker:0", "worker:1"])
    assert (
        conclude(evidence(standings=[half]))
        == "this task's gradient for step 313 is on its way to the ps tasks"
    )


@pytest.mark.parametrize("standings", [(), [standing(["worker:1"])]], ids=["async", "sync"])
def test_own_input(standings):
    seen = evidence(standings=standings, calls=["decode in mine.py:12"])
    assert conclude(seen) == "this worker's own input gives no data: decode in mine.py:12 has not returned"
    assert conclude(seen._replace(calls=())) == (
        "this worker's own input gives no data, as it seems: every ps answers, no other task is waited for, and this process "
        "is idle"
    )


def test_a_queue_of_the_model_s():
    assert conclude(evidence(queues=["sync_token_q"])) == (
        "this worker waits at a queue of the model's on the ps tasks (sync_token_q) or for its own input: every ps answers, "
        "and this process is idle"
    )


def test_a_function_of_the_input_that_reads_ahead_is_not_blamed():
    """This worker has given its gradient: its next batch is not what is missing."""
    seen = evidence(standings=[standing(["worker:0", "worker:1"])], calls=["decode in mine.py:12"])
    assert conclude(seen).startswith("waiting for worker:2, ")


def test_own_computation():
    assert conclude(evidence(cores=1.9)) == (
        "this worker computes, 1.9 cores being busy: if a step of the model takes that long, all is well"
    )


@pytest.mark.parametrize(
    ("place", "conclusion"),
    [
        ("saving", "this task is saving a checkpoint"),
        ("bring-up", "the session is being made anew"),
        ("code", "this task is not in session.run but in code of its own: evaluate in train.py:52"),
    ],
)
def test_the_main_thread_is_elsewhere(place, conclusion):
    stack = Stack(place, "evaluate in train.py:52", ("train.py:52 in evaluate: wait()",))
    assert (
        conclude(evidence(stack=stack, standings=[standing(["worker:1"])], calls=["f in m.py:1"]))
        == conclusion
    )


def test_all_lines():
    peer = Peer("worker:2", "training", 41, 300)
    first = standing(["worker:0", "worker:1"], tokens={"worker:0": 0})
    seen = evidence(
        peers=[peer],
        standings=[first],
        gradients=[2, 2, 2],
        is_loop_there=True,
        notes=["a note"],
        calls=["f in m.py:1"],
    )
    assert explain(seen) == [
        "no step for 41 s since this task's last, to global step 312. What is known, told once for each such wait:",
        "  round for step 313: 2 of 3 gradients; given by worker:0, worker:1; owed by worker:2",
        "  tokens here: 0",
        "  accumulators: 2 gradients in each of 3",
        "  the chief's update loop runs",
        "  ps:0 answers; ps:1 answers",
        "  worker:2 (training at step 300) was last heard of 41 s ago",
        "  alive: worker:1 at step 312",
        "  a note",
        "  this process keeps 0.0 cores busy; its main thread:",
        "    train.py:40 in main: session.run(train_op)",
        "    session.run",
        "  a Python function that was called by TensorFlow: f in m.py:1",
        "  so: waiting for worker:2, which has not given its gradient for step 313 and was last heard of 41 s ago",
    ]  # fmt: skip
    assert conclude(seen._replace(tells_ages=False)).endswith("for step 313 and is silent")
    before = explain(seen._replace(step=0, is_first=True, gradients=[0, 2]))
    assert before[0].startswith("no step for 41 s since the session was made, at global step 0. ")
    assert "  accumulators: 0 to 2 gradients in each of 2" in before


def test_rounds_in_words():
    one = standing(
        ["worker:0"], claimed=["worker:0", "worker:1"], pending=("worker:3",), is_paused=True, num_rung=1, is_torn=True
    )  # fmt: skip
    assert describe_round(one) == (
        "1 of 3 gradients; given by worker:0; on the way from worker:1; owed by worker:2; to join later: worker:3; "
        "update called for and not begun; updates held back; to be done again"
    )


def test_the_ledger_s_vector_in_names():
    names = ["chief:0", "worker:0", "worker:1"]
    #         round going updating paused torn | member    pending   waiting   claimed    arrived
    vector = [9, 8, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 9, 9, 3, 9, 8, 3]
    assert Standing.from_vector(vector, 3, names, num_rung=1, tokens={"chief:0": 1}) == Standing(
        9, 2, ("chief:0", "worker:0"), ("worker:1",), ("chief:0", "worker:0"), ("chief:0",), num_rung=1, is_paused=True,
        tokens={"chief:0": 1},
    )  # fmt: skip


class Blocked:
    """A thread that waits in functions that call one another, the first of them in the first of these files."""

    def __init__(self, *files, name="f"):
        self._release, ready = threading.Event(), threading.Event()
        scope = {"ready": ready, "release": self._release}
        exec(compile("def wait():\n    ready.set()\n    release.wait(30)\n", "<wait>", "exec"), scope)
        call = scope["wait"]
        for file in reversed(files):
            scope = {"call": call}
            exec(compile(f"def {name}():\n    call()\n", file, "exec"), scope)
            call = scope[name]
        self._thread = threading.Thread(target=call, daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def __enter__(self):
        return {self._thread.ident: sys._current_frames()[self._thread.ident]}

    def __exit__(self, *_):
        self._release.set()
        self._thread.join(30)


PACKAGE = pathlib.Path(stacks.__file__).parent
TF = "/env/site-packages/tensorflow/python/"


def test_stack_of_a_thread_in_session_run():
    with Blocked(
        "/home/me/train.py", TF + "training/monitored_session.py", TF + "client/session.py"
    ) as frames:
        (ident,) = frames
        stack = main_stack(ident, frames)
    assert stack == Stack("session", "f in /home/me/train.py:2", ("/home/me/train.py:2 in f", "session.run"))
    assert main_stack(0, frames).place == "code"


@pytest.mark.parametrize(
    ("file", "name", "place"),
    [
        ("checkpoint_hook.py", "save", "saving"),
        ("checkpoint_hook.py", "before_run", "session"),
        ("bring_up.py", "create_session", "bring-up"),
        ("bring_up.py", "run", "session"),
    ],
)
def test_what_ps_train_is_about_when_it_blocks_in_session_run(file, name, place):
    source = (PACKAGE / file).read_text()
    assert f"def {name}(" in source or place == "session", "the function has another name now"
    with Blocked(str(PACKAGE / file), TF + "client/session.py", name=name) as frames:
        assert main_stack(*frames, frames).place == place


def test_python_functions_that_tensorflow_has_called():
    with Blocked(
        TF + "ops/script_ops.py", TF + "data/ops/from_generator_op.py", "/home/me/mine.py"
    ) as frames:
        (call,) = python_calls(frames)
        (again,) = python_calls({ident: sys._current_frames()[ident] for ident in frames})
        assert call.frame is again.frame
    assert (call.place, call.lines) == ("f in /home/me/mine.py:2", ("/home/me/mine.py:2 in f",))
    with Blocked("/home/me/train.py") as frames:
        assert python_calls(frames) == []


@pytest.mark.parametrize(
    ("peers", "conclusion"),
    [
        (
            [],
            "waiting in the all-reduce of step 313, of worker:1, which is alive, of worker:2, which is alive; or for its own input",
        ),
        (
            [
                Peer(
                    "worker:1",
                    "training",
                    0.2,
                    312,
                    "waiting in the all-reduce of step 313, as all other workers do",
                ),
                Peer(
                    "worker:2",
                    "training",
                    0.2,
                    312,
                    "this worker's own input gives no data: f in m.py:1 has not returned",
                ),
            ],
            "waiting in the all-reduce of step 313, of worker:2, which is alive and says: this worker's own input gives no data: "
            "f in m.py:1 has not returned; or for its own input",
        ),
        (
            [
                Peer(name, "training", 0.2, 312, "waiting in the all-reduce of step 313, x")
                for name in WORKERS
            ],
            "waiting in the all-reduce of step 313, as all other workers do",
        ),
    ],
)
def test_an_all_reduce_waits_for_workers_and_names_no_ps(peers, conclusion):
    seen = evidence(peers=peers, is_all_reduced=True)
    assert conclude(seen) == conclusion
    assert not any("ps:" in line for line in explain(seen))


def test_a_worker_whose_work_queue_is_empty_for_now_waits_for_the_others():
    seen = evidence(waits_for_pieces=True, calls=["decode in mine.py:12"])
    assert conclude(seen) == (
        "waiting for pieces of the data that other workers have in hand: none is left to take (--input=workqueue)"
    )
