"""What a launcher makes of boards, lines and reports: each figure against one that is computed here, with a clock of the test's."""

import sys
import types
from types import SimpleNamespace

import pytest

from ps_train import follower as follower_lib
from ps_train.board_watch import BoardWatch
from ps_train.cluster import Cluster, TaskId
from ps_train.config import TrainConfig
from ps_train.evaluation_watch import EvaluationWatch, read_result, write_result
from ps_train.follower import Follower
from ps_train.pace import Pace, Round, Seen
from ps_train.picture import Row

PS, CHIEF, WORKER = TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)
TWO = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2,127.0.0.1:3")


class BoardError(Exception):
    pass


class FakeBoard:
    """The board of a ps; `records` is what it holds."""

    all, are_in_reach = {}, True

    def __init__(self, address, ps):
        self.records, self.num_calls, self.is_up = {}, 0, self.are_in_reach
        self.all[str(ps)] = self

    def exchange(self, records, timeout_secs):
        self.num_calls += 1
        if not self.is_up:
            raise BoardError("no answer")
        self.records |= {record["key"]: record for record in records}
        return dict(self.records)

    def post(self, key, state, beat=1, **fields):
        self.records[key] = {"key": key, "state": state, "run": "r", "beat": beat, **fields}

    def close(self):
        pass


@pytest.fixture(autouse=True)
def fake_boards(monkeypatch):
    module = types.ModuleType("ps_train.board")
    module.Board, module.BoardError = FakeBoard, BoardError
    monkeypatch.setitem(sys.modules, "ps_train.board", module)


def call(function):
    function()


def make(cluster=TWO, **settings):
    is_local = settings.pop("is_local", True)
    config = TrainConfig(**{"train_steps": 50, **settings})
    follower = Follower(cluster, config, is_local, start=call)
    follower.look(0.0)
    return follower


@pytest.fixture
def follower(tmp_path):
    """Follows two ps and two workers by the boards in `FakeBoard.all`."""
    cluster = Cluster.from_hosts(ps="127.0.0.1:1,127.0.0.1:4", worker="127.0.0.1:2,127.0.0.1:3")
    return make(cluster, log_dir=str(tmp_path))


def snapshot(follower):
    return follower.snapshot(dict.fromkeys(follower._cluster.tasks))


def states(follower):
    return [row.state for row in snapshot(follower).rows]


def test_the_report_of_a_task_that_has_ended_is_read_once(tmp_path, monkeypatch):
    cluster = Cluster.from_hosts(ps="127.0.0.1:1", worker="127.0.0.1:2")
    follower = Follower(cluster, TrainConfig(log_dir=str(tmp_path)))
    read = []
    monkeypatch.setattr(
        follower_lib, "read_report", lambda path: read.append(path) or {"global_step": 3, "loss": 0.25}
    )
    for _ in range(3):
        shown = follower.snapshot({PS: None, CHIEF: 0})
        assert (shown.step, shown.loss) == (3, 0.25)
    assert read == [f"{tmp_path}/worker0.json"]


def test_what_is_shown_of_the_tasks(tmp_path):
    follower = Follower(TWO, TrainConfig(train_steps=50, log_dir=str(tmp_path)))
    running = dict.fromkeys(TWO.tasks)
    begun = follower.snapshot(running)
    assert begun.rows == tuple(Row(str(task), "starting") for task in TWO.tasks)
    assert (begun.step, begun.target, begun.message) == (None, 50, "starting the tasks")
    follower.records = {
        "ps:0": {"state": "serving"},
        "worker:0": {"state": "training", "step": 12, "local_steps": 8, "local_rate": 4.0, "evaluation": "step 9: a 0.5"},
        "worker:1": {"state": "left", "step": 11, "local_steps": 4, "local_rate": 9.0, "loss": 0.5},
    }  # fmt: skip
    (tmp_path / "worker1.json").write_text('{"global_step": 14}')
    shown = follower.snapshot({**running, WORKER: 0})
    assert shown.rows == (
        Row("ps:0", "serving"),
        Row("worker:0", "training", 8, 4.0),
        Row("worker:1", "done", 4),
    )
    assert (shown.step, shown.target, shown.rate, shown.loss, shown.is_ended) == (14, 50, None, 0.5, False)
    assert shown.evaluation == "evaluation of step 9: a 0.5"
    assert follower.snapshot({PS: 0, CHIEF: 1, WORKER: 1}).message == "ended before the first step"
    ended = follower.snapshot({PS: 138, CHIEF: 143, WORKER: 139})
    assert [row.state for row in ended.rows] == ["status 138", "stopped", "ended by SIGSEGV"]
    assert ended.is_ended


def test_each_ps_is_read_on_its_own_board(follower):
    first, second = FakeBoard.all["ps:0"], FakeBoard.all["ps:1"]
    assert states(follower) == ["starting"] * 4
    first.post("ps:0", "serving")
    second.is_up = False
    follower.look(1.0)
    assert states(follower) == ["serving", "starting", "starting", "starting"]
    second.is_up = True
    second.post("ps:1", "serving")
    second.post("worker:0", "old", beat=1)
    first.post("worker:0", "training", beat=2)
    follower.look(2.0)
    assert states(follower) == ["serving", "serving", "training", "starting"]
    calls = second.num_calls
    follower.look(2.2)
    assert second.num_calls == calls, "it is read twice a second"
    follower.look(3.0, ended=[TaskId("ps", 1)])
    assert second.num_calls == calls, "its process is gone"


def test_every_board_is_told_of_a_lost_worker(follower):
    boards = list(FakeBoard.all.values())
    for board, ps in zip(boards, ("ps:0", "ps:1"), strict=True):
        board.post(ps, "serving")
        board.post("worker:1", "training", step=7)
    follower.look(1.0)
    boards[1].is_up = False
    follower.note_lost(WORKER, 137, "ended by SIGKILL")
    follower.look(2.0)
    boards[1].is_up = True
    follower.look(3.0)
    for board in boards:
        told = board.records["worker:1"]
        assert told.pop("beat") > 1
        assert told == {
            "key": "worker:1", "state": "failed", "run": "r", "step": 7, "exit_status": 137,
            "reason": "ended by SIGKILL",
        }  # fmt: skip
    calls = [board.num_calls for board in boards]
    follower.look(4.0)
    assert [board.num_calls for board in boards] == [count + 1 for count in calls], "no second time"


def test_what_a_worker_said_of_its_end_stays_and_one_that_never_came_is_not_made_up(follower):
    board = FakeBoard.all["ps:0"]
    board.post("worker:1", "stopped")
    before = dict(board.records)
    follower.note_lost(WORKER, 143, "stopped by SIGTERM")
    follower.note_lost(CHIEF, 137, "ended by SIGKILL")
    follower.look(1.0)
    assert board.records == before


def test_the_boards_of_other_hosts_are_only_read():
    follower, board = make(is_local=False), FakeBoard.all["ps:0"]
    board.post("worker:1", "training", step=7)
    before = dict(board.records)
    follower.note_lost(WORKER, 138, "the connection to b was lost")
    follower.look(1.0)
    assert board.records == before
    assert follower.snapshot({PS: None, CHIEF: None, WORKER: 138}).rows[2].state == "lost"


@pytest.mark.parametrize(("step", "state"), [(50, "training"), (40, "ending")])
def test_the_rate_stays_what_it_was_once_the_training_has_ended(follower, step, state):
    board = FakeBoard.all["ps:0"]
    for now, at in ((1.0, 10), (2.0, 20), (3.0, 30)):
        board.post("worker:0", "training", beat=at, step=at)
        follower.look(now)
    board.post("worker:0", state, beat=99, step=step)
    for now in (4.0, 5.0, 9.0, 20.0):
        follower.look(now)
    shown = snapshot(follower)
    assert (shown.rate, shown.idle_secs) == (10.0, None)


def test_a_board_that_hangs_holds_nobody_up():
    begun = []
    watch = BoardWatch(PS, "127.0.0.1:1", start=begun.append)
    watch.look(0.0)
    watch.look(1.0)
    assert len(begun) == 1, "the first look is still under way"
    begun[0]()
    watch.look(2.0)
    assert len(begun) == 2 and watch.answered_at == 0.0


def test_a_round_that_stood_still_is_one_of_many(follower, monkeypatch):
    """One worker was stopped for 20 s: afterwards nobody says for long that the others wait for it most of the time."""
    numbers = [*range(20), *[20] * 40, *range(21, 31)]
    seen = [SimpleNamespace(round=n, owing=(f"of {n}",), arrived=(), members=()) for n in numbers]
    monkeypatch.setattr(
        "ps_train.updates.standing.LedgerReader",
        lambda *args: SimpleNamespace(read=lambda secs: [seen.pop(0)], close=lambda: None),
    )
    FakeBoard.all.clear()
    watch = BoardWatch(PS, "127.0.0.1:1", ["worker:0"], call)
    watch.look(0.0)
    FakeBoard.all["ps:0"].post("training", "", ledgers=[[]])
    for moment in range(len(numbers)):
        watch.look(1.0 + moment)
    kept = [int(one.owing[0][3:]) for one in watch.rounds]
    assert kept == [*range(20), 20, 20, 20, 20, *range(21, 31)]


class Drive:
    """A job at 10 steps/s of each worker, looked at twice a second; what is named in `stops` stands still from now on."""

    def __init__(self, update="async", cluster=TWO, **rates):
        self.follower = make(cluster, update=update, train_steps=1000, is_local=False)
        self.cluster, self.now, self.beat = cluster, 0.0, 0
        self.rates = {str(task): 10.0 for task in cluster.training_tasks} | rates
        self.done = dict.fromkeys(self.rates, 0.0)
        self.stalls, self.stopped, self.waiting = {}, set(), set()

    def run(self, secs):
        for _ in range(int(secs * 2)):
            self.now, self.beat = self.now + 0.5, self.beat + 1
            for name in self.rates:
                if not {name, *self.waiting} & self.stopped and name not in self.waiting:
                    self.done[name] += self.rates[name] / 2
            total = int(sum(self.done.values()))
            for ps in self.cluster.ps_tasks:
                board = FakeBoard.all[str(ps)]
                board.is_up = str(self.cluster.host(ps)) not in self.stopped
                if not board.is_up:
                    continue
                if not self.cluster.is_colocated:
                    board.post(str(ps), "serving", self.beat)
                for name in self.rates:
                    if name not in self.stopped:
                        record = {"step": total, "local_steps": int(self.done[name]), "loss": 0.5}
                        board.post(name, "training", self.beat, stall=self.stalls.get(name), **record)
            self.follower.look(self.now)
        return snapshot(self.follower)


def test_the_rate_and_the_time_left_are_those_of_the_last_seconds():
    drive = Drive()
    shown = drive.run(10)
    assert (shown.step, shown.rate, shown.eta_secs, shown.loss) == (200, 20.0, 40.0, 0.5)
    assert shown.rows == (
        Row("ps:0", "serving"),
        Row("worker:0", "training", 100, 10.0),
        Row("worker:1", "training", 100, 10.0),
    )
    drive.rates = dict.fromkeys(drive.rates, 20.0)
    shown = drive.run(10)
    assert (shown.step, shown.rate, shown.eta_secs) == (600, 40.0, 10.0)


def test_a_frozen_worker_is_silent_and_in_async_the_others_go_on():
    drive = Drive()
    drive.run(10)
    drive.stopped = {"worker:1"}
    assert drive.run(2).rows[2].state == "training", "a record may be late"
    shown = drive.run(10)
    assert shown.rows[1:] == (
        Row("worker:0", "training", 220, 10.0),
        Row("worker:1", "silent", 100, secs=12.0),
    )
    assert (shown.step, shown.rate, shown.idle_secs) == (320, 10.0, None)


def test_when_the_only_ps_is_frozen_nothing_is_known_of_the_workers():
    drive = Drive()
    drive.run(10)
    drive.stopped = drive.waiting = {"ps:0"}
    shown = drive.run(12)
    assert shown.rows == (
        Row("ps:0", "no answer", secs=12.0),
        Row("worker:0", "not seen", 100, secs=12.0),
        Row("worker:1", "not seen", 100, secs=12.0),
    )
    assert (shown.rate, shown.eta_secs, shown.idle_secs) == (0.0, None, 12.0)
    drive.stopped = drive.waiting = set()
    assert drive.run(5).rate == 20.0, "the pause does not count"


def test_with_another_ps_the_workers_say_what_they_wait_for():
    drive = Drive(cluster=Cluster.from_hosts(ps="127.0.0.1:1,127.0.0.1:4", worker="127.0.0.1:2,127.0.0.1:3"))
    drive.run(10)
    drive.stopped = drive.waiting = {"ps:0"}
    drive.stalls = {"worker:0": "ps:0 at 127.0.0.1:1 does not answer"}
    assert drive.run(12).rows == (
        Row("ps:0", "no answer", secs=12.0),
        Row("ps:1", "serving"),
        Row("worker:0", "waiting for ps:0", 100, secs=12.0, remark="ps:0 at 127.0.0.1:1 does not answer"),
        Row("worker:1", "waiting for ps:0", 100, secs=12.0),
    )


def test_a_frozen_worker_that_holds_variables_is_the_one_that_is_waited_for():
    drive = Drive(cluster=Cluster.from_hosts(worker="127.0.0.1:2,127.0.0.1:3", is_colocated=True))
    drive.run(10)
    drive.stopped = drive.waiting = {"worker:1"}
    assert drive.run(12).rows == (
        Row("worker:0", "waiting for worker:1", 100, secs=12.0),
        Row("worker:1", "silent", 100, secs=12.0),
    )


def test_in_an_all_reduce_a_silent_worker_is_waited_for():
    cluster = Cluster.from_hosts(worker="127.0.0.1:2,127.0.0.1:3,127.0.0.1:4,127.0.0.1:5", is_colocated=True)
    drive = Drive("allreduce", cluster)
    drive.run(10)
    drive.stopped = drive.waiting = {"worker:3"}
    rows = drive.run(12).rows
    assert [row.state for row in rows] == ["waiting for worker:3"] * 3 + ["silent"]


def test_when_nobody_steps_and_all_are_there_it_is_said():
    drive = Drive()
    drive.run(10)
    drive.rates = dict.fromkeys(drive.rates, 0.0)
    shown = drive.run(12)
    assert [row[1:] for row in shown.rows[1:]] == [("no step", 100, None, 12.0, "")] * 2


def test_the_slow_one_is_marked_and_not_at_once_unmarked():
    drive = Drive(**{"worker:1": 4.0})
    assert drive.run(5).rows[2].state == "training", "it may only have begun"
    shown = drive.run(5)
    assert shown.rows[1:] == (
        Row("worker:0", "training", 100, 10.0),
        Row("worker:1", "slow", 40, 4.0, remark="less than half of the others' rate"),
    )
    drive.rates["worker:1"] = 6.0
    assert drive.run(10).rows[2].state == "slow"
    drive.rates["worker:1"] = 8.0
    assert drive.run(10).rows[2] == Row("worker:1", "training", 180, 8.0)


def test_a_task_that_is_another_process_than_before_was_started_again():
    drive = Drive()
    drive.run(1)
    for beat, run in ((100, "s"), (101, "s"), (102, "t")):
        FakeBoard.all["ps:0"].records["worker:1"] = {
            "key": "worker:1",
            "state": "starting",
            "run": run,
            "beat": beat,
        }
        drive.now += 1.0
        drive.follower.look(drive.now)
    assert snapshot(drive.follower).rows[2] == Row("worker:1", "starting", remark="started again 2 times")


# Sync: whose gradient is owed.


def look(pace, steps, rounds, now):
    seen = {
        f"worker:{i}": Seen({"state": "training", "step": n, "local_steps": n}, now)
        for i, n in enumerate(steps)
    }
    pace.look(seen, {PS: now}, rounds, now)
    return [pace.row(task, seen[str(task)].record) for task in TWO.training_tasks]


def test_in_sync_the_one_whose_gradient_is_owed_is_late_and_the_other_waits_for_it():
    pace, owed = Pace(TWO, "sync"), Round(("worker:1",), ("worker:0",), 2)
    both = Round(("worker:0", "worker:1"), (), 2)
    for now in range(8):
        rows = look(pace, (10 * now, 10 * now), [both], float(now))
    assert [row.state for row in rows] == ["training", "training"]
    for now in range(8, 20):
        rows = look(pace, (70, 70), [owed], float(now))
    assert rows == [
        Row("worker:0", "waiting for worker:1", 70, secs=12.0),
        Row("worker:1", "late", 70, secs=12.0, remark="owes its gradient for step 71"),
    ]
    assert [row.state for row in look(pace, (71, 71), [both], 20.0)] == ["training", "training"]


def test_nobody_is_late_while_a_ps_does_not_answer():
    second, owed = TaskId("ps", 1), Round(("worker:1",), ("worker:0",), 2)
    pace = Pace(Cluster.from_hosts(ps="a:1,b:1", worker="c:1,d:1"), "sync")
    seen = {
        name: Seen({"state": "training", "step": 7, "local_steps": 7}, 12.0)
        for name in ("worker:0", "worker:1")
    }
    for now in range(13):
        pace.look(seen, {PS: float(now), second: 0.0}, [owed], float(now))
    assert [
        pace.row(task, seen.get(str(task), Seen({}, None)).record) for task in (second, CHIEF, WORKER)
    ] == [
        Row("ps:1", "no answer", secs=12.0),
        Row("worker:0", "waiting for ps:1", 7, secs=12.0),
        Row("worker:1", "waiting for ps:1", 7, secs=12.0),
    ]


@pytest.mark.parametrize(("num_awaited", "state"), [(11, "training"), (12, "slow")])
def test_in_sync_the_one_that_is_waited_for_in_most_rounds_is_slow(num_awaited, state):
    awaited, both = Round(("worker:1",), ("worker:0",), 2), Round(("worker:0", "worker:1"), (), 2)
    rounds = [awaited] * num_awaited + [both] * (20 - num_awaited)
    pace = Pace(TWO, "sync")
    for now in range(3):
        rows = look(pace, (now, now), rounds, float(now))
    assert [row.state for row in rows] == ["training", state]


# Lines, where no board is in reach.


def test_without_boards_the_lines_of_the_tasks_tell_how_far_they_are(monkeypatch):
    monkeypatch.setattr(FakeBoard, "are_in_reach", False)
    follower = make(is_local=False)
    assert not follower.hear(PS, "00:00:00 ps:0 listening at a:1", 1.0)
    assert not follower.hear(CHIEF, "00:00:00 worker:0 listening at a:2", 1.0)
    follower.look(1.0)
    assert states(follower) == ["serving", "starting", "starting"]
    for now, step in ((2.0, 1), (12.0, 21), (22.0, 41)):
        assert follower.hear(
            CHIEF, f"00:00:00 worker:0 step {step}/50, loss 0.25, 2.0 steps/s (1.5 of them here)", now
        )
        follower.look(now)
    shown = snapshot(follower)
    assert shown.rows == (
        Row("ps:0", "serving"),
        Row("worker:0", "training", rate=1.5),
        Row("worker:1", "starting"),
    )
    assert (shown.step, shown.rate, shown.eta_secs, shown.loss) == (41, 2.0, 4.5, 0.25)
    assert follower.hear(CHIEF, "00:00:00 worker:0 step 50/50, loss 0.125", 24.0)
    assert not follower.hear(CHIEF, "00:00:00 worker:0 global step 50: target of 50 reached (status 0)", 24.0)
    shown = follower.snapshot({PS: 0, CHIEF: 0, WORKER: 0})
    assert (shown.step, shown.loss, [row.state for row in shown.rows]) == (50, 0.125, ["done"] * 3)


def test_the_last_line_counts_more_than_a_board_that_was_read_before_it():
    follower, board = make(is_local=False), FakeBoard.all["ps:0"]
    board.post("worker:0", "training", step=47, loss=0.5, local_steps=23)
    board.post("worker:1", "ending", step=49, loss=0.5, local_steps=24)
    follower.look(1.0)
    follower.hear(CHIEF, "00:00:00 worker:0 step 50/50, loss 0.125", 1.1)
    assert snapshot(follower).step == 49, "a line is no newer than what a board says at that time"
    follower.hear(CHIEF, "00:00:00 worker:0 global step 50: target of 50 reached (status 0)", 1.2)
    shown = follower.snapshot({PS: 0, CHIEF: 0, WORKER: 0})
    assert (shown.step, shown.loss) == (50, 0.125)
    assert shown.rows[1:] == (Row("worker:0", "done"), Row("worker:1", "done", 24)), (
        "no count that is too small"
    )


@pytest.mark.parametrize(
    "line", ["step by step", "saved train/model.ckpt-41", "warning: step 4 is not saved", "step 41/50 of what?"]
)  # fmt: skip
def test_what_is_no_progress_line(line):
    assert not make(is_local=False).hear(CHIEF, f"00:00:00 worker:0 {line}", 1.0)


# The newest evaluation.


def test_the_chief_tells_each_new_evaluation_once(tmp_path):
    posted = []
    watch = EvaluationWatch(str(tmp_path), lambda **fields: posted.append(fields))
    watch.look()
    assert read_result(str(tmp_path)) == "" and not posted
    for text in ("step 4: accuracy 0.5000 (9 examples)", "step 8: accuracy 0.7500 (9 examples)"):
        write_result(str(tmp_path), text)
        watch.look()
        watch.look()
    assert posted == [
        {"evaluation": "step 4: accuracy 0.5000 (9 examples)"},
        {"evaluation": "step 8: accuracy 0.7500 (9 examples)"},
    ]
    (tmp_path / "file").write_text("")
    write_result(str(tmp_path / "file"), "what cannot be written is left out")


def test_the_last_step_is_that_of_the_worker_that_went_on_longest(tmp_path):
    """The chief may have ended at its first step, as where another one's loss is Inf at global step 17."""
    follower = make(log_dir=str(tmp_path))
    assert follower.last_step() is None
    board = FakeBoard.all["ps:0"]
    board.post("worker:0", "training", step=2)
    board.post("worker:1", "failed", step=14)
    follower.look(1.0)
    (tmp_path / "worker0.json").write_text('{"global_step": 1}')
    assert follower.last_step() == 14, "the record of one that gave no report"
    follower = make(log_dir=str(tmp_path))
    (tmp_path / "worker1.json").write_text('{"global_step": 17}')
    assert follower.last_step() == 17
    follower.note_lost(WORKER, 137, "ended by SIGKILL")
    assert follower.last_step() == 1, "the job went on without it, and may have gone back"
