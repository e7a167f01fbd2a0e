"""The page of a running job without a job: what it answers to whom, and when it looks at the boards."""

import http.client
import json
import re
import socket
import threading
import time

import pytest

from ps_train import __main__ as program
from ps_train import status_page
from ps_train.board import NO_ANSWER
from ps_train.cluster import Cluster, TaskId
from ps_train.sight import Look, Sight
from ps_train.status import Status, TaskStatus
from ps_train.status_page import Live, Page, serving

CLUSTER = Cluster.from_hosts("p0:1", "w0:1,w1:1")
PS = [(TaskId("ps", 0), "p0:1")]
SPITEFUL = "<script>alert(1)</script>"
UP = Status(
    (
        TaskStatus("ps:0", "serving"),
        TaskStatus("worker:0", "training", host=SPITEFUL, step=7, loss=float("nan"), remarks=("late",)),
        TaskStatus("worker:1", "training", step=7, loss=0.5),
    ),
    step=7, train_steps=100, rate=3.5, update="async",
)  # fmt: skip
STOPPED = Status((TaskStatus("ps:0", NO_ANSWER, remarks=("no answer in 2 s",)),))


class Watcher:
    """Sees what it is told to see; counts."""

    def __init__(self):
        self.seen, self.num_looks, self.num_closed = UP, 0, 0
        self.may_look = threading.Event()
        self.may_look.set()

    def look(self):
        assert self.may_look.wait(60)
        self.num_looks += 1
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def close(self):
        self.num_closed += 1


@pytest.fixture
def watcher(monkeypatch):
    monkeypatch.setattr(status_page, "summarize", lambda look, given: look)
    monkeypatch.setattr(status_page, "PERIOD_SECS", 0.01)
    monkeypatch.setattr(status_page, "FIRST_SECS", 0.5)
    made = Watcher()
    yield made
    made.may_look.set()


@pytest.fixture
def page(watcher):
    made = Page("0", Live(PS, CLUSTER, make_watcher=lambda ps: watcher))
    yield made
    made.close()


def ask(page, path="/status.json", method="GET", **headers):
    """(status, headers, body)."""
    host, port = re.fullmatch(r"http://(.*):(\d+)/", page.url).groups()
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def shown(page):
    return json.loads(ask(page)[2], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def wait_for(condition, secs=30):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_it_shows(page):
    """That of `status --json`, with the tables as text; a loss that is no number is none."""
    found = shown(page)
    assert (found["step"], found["train_steps"], found["rate"], found["loss"]) == (7, 100, 3.5, None), (
        "NaN is null"
    )
    (table,) = found["tables"]
    assert table["name"] == "tasks" and [row[0] for row in table["rows"]] == ["ps:0", "worker:0", "worker:1"]
    assert table["marked"] == [1] and SPITEFUL in table["rows"][1] and "nan" in table["rows"][1]
    assert found["lines"] == ["model: step 7/100, 3.5 steps/s, async"] and found["trouble"] == ""
    assert found["history"][0]["step"] == 7 and found["history"][0]["rate"] == 3.5 and found["age_secs"] < 30


def test_the_page_needs_nothing_from_elsewhere(page):
    status, headers, body = ask(page, "/")
    text = body.decode()
    assert (
        status == 200
        and headers["Content-Type"] == "text/html; charset=utf-8"
        and "default-src 'none'" in headers["Content-Security-Policy"]
    )
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
        "text is shown as text"
    )
    assert ask(page, "/?x=1")[2] == body and ask(page, "/other")[0] == 404


def test_nothing_but_get_and_head(page):
    status, headers, body = ask(page, method="HEAD")
    assert status == 200 and body == b"" and int(headers["Content-Length"]) > 100
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"):
        status, headers, _ = ask(page, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method


def test_a_name_of_somebody_else_s_that_leads_here(page):
    """DNS rebinding: a web page's own name, which is loopback all of a sudden."""
    for host in ("127.0.0.1", "127.0.0.1:99", "localhost:8080", "LOCALHOST", "[::1]:80", None):
        assert ask(page, Host=host)[0] == 200, host
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "10.0.0.1", "[::1"):
        assert ask(page, Host=host)[0] == 403, host


def test_who_listens_everywhere_has_many_names(watcher):
    page = Page("0.0.0.0:0", Live(PS, CLUSTER, make_watcher=lambda ps: watcher))
    try:
        assert ask(page, Host="host0.example:80")[0] == 200
    finally:
        page.close()


def test_it_looks_only_while_somebody_asks(page, watcher, monkeypatch):
    time.sleep(0.1)
    assert watcher.num_looks == 0
    monkeypatch.setattr(status_page, "IDLE_SECS", 0.2)
    shown(page)
    wait_for(lambda: watcher.num_closed == 1)
    count = watcher.num_looks
    time.sleep(0.1)
    assert watcher.num_looks == count >= 1
    watcher.seen = UP._replace(step=8)
    assert shown(page)["step"] == 8, "not what was seen before the pause"


def test_a_ps_that_stands_still_does_not_hold_up_the_answer(page, watcher):
    watcher.may_look.clear()
    start = time.monotonic()
    found = shown(page)
    assert time.monotonic() - start < 10 and found["age_secs"] is None
    assert found["trouble"] == "No ps has answered yet."
    watcher.may_look.set()
    wait_for(lambda: shown(page)["age_secs"] is not None)
    watcher.may_look.clear()
    time.sleep(0.3)
    first = shown(page)
    time.sleep(0.3)
    second = shown(page)
    assert first["step"] == second["step"] == 7
    assert second["age_secs"] >= first["age_secs"] + 0.2, "it says how old it is"


def test_the_last_answer_stays_when_no_ps_answers(page, watcher):
    assert shown(page)["trouble"] == ""
    watcher.seen = STOPPED
    wait_for(lambda: shown(page)["trouble"])
    found = shown(page)
    assert found["trouble"].startswith("No ps answers, and not all of them are gone") and found["step"] == 7
    watcher.seen = UP._replace(step=9)
    wait_for(lambda: shown(page)["step"] == 9)
    found = shown(page)
    assert (found["trouble"], found["is_old"], found["rate"]) == ("", False, 3.5)


def test_nothing_old_is_shown_as_if_it_were_so_now(page, watcher):
    """Steps and losses are the last ones; at work is nobody that is known of."""
    rates = UP.tasks[2]._replace(local_rate=3.5, remarks=("owes its gradient for step 8",))
    ended = UP.tasks[1]._replace(task="worker:2", state="failed", loss=None, remarks=("no loss",))
    watcher.seen = UP._replace(tasks=(UP.tasks[0], rates, ended), shares=(("ps:0", 8, 1),))
    assert shown(page)["is_old"] is False
    watcher.seen = STOPPED
    wait_for(lambda: shown(page)["trouble"])
    found = shown(page)
    assert (found["is_old"], found["is_answered"], found["rate"]) == (True, False, None)
    assert found["lines"] == ["model: step 7/100, async", "placement: ps:0 8 B in 1 variable"]
    told = [
        (task["task"], task["state"], task["step"], task["loss"], task["local_rate"], task["remarks"])
        for task in found["tasks"]
    ]
    assert told == [
        ("ps:0", NO_ANSWER, None, None, None, ["no answer in 2 s"]),
        ("worker:1", "not seen", 7, 0.5, None, []),
        ("worker:2", "failed", 7, None, None, ["no loss"]),
    ]
    assert [row[1] for row in found["tables"][0]["rows"]] == [NO_ANSWER, "not seen", "failed"]
    watcher.seen = UP
    wait_for(lambda: not shown(page)["is_old"])
    assert shown(page)["tasks"][0]["state"] == "serving"


@pytest.mark.parametrize("is_stuck", [True, False])
def test_what_is_old_without_an_answer_that_says_so(page, watcher, monkeypatch, is_stuck):
    """A look that takes long, or cannot be understood."""
    assert shown(page)["is_old"] is False
    monkeypatch.setattr(status_page, "OLD_SECS", 0.2 if is_stuck else 60.0)
    watcher.may_look.clear()
    watcher.seen = ValueError("nonsense")
    if not is_stuck:
        watcher.may_look.set()
    wait_for(lambda: shown(page)["is_old"])
    found = shown(page)
    assert [task["state"] for task in found["tasks"]] == ["not seen"] * 3 and not found["is_answered"]


def test_no_ps_has_ever_answered(page, watcher):
    watcher.seen = STOPPED
    found = shown(page)
    assert found["tasks"][0]["state"] == NO_ANSWER and found["trouble"].startswith("No ps answers")
    watcher.seen = UP
    wait_for(lambda: shown(page)["step"] == 7)


def test_what_cannot_be_understood(page, watcher):
    watcher.seen = ValueError("nonsense")
    assert "nonsense" in shown(page)["trouble"]


@pytest.mark.parametrize(
    "record", [{"texts": 3}, {"texts": {"placement": 7}}, {"host": {"a": 1}, "loss": "x"}]
)
def test_nonsense_on_a_board_ends_nothing(record):
    """Whoever reaches a board may write there."""
    board = {"worker:0": {"key": "worker:0", "beat": 1, "state": "training", **record}}

    class Nonsense:
        def __init__(self, ps):
            pass

        def look(self):
            return Look([Sight(TaskId("ps", 0), "p0:1", board, board)], {})

        def close(self):
            pass

    page = Page("0", Live(PS, CLUSTER, Nonsense))
    try:
        assert "trouble" in shown(page)
    finally:
        page.close()


def test_a_port_that_is_taken_ends_no_job():
    told, complained = [], []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(str(port), CLUSTER, told.append, complained.append):
            pass
    assert told == [] and complained == [
        f"there is no status page: 127.0.0.1:{port} cannot be listened at: Address already in use. Choose another --status_port, or 0 "
        "for a free one"
    ]
    with serving("0", CLUSTER, told.append, complained.append):
        (line,) = told
        assert re.fullmatch(r"status page: http://127\.0\.0\.1:\d+/", line)
    with serving(None, CLUSTER, told.append, complained.append):
        pass
    assert len(told) == len(complained) == 1


def test_a_port_that_is_taken_is_refused_by_the_command(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert program.main(["status", "--ps_hosts=localhost:1", f"--status_port={port}"]) == 1
    assert capsys.readouterr().err == (
        f"ps_train: --status_port={port}: 127.0.0.1:{port} cannot be listened at: Address already in use. Choose another "
        "--status_port, or 0 for a free one.\n"
    )


def test_slow_clients_take_few_threads_and_keep_nobody_away(watcher, monkeypatch):
    monkeypatch.setattr(status_page, "MAX_CLIENTS", 4)
    page = Page("0", Live(PS, CLUSTER, make_watcher=lambda ps: watcher))
    address = re.fullmatch(r"http://(.*):(\d+)/", page.url).groups()
    num_threads = threading.active_count()
    slow = []
    try:
        for _ in range(20):
            slow.append(socket.create_connection(address, timeout=30))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")  # and never a second line
        assert ask(page)[0] == 200  # the 21st: it came after all of them
        assert threading.active_count() <= num_threads + 4 + 1  # and who looks at the boards
        assert [client.recv(1) for client in slow[:17]] == [b""] * 17
        slow[-1].sendall(b"\r\n\r\n")
        assert slow[-1].recv(12) == b"HTTP/1.1 200"
    finally:
        for client in slow:
            client.close()
        page.close()
