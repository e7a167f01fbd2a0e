"""A read-only web page of a running job: `--status_port`.

    with serving("8080", cluster, log.info, log.warning):
        ...                                 # http://127.0.0.1:8080/, and /status.json, which it asks every other second

1. Requests are answered at once, from the newest look, whose age is told; only the very first waits for it, FIRST_SECS at most.
2. The boards are looked at, in one thread, while somebody asks, and for IDLE_SECS after that: a page that nobody has open costs
   the job nothing. One that is open costs what `ps_train status` does, however many have it open.
3. If no ps answers, as all are stopped, the last answer is shown with its age and the reason, but for what may be no longer so: rates,
   rounds, and that tasks are at work.
4. GET and HEAD only. On loopback, the Host header has to name loopback, or any web page could read it through a name of its own
   that leads here. What the boards say is shown as text, whatever it is.
5. MAX_CLIENTS connections at a time, as each is a thread and an open file of the job's, which dies when it has no more of these:
   one more, and the one that has been open longest is cut. A browser just opens another.
"""

from __future__ import annotations

import contextlib
import http
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from ps_train.addresses import is_loopback, listen_address
from ps_train.cluster import Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.sight import Watcher
from ps_train.status import Status, aged, as_dict, summarize
from ps_train.status_text import endings, facts, tables, why_unanswered
from ps_train.whole_files import as_json

PERIOD_SECS = 1.0  # between two looks, which take a second
IDLE_SECS = 10.0
OLD_SECS = 5.0  # looks end every two or three
FIRST_SECS = 6.0
MAX_POINTS = 600
REQUEST_SECS = 10.0
MAX_CLIENTS = 32
ROOM_SECS = 1.0  # in which a connection that was cut has ended
PAGE = os.path.join(os.path.dirname(__file__), "status.html")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Found(NamedTuple):
    """What a look has found, and what is shown of it; `aged`: of the last that a ps has answered, when that is old."""

    status: Status
    shown: dict[str, Any]
    aged: dict[str, Any] | None


class Live:
    """The newest status of a job, looked at while somebody asks for it.

    Args:
      ps: task and `host:port` of each.
      given: the cluster, if it is known.
      make_watcher: of `ps`; for tests.
      clock: seconds.
    """

    def __init__(
        self,
        ps: Sequence[tuple[TaskId, str]],
        given: Cluster | None = None,
        make_watcher: Callable[[Sequence[tuple[TaskId, str]]], Any] = Watcher,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._ps, self._given, self._make_watcher, self._clock = ps, given, make_watcher, clock
        self._lock, self._has_looked, self._closing = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_at = float("-inf")
        self._shown: dict[str, Any] = {}  # of the last look that a ps has answered, or that none ever has
        self._shown_at, self._trouble = 0.0, ""
        self._last: Status | None = None  # that a ps has answered
        self._aged: dict[str, Any] | None = None  # what of it is shown when it is old
        self._history: deque[tuple[float, int, float | None, float | None]] = deque(maxlen=MAX_POINTS)

    def ask(self) -> dict[str, Any]:
        """What there is to be shown, for JSON: the status, its tables and lines, since when it is, and the last minutes."""
        with self._lock:
            self._asked_at = self._clock()
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._look_on, daemon=True, name="ps_train-page")
                self._thread.start()
        self._has_looked.wait(FIRST_SECS)
        with self._lock:
            now = self._clock()
            if not self._shown:
                return {
                    "is_answered": False,
                    "age_secs": None,
                    "is_old": False,
                    "trouble": self._trouble or "No ps has answered yet.",
                }
            history = [
                {"secs": round(at - now, 1), "step": step, "loss": loss, "rate": rate}
                for at, step, loss, rate in self._history
            ]
            age_secs = round(now - self._shown_at, 1)
            is_old = self._last is not None and (bool(self._trouble) or age_secs > OLD_SECS)
            shown = self._aged if is_old and self._aged is not None else self._shown
            told = {"age_secs": age_secs, "is_old": is_old, "trouble": self._trouble, "history": history}
            return {**shown, **told}

    def close(self) -> None:
        """No looks from now on."""
        self._closing.set()

    def _look_on(self) -> None:
        watcher = self._make_watcher(self._ps)
        try:
            while True:
                self._note(self._look(watcher))
                with self._lock:
                    if self._closing.is_set() or self._clock() - self._asked_at > IDLE_SECS:
                        self._thread = None
                        self._has_looked.clear()  # what is known will be old when somebody comes again
                        return
                self._closing.wait(PERIOD_SECS)
        finally:
            watcher.close()

    def _look(self, watcher: Any) -> _Found | str:
        """A status and what is shown of it, or why there is none."""
        try:
            seen = summarize(watcher.look(), self._given)
            last = seen if seen.is_answered else self._last
            return _Found(seen, _as_shown(seen), None if last is None else _as_shown(aged(last, seen)))
        except Exception as error:  # thread boundary: the boards may say anything
            return f"What the boards say is not understood: {error!r}"

    def _note(self, found: _Found | str) -> None:
        with self._lock:
            if isinstance(found, str):
                self._trouble = found
            else:
                self._note_status(found)
        self._has_looked.set()

    def _note_status(self, found: _Found) -> None:
        seen, shown, self._aged = found
        self._trouble = "" if seen.is_answered else why_unanswered(seen)
        if seen.is_answered:
            self._last = seen
        if seen.is_answered or self._last is None:
            self._shown, self._shown_at = shown, self._clock()
        if seen.is_answered and seen.step is not None:
            self._history.append((self._shown_at, seen.step, shown["loss"], shown["rate"]))


def _as_shown(status: Status) -> dict[str, Any]:
    return {
        **as_dict(status),
        "tables": [table._asdict() for table in tables(status)],
        "lines": facts(status),
        "endings": endings(status),
        "loss": next((task.loss for task in status.tasks if task.loss is not None), None),
    }


class Page:
    """The server; it serves from threads of its own until `close`.

    Args:
      setting: `port` or `host:port`, as `--status_port`.
      live: Live, or what else has an `ask`.

    Raises:
      OSError: it cannot listen there.

    Attributes:
      url: of the page.
    """

    def __init__(self, setting: str, live: Any):
        host, port = listen_address(setting)
        self._live = live
        with open(PAGE, "rb") as file:
            html = file.read()
        handler = type("Handler", (_Handler,), {"html": html, "live": live, "host": host})
        self._server = _make_server(host, port, handler)
        port = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            daemon=True,
            name="ps_train-http",
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._live.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _make_server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

        def __init__(self) -> None:
            self._open: dict[Any, bool] = {}  # connections, oldest first
            self._room = threading.Semaphore(MAX_CLIENTS)
            super().__init__((str(address[0]), port), handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            if not (self._room.acquire(blocking=False) or self._make_room()):
                self.shutdown_request(request)
                return
            self._open[request] = True
            super().process_request(request, client_address)

        def _make_room(self) -> bool:
            with contextlib.suppress(OSError, StopIteration, RuntimeError):  # one has just ended
                next(iter(self._open)).shutdown(socket.SHUT_RDWR)
            return self._room.acquire(timeout=ROOM_SECS)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            if self._open.pop(request, False):
                self._room.release()

        def server_bind(self) -> None:  # HTTPServer's asks for this host's name, which may take long
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = host, self.server_address[1]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A browser that has gone is nothing to tell."""

    return Server()


class _Handler(BaseHTTPRequestHandler):
    html: bytes
    live: Any
    host: str
    timeout = REQUEST_SECS
    protocol_version = "HTTP/1.1"
    server_version = "ps_train"
    sys_version = ""

    def do_GET(self) -> None:  # noqa: N802, the base class's name
        """The page, or what it shows."""
        path = self.path.partition("?")[0]
        if not self._is_for_here():
            self._answer(403, b"The Host header does not name this host.\n", "text/plain")
        elif path in ("/", "/index.html"):
            self._answer(200, self.html, "text/html; charset=utf-8")
        elif path == "/status.json":
            self._answer(200, as_json(self.live.ask()).encode(), "application/json")
        else:
            self._answer(404, b"There is / and /status.json.\n", "text/plain")

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A method that is not there is refused; the base class says that it is not implemented."""
        if code == http.HTTPStatus.NOT_IMPLEMENTED:
            self.close_connection = True  # its body is not read
            self._answer(405, b"GET and HEAD only.\n", "text/plain", Allow="GET, HEAD", Connection="close")
        else:
            super().send_error(code, message, explain)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log is the job's."""

    def _is_for_here(self) -> bool:
        asked = self.headers.get("Host")
        if asked is None or not is_loopback(_with_port(self.host)):
            return True
        try:
            return is_loopback(_with_port(asked)) or asked.rpartition(":")[0].lower() == self.host.lower()
        except UsageError:
            return False

    def _answer(self, code: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(code)
        fields = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS, **headers}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _with_port(host: str) -> str:
    """`host:port` of what may have no port: of a Host header, or an address without brackets."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return host if host.rpartition(":")[2].isdigit() and not host.endswith("]") else f"{host}:80"


@contextlib.contextmanager
def serving(
    setting: str | None, cluster: Cluster | None, tell: Callable[[str], None], complain: Callable[[str], None]
) -> Iterator[None]:
    """Serves a job's page in the `with` block, if there is to be one; a job does not fail for it.

    Args:
      setting: the flag `--status_port`, or None.
      cluster: of the job; None: of a script, whose tasks have no boards.
      tell: is given a line with its address.
      complain: is given a line on why there is none.
    """
    page = None
    if setting is not None and cluster is not None:
        try:
            ps = [(task, cluster.address(task)) for task in cluster.ps_tasks]
            page = Page(setting, Live(ps, cluster))
        except OSError as error:
            complain(f"there is no status page: {why_not(setting, error)}")
    if page is not None:
        tell(f"status page: {page.url}")
    try:
        yield
    finally:
        if page is not None:
            page.close()


def why_not(setting: str, error: OSError) -> str:
    """What keeps a page from being served."""
    host, port = listen_address(setting)
    return f"{host}:{port} cannot be listened at: {error.strerror or error}. Choose another --status_port, or 0 for a free one"
