"""`ps_train status` without a job: whom it asks, and what it makes of what the boards say."""

import json

import pytest

from ps_train import board, flags, status, tables
from ps_train.cluster import Cluster, TaskId
from ps_train.commands.status import make_plan
from ps_train.errors import UsageError
from ps_train.sight import Look, Sight, _Eye
from ps_train.staleness import Histogram
from ps_train.status import as_dict
from ps_train.status_text import as_text, why_unanswered
from ps_train.tables import PLACEMENT, TRAFFIC, Held, Line
from ps_train.updates.standing import Standing

SHARES = [["ps:0", 4_000_000, 3], ["ps:1", 12_000_000, 1]]
WORKERS = ("worker:0", "worker:1", "worker:2")
CLUSTER = Cluster.from_hosts("p0:1,p1:1", "w0:1,w1:1,w2:1")
TF_CONFIG = json.dumps({"cluster": {"ps": ["p0:1"], "chief": ["c:1"], "worker": ["w:1"]}})


def config(*args, env=None):
    return make_plan(flags.parse(["status", *args])[0], env or {})


def problem(*args, env=None):
    with pytest.raises(UsageError) as caught:
        config(*args, env=env)
    return str(caught.value)


def test_whom_it_asks():
    ps = [(TaskId("ps", 0), "p0:1"), (TaskId("ps", 1), "p1:1")]
    assert config("--ps_hosts=p0:1,p1:1") == (ps, None, None, None)
    assert config("--ps_hosts=p0:1,p1:1", "--worker_hosts=w0:1,w1:1,w2:1", "--job_name=ps")[:2] == (
        ps,
        CLUSTER,
    )
    assert config("--ps_hosts=p0:1", "--watch")[2:] == (2.0, None)
    assert config("--ps_hosts=p0:1", "--watch=0.5", "--status_port=8080")[2:] == (0.5, "8080")
    assert config("--ps_hosts=p0:1", "--nowatch", "--status_port=").secs is None
    watched = config(env={"TF_CONFIG": TF_CONFIG})
    assert watched.ps == ps[:1] and [str(task) for task in watched.cluster.training_tasks] == [
        "chief:0",
        "worker:0",
    ]
    assert config("--ps_hosts=p0:1", env={"TF_CONFIG": TF_CONFIG}) == watched
    assert config("--ps_hosts=P0:1", env={"TF_CONFIG": TF_CONFIG}).cluster == watched.cluster, "one address"
    assert (
        config("--ps_hosts=q:1", "--cluster_resolver=flags", env={"TF_CONFIG": TF_CONFIG}).ps[0][1] == "q:1"
    )


def test_wrong_flags():
    assert problem() == (
        "The command status asks the ps tasks of a running job, and none is named. Add --ps_hosts=host:port,host:port, or set "
        "TF_CONFIG."
    )
    assert problem("--ps_hosts=p0") == (
        "Address 'p0' of ps:0 has no port. Expected host:port, such as host:2222. Check --ps_hosts."
    )
    assert problem("--worker_hosts=w:1").startswith("The cluster has no ps. ")
    assert "name different ps tasks" in problem("--ps_hosts=q:1", env={"TF_CONFIG": TF_CONFIG})
    assert "is no task of the job" in problem("--ps_hosts=p:1", "--cluster_resolver=slurm")
    for port in ("80a", "-1", "70000", "host:", "a b:1", "[::1]"):
        assert problem("--ps_hosts=p:1", f"--status_port={port}") == (
            f"--status_port={port} is no place to listen. Expected a port such as 8080, 0 for a free one, or host:port."
        )
    for name in ("json", "watch"):
        with pytest.raises(UsageError, match=f"--{name} is a flag of the command status"):
            flags.parse([f"--{name}"])
    for secs, why in (
        ("0", "is not a time to wait"),
        ("inf", "is not a time to wait"),
        ("x", "is not a number"),
    ):
        with pytest.raises(UsageError, match=f"^--watch={secs} {why}"):
            flags.parse(["status", f"--watch={secs}"])


def record(key, beat, **fields):
    return {"key": key, "beat": beat, "host": "vm", "pid": 7, **fields}


def summarize(sights, given=None, texts=None):
    return status.summarize(Look(list(sights), texts or {}), given)


def worker(name, beat, **fields):
    values = {
        "state": "training",
        "step": 312,
        "local_steps": 104,
        "rate": 90.0,
        "local_rate": 30.0,
        "loss": 0.25,
    }
    return record(name, beat, **{**values, **fields})


def sight(index=0, update="async", workers=None, later=None, silent=None, rounds=(), passed=30, **more):
    """What a ps says first, and then; `later` are changes of the workers' records, None: it is as before.

    Each worker has done `passed` steps between the two.
    """
    me = f"ps:{index}"
    workers = {name: {} for name in WORKERS} if workers is None else workers
    head = [
        record("training", 1, update=update, quorum=3, train_steps=1000, ledgers=[], shares=SHARES),
        *[record(key, 1, **fields) for key, fields in more.items()],
    ]
    boards = []
    for beat in (1, 2):
        board = [*head, record(me, beat, state="serving", cluster=CLUSTER.as_dict(), silent=silent or {})]
        for name, fields in workers.items():
            changes = (later or {}).get(name, {})
            living = beat if changes is not None else 1
            now = {**fields, **(changes or {} if beat == 2 else {})}
            now.setdefault("local_steps", 104 - (passed if beat == 1 and changes is not None else 0))
            board.append(worker(name, living, **now))
        boards.append({entry["key"]: entry for entry in board})
    return Sight(TaskId("ps", index), f"p{index}:1", *boards, rounds=list(rounds))


def test_an_async_job():
    slow = {"worker:2": {"step": 310, "local_steps": 20, "local_rate": 6.0}}
    seen = summarize([sight(0, later={"worker:0": {"step": 350}, **slow}), sight(1)])
    assert as_text(seen) == (
        "task      state     host  pid  step  local  steps/s  loss  staleness  heard of\n"
        "ps:0      serving   vm      7                                         now\n"
        "ps:1      serving   vm      7                                         now\n"
        "worker:0  training  vm      7   350    104     30.0  0.25        2.0  now\n"
        "worker:1  training  vm      7   312    104     30.0  0.25        2.0  now\n"
        "worker:2  training  vm      7   310     20      6.0  0.25       14.0  now\n"
        "worker:2: slow: 6.0 steps/s, where others do 30.0\n"
        "model: step 350/1000, 90.0 steps/s, async\n"
        "placement: ps:0 4 MB in 3 variables, ps:1 12 MB in 1 variable; the fullest has 1.50 times the mean"
    )


def test_a_slow_model_is_not_shown_as_one_that_stands_still():
    rates = {f"worker:{index}": {"local_rate": 0.054, "rate": 0.162} for index in range(3)}
    text = as_text(summarize([sight(0, later=rates), sight(1, later=rates)]))
    assert "0.16 steps/s, async" in text and text.count(" 0.054 ") == 3


def staleness(seen):
    found = Histogram()
    for value in seen:
        found.note(value)
    return found.as_list()


def test_staleness_is_what_was_measured_in_the_last_second_where_it_is():
    workers = {
        "worker:0": {"staleness": staleness([9] * 100)},
        "worker:1": {"staleness": staleness([9, 4])},
        "worker:2": {"staleness": staleness([9] * 100), "run": "a"},
    }
    later = {
        "worker:0": {"staleness": staleness([9] * 100 + [1, 2])},
        "worker:2": {"staleness": staleness([3, 4]), "run": "b"},
    }
    seen = summarize([sight(0, workers=workers, later=later)])
    assert [task.staleness for task in seen.tasks[1:]] == [1.5, 6.5, 3.5]


STUCK = Standing(7, 3, WORKERS, claimed=WORKERS[:2], arrived=WORKERS[:2])


def test_a_sync_job_that_waits():
    """For a worker that is silent: how long, a ps knows, which looks all the time."""
    seen = summarize(
        [
            sight(0, "sync", {name: {} for name in WORKERS[:2]}, rounds=[[STUCK], [STUCK]], passed=0),
            sight(1, "sync", {WORKERS[2]: {}}, {"worker:2": None}, {"worker:2": 41.3}, passed=0),
        ]
    )
    assert as_text(seen).splitlines()[3:] == [
        "worker:0  training  vm      7   312    104      0.0  0.25  now",
        "worker:1  training  vm      7   312    104      0.0  0.25  now",
        "worker:2  silent    vm      7   312    104           0.25  41 s ago",
        "worker:0: waiting for worker:2, which has not given its gradient for step 313",
        "worker:1: waiting for worker:2, which has not given its gradient for step 313",
        "worker:2: silent for 41 s; owes its gradient for step 313",
        "model: step 312/1000, 0.0 steps/s, sync, 3 gradients an update",
        "placement: ps:0 4 MB in 3 variables, ps:1 12 MB in 1 variable; the fullest has 1.50 times the mean",
        "rounds: 2 of 3 gradients; given by worker:0, worker:1; owed by worker:2",
    ]


def test_an_update_takes_the_gradients_of_those_who_are_there():
    left = Standing(7, 2, WORKERS[:2])

    def model(standing):
        seen = summarize([sight(0, "sync", rounds=[[standing], [standing._replace(round=9)]])])
        return seen.quorum, as_text(seen)

    quorum, text = model(left)  # one of the three is lost
    assert quorum == 2 and "steps/s, sync, 2 gradients an update" in text
    assert model(left._replace(needed=3, members=WORKERS))[0] == 3
    assert model(left._replace(needed=0, members=()))[0] == 3, "all have left: as it was asked for"


FROZEN = Sight(TaskId("ps", 1), "p1:1", reason=f"{board.NO_ANSWER} in 2 s (process stopped)")
OPEN = Standing(7, 3, WORKERS)


def test_a_ps_that_is_stopped_is_what_the_workers_wait_for():
    """They owe their gradients because it takes none; one that is silent, too, is told of as such."""
    told = "ps:1 at p1:1 does not answer: no answer"
    workers = {"worker:0": {}, "worker:1": {"stall": told}, "worker:2": {}}
    ledger = sight(0, "sync", workers, {"worker:2": None}, rounds=[[OPEN], [OPEN]], passed=0)
    seen = summarize([ledger, FROZEN])
    remarks = {task.task: task.remarks for task in seen.tasks}
    wait = "waiting for ps:1, which does not answer"
    assert remarks["worker:0"] == (wait,) and remarks["worker:1"] == (told,)
    assert remarks["worker:2"] == ("silent for more than 1 s",)
    assert f"rounds: 0 of 3 gradients; owed by worker:0, worker:1, worker:2; {wait}" in as_text(seen)


@pytest.mark.parametrize("update", ["sync", "async"])
def test_the_ps_with_the_ledger_is_stopped(update):
    """That a worker makes no step is seen at its own record then; one that does, as with a busy ps, waits for nobody."""
    first = Sight(TaskId("ps", 0), "p0:1", reason=FROZEN.reason)
    still, moving = (summarize([first, sight(1, update, passed=passed)]) for passed in (0, 30))
    assert {task.remarks for task in still.tasks[2:]} == {("waiting for ps:0, which does not answer",)}
    assert {task.remarks for task in moving.tasks[2:]} == {()}


@pytest.mark.parametrize(
    ("reason", "note"),
    [
        ("failed_precondition: Could not find variable sync_replicas/ps_train_sync0", ""),
        (board.TIMED_OUT, f"the rounds' ledger on ps:0 cannot be read: {board.TIMED_OUT}"),
    ],
)
def test_a_ledger_that_cannot_be_read(reason, note):
    """One that is not made yet, as in a job's first seconds, is nothing to be told."""

    class Reader:
        def read(self, secs):
            raise board.BoardError(reason)

    eye, seen = _Eye(TaskId("ps", 0), "p0:1", lambda secs: None), sight(0, "sync")
    eye._reader = Reader()
    eye._read_rounds(seen)
    assert (seen.note, seen.rounds) == (note, [])


def test_whom_a_worker_of_a_sync_job_waits_for():
    """Of the ledger, until it has found out more by itself; nothing of one whose steps take longer than a look."""
    known = "waiting for worker:1, which has not given its gradient for step 313 and is silent"
    workers = {"worker:0": {"stall": known}, "worker:1": {}, "worker:2": {}}
    stuck = STUCK._replace(claimed=("worker:0",), arrived=("worker:0",))
    two = summarize([sight(0, "sync", passed=0, rounds=[[stuck], [stuck]])]).tasks
    owed = "waiting for worker:1, worker:2, which have not given their gradients for step 313"
    assert [task.remarks for task in two[1:3]] == [(owed,), ("owes its gradient for step 313",)]
    told = summarize([sight(0, "sync", workers, passed=0, rounds=[[stuck], [stuck]])]).tasks
    assert told[1].remarks == (known,)
    slow = {name: {"local_rate": 0.054, "rate": 0.054} for name in WORKERS}
    assert summarize([sight(0, "sync", slow, passed=0, rounds=[[STUCK], [STUCK]])]).tasks[1].remarks == ()


def test_a_sync_job_that_goes_on():
    """Somebody owes a gradient at any moment: that is nothing to be told."""
    seen = summarize(
        [sight(0, "sync", later={"worker:0": {"step": 350}}, rounds=[[STUCK], [STUCK._replace(round=45)]])]
    )
    assert "owes" not in as_text(seen) and "rounds: 38 completed in the last second" in as_text(seen)


def test_what_a_task_says_of_its_wait():
    stalled = {name: {"stall": f"waiting for {name}'s luck", "local_rate": 0.0} for name in WORKERS}
    text = as_text(summarize([sight(workers=stalled)]))
    assert "worker:1: waiting for worker:1's luck" in text and "model: step 312/1000, 0.0 steps/s" in text


def test_tasks_that_ended_and_such_that_never_came():
    workers = {"worker:0": {}, "worker:1": {"state": "failed", "reason": "no loss"}}
    text = as_text(
        summarize(
            [sight(workers=workers, later={"worker:1": None}, job={"is_over": True, "reason": "target"})]
        )
    )
    assert "worker:1  failed    vm      7   312    104           0.25\n" in text
    assert "worker:2  not seen  w2:1\n" in text
    assert "worker:1: no loss\n" in text and text.endswith("\nthe job is over: target")


def test_a_ps_that_does_not_answer():
    dead = Sight(TaskId("ps", 1), "p1:1", reason="connection refused (nothing listens there)")
    seen = summarize([sight(0), dead])
    text = as_text(seen)
    assert seen.is_answered and "ps:1      no answer  p1:1\n" in text
    assert "ps:1: connection refused (nothing listens there)\n" in text
    none = summarize([dead])
    assert not none.is_answered and none.step is None
    assert as_text(none) == (
        "task  state      host\nps:1  no answer  p1:1\nps:1: connection refused (nothing listens there)"
    )


@pytest.mark.parametrize(
    ("reason", "is_gone"),
    [
        (board.REFUSED, True),
        (board.UNRESOLVED, True),
        (board.NOT_TENSORFLOW, True),
        (board.TIMED_OUT, False),
        (f"{board.NO_ANSWER} in 2 s (host down)", False),
        ("no route to host", False),
    ],
)
def test_no_ps_answers(reason, is_gone):
    dead = Sight(TaskId("ps", 0), "p0:1", reason=board.REFUSED)
    seen = summarize([dead, Sight(TaskId("ps", 1), "p1:1", reason=reason)])
    told = why_unanswered(seen)
    assert ("The job has ended" in told) is is_gone and (
        "the job waits for ps:1, which is" in told
    ) is not is_gone


def test_other_lists_than_the_job_s():
    given = Cluster.from_hosts("p0:1,p1:1", "w0:1,w1:1")
    assert summarize([sight()], given).notes == (
        "Job 'worker' differs: w0:1,w1:1 given here, w0:1,w1:1,w2:1 in the job.",
    )
    silent = Sight(TaskId("ps", 0), "p0:1", reason="no answer")
    assert [task.task for task in summarize([silent], given).tasks] == ["ps:0", "worker:0", "worker:1"]


def test_a_ps_whose_board_answers_and_that_does_nothing_else():
    stuck = sight(0)
    stuck.second["ps:0"] = stuck.first["ps:0"]
    assert "ps:0: answers, but its own record does not change" in as_text(summarize([stuck]))


def test_json():
    seen = summarize([sight(0, "sync", rounds=[[STUCK], [STUCK]], later={"worker:2": None})])
    found = json.loads(json.dumps(as_dict(seen)))
    assert found["is_answered"] is True and found["step"] == 312 and found["train_steps"] == 1000
    assert found["rounds"][0]["owing"] == ["worker:2"] and found["rounds"][0]["num_done"] == 0
    (late,) = (task for task in found["tasks"] if task["task"] == "worker:2")
    assert late["is_silent"] and late["remarks"] == [
        "silent for more than 1 s",
        "owes its gradient for step 313",
    ]
    assert set(late) == set(status.TaskStatus._fields)


HELD = [Held("ps:0", f"layer_{n}/kernel", (10, n), "float32", 40 * n, 2, 80 * n) for n in range(1, 13)]
HELD.append(Held("ps:1", "table", (500, 8), "float32", 16_000, part=(500, 0), whole=(1000, 8)))
LINES = [
    Line("ps:0", 2, 3_120, 1, 3_120, 0, ("float32",), ("fused",)),
    Line("ps:1", 1, 1_600, 3, 8, 2, ("float32", "int32"), ()),
]


def with_tables(*workers):
    """Texts as the boards have them; the chief has the placement."""
    texts = {("worker:0", PLACEMENT): tables.as_text(HELD)}
    return texts | {(name, TRAFFIC): tables.as_text(lines) for name, lines in workers}


def test_tables_of_variables_and_messages():
    """The largest first, the rest as a number; workers that send the same have one row."""
    texts = with_tables(("worker:0", LINES), ("worker:1", LINES), ("worker:2", LINES[:1]))
    seen = summarize([sight()], texts=texts)
    assert as_text(seen).splitlines()[-15:] == [
        "on    variable         shape   rows     type      size  with slots",
        "ps:1  table            1000x8  500-999  float32  16 kB       16 kB",
        "ps:0  layer_12/kernel  10x12            float32  480 B     1.44 kB",
        "ps:0  layer_11/kernel  10x11            float32  440 B     1.32 kB",
        "ps:0  layer_10/kernel  10x10            float32  400 B      1.2 kB",
        "ps:0  layer_9/kernel   10x9             float32  360 B     1.08 kB",
        "ps:0  layer_8/kernel   10x8             float32  320 B       960 B",
        "ps:0  layer_7/kernel   10x7             float32  280 B       840 B",
        "ps:0  layer_6/kernel   10x6             float32  240 B       720 B",
        "ps:0  layer_5/kernel   10x5             float32  200 B       600 B",
        "ps:0  layer_4/kernel   10x4             float32  160 B       480 B",
        "and 3 smaller ones, 720 B",
        "a step's line      pulls  bytes pulled  pushes  bytes pushed  type            how",
        "ps:0 - worker:0-2      2       3.12 kB       1       3.12 kB  float32         fused",
        "ps:1 - worker:0-1      1        1.6 kB       3           8 B  float32, int32  and 2 messages as large as the batch has it",
    ]
    found = json.loads(json.dumps(as_dict(seen)))
    assert len(found["placement"]) == 13 and sum(row["total_bytes"] for row in found["placement"]) == 25_360
    assert found["placement"][-1]["part"] == [500, 0] and found["placement"][0]["shape"] == [10, 1]
    assert found["transport"]["worker:1"][1]["pushed_bytes"] == 8 and found["transport"]["worker:2"][1:] == []


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '[["ps:0"]]', '{"a": 1}', '[["a", "b", 1, 2, 3, 4, 5, 6, 7, 8]]', "null"]
)
def test_tables_that_are_none(text):
    """Whoever reaches a board may write there."""
    texts = {("worker:0", PLACEMENT): text, ("worker:0", TRAFFIC): text}
    seen = summarize([sight()], texts=texts)
    assert seen.placement == () and seen.transport == {"worker:0": ()}
    assert "variable" not in as_text(seen).replace("variables", "").replace("1 variable;", "")


def test_rows_survive_the_way_over_the_board():
    assert tables.read_placement(tables.as_text(HELD)) == tuple(HELD)
    assert tables.read_traffic(tables.as_text(LINES)) == tuple(LINES)
