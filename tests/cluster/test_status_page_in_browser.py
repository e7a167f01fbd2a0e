"""The page of a running job in a real browser: what it shows of a real job, also while the ps stands still."""

import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request

import pytest
from test_local_cluster import Launcher

from ps_train.status_page import Page
from ps_train.wording import as_bytes

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds the tasks in /proc"),
]
BROWSER_SECS = 120
SIZE = (1120, 1500)
# The built-in model: its variables, in elements; Adam keeps two more of each.
VARIABLES = {
    "hidden_1/weights": 64 * 64, "hidden_1/biases": 64, "hidden_2/weights": 64 * 64, "hidden_2/biases": 64,
    "logits/weights": 64 * 10, "logits/biases": 10,
}  # fmt: skip
UNSLOTTED_BYTES = {"global_step": 8, "beta1_power": 4, "beta2_power": 4}


class Dom(html.parser.HTMLParser):
    """Text by the id of its element, and rows of tables: the table's id -> name of the row -> column -> text."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.tables, self.late = {}, {}, []
        self._ids, self._table, self._row, self._column = [], None, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in ("meta", "link", "path"):
            self._ids.append(attrs.get("id"))
        if tag == "section":
            self._table = attrs.get("id")
        elif tag == "tr" and "data-name" in attrs:
            self._row = self.tables.setdefault(self._table, {}).setdefault(attrs["data-name"], {})
            self.late += [attrs["data-name"]] if attrs.get("class") == "late" else []
        elif tag == "td":
            self._column = attrs["data-column"]
            self._row[self._column] = ""

    def handle_endtag(self, tag):
        if tag not in ("meta", "link", "path"):
            self._ids.pop()
        self._column = None if tag == "td" else self._column

    def handle_data(self, data):
        if self._column is not None:
            self._row[self._column] += data
        for name in filter(None, self._ids):
            self.texts[name] = self.texts.get(name, "") + data


def browse(folder, url, *args):
    """What a headless chromium prints of a page that it has had open for some seconds."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={SIZE[0]},{SIZE[1]}", "--virtual-time-budget=3000",
        *args, url,
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_SECS)
    assert run.returncode == 0, run.stderr
    return run.stdout


def status_of(url):
    with urllib.request.urlopen(f"{url}status.json", timeout=60) as answer:
        return json.load(answer)


@pytest.fixture
def launcher(tmp_path):
    flags = ["--num_ps=1", "--num_workers=2", "--train_steps=1000000", "--train_dir=t", "--status_port=0"]
    with Launcher(tmp_path, *flags) as started:
        yield started


def test_the_page_of_a_local_cluster(launcher, tmp_path):
    launcher.wait_for_training()
    url = re.search(r"^ps_train: status page: (http://127\.0\.0\.1:\d+/)$", launcher.err, re.MULTILINE)[1]
    launcher.wait_for(lambda: status_of(url)["transport"].keys() == {"worker:0", "worker:1"}, "tables")
    launcher.wait_for(lambda: len(status_of(url)["history"]) > 1, "two looks, of which curves are drawn")
    before = status_of(url)
    text = browse(tmp_path, url, "--dump-dom")
    dom = Dom(text)
    after = status_of(url)

    # The figures.
    step, target = re.fullmatch(r"(\d+) / (\d+)", dom.texts["step"]).groups()
    assert before["step"] <= int(step) <= after["step"] and int(target) == 1_000_000
    assert float(dom.texts["rate"]) > 0 and float(dom.texts["loss"]) >= 0 and dom.texts["kind"] == "async"
    assert re.fullmatch(r"as of \d+ s ago", dom.texts["age"]) and "trouble" not in dom.texts
    tasks = dom.tables["tasks"]
    assert list(tasks) == ["ps:0", "worker:0", "worker:1"]
    assert [tasks[name]["state"] for name in tasks] == ["serving", "training", "training"]
    assert {int(tasks[name]["pid"]) for name in tasks} <= set(launcher.pids())
    for name in ("worker:0", "worker:1"):
        assert 0 < int(tasks[name]["local"]) <= int(tasks[name]["step"]) <= int(step)

    # The tables, against sizes that are not ps_train's.
    sizes = {name: 3 * 4 * count for name, count in VARIABLES.items()} | UNSLOTTED_BYTES
    assert f"ps:0 {as_bytes(sum(sizes.values()))} in {3 * len(VARIABLES) + 3} variables" in dom.texts["lines"]
    rows = re.findall(r'<tr data-name="ps:0"[^>]*>(.*?)</tr>', text[text.index('id="placement"') :])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert {row[1]: row[-1] for row in cells if len(row) == 6} == {
        name: as_bytes(size) for name, size in sizes.items()
    }
    (line,) = dom.tables["transport"].values()
    wire_bytes = 4 * sum(VARIABLES.values())
    pulled = as_bytes(wire_bytes + 8)  # and the global step
    assert (line["a step's line"], line["bytes pulled"]) == ("ps:0 - worker:0-1", pulled)
    assert (
        wire_bytes <= after["transport"]["worker:0"][0]["pushed_bytes"] <= wire_bytes + 64
    )  # scalars of Adam
    assert line["type"] == "float32" and "fused" in line["how"]
    assert len(after["history"]) > 1 and text.count("<path d=") == 2

    # The ps stands still: the page says so, and shows what it had.
    pid = int(tasks["ps:0"]["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        launcher.wait_for(lambda: status_of(url)["trouble"], "word of it")
        last = status_of(url)["step"]
        stopped = Dom(browse(tmp_path, url, "--dump-dom"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert stopped.texts["trouble"].startswith("No ps answers, and not all of them are gone")
    assert (
        stopped.texts["step"] == f"{last} / 1000000" and stopped.texts["rate"] == stopped.texts["left"] == "–"
    )
    assert re.fullmatch(r"Step, loss and what workers told are of \d+ s ago, .*", stopped.texts["old"])
    states = {name: row["state"] for name, row in stopped.tables["tasks"].items()}
    assert states == {"ps:0": "no answer", "worker:0": "not seen", "worker:1": "not seen"}
    launcher.wait_for(lambda: status_of(url)["step"] > last, "step after that")

    # What it looks like.
    browse(tmp_path, url, f"--screenshot={tmp_path / 'page.png'}")
    from matplotlib import image

    pixels = image.imread(tmp_path / "page.png")
    assert pixels.shape[:2] == SIZE[::-1]
    colours = {tuple(pixel) for pixel in (255 * pixels[::3, ::3, :3]).astype(int).reshape(-1, 3)}
    assert len(colours) > 50, "text has many shades, a blank page one"

    os.kill(launcher.process.pid, signal.SIGINT)
    assert launcher.wait() == 130
    with pytest.raises(OSError):
        status_of(url)


class Told:
    """In the place of what looks at a job; answers `most` times."""

    num_asked, most = 0, 1000

    def __init__(self, **told):
        self.told = {
            "age_secs": 0.4,
            "is_old": False,
            "trouble": "",
            "step": 7,
            "rate": 3.5,
            "loss": 0.5,
            **told,
        }

    def ask(self):
        self.num_asked += 1
        if self.num_asked > self.most:
            raise OSError("the job has ended")
        return self.told

    def close(self):
        pass


@pytest.mark.parametrize(
    ("losses", "rates", "labels"),
    [
        ((-59.6, -0.1), (-119.2, -0.1), ["last 1 min 0 s", "last 1 min 59 s"]),
        ((-7_300.0, -0.4), (-119.2, -75.0), ["last 2 h 1 min", "44 s, until 1 min 15 s ago"]),
    ],
)
def test_how_long_the_curves_are(tmp_path, losses, rates, labels):
    history = [{"secs": at, "loss": 0.5, "rate": None} for at in losses]
    history += [{"secs": at, "loss": None, "rate": 3.5} for at in rates]
    page = Page("0", Told(history=history))
    try:
        text = browse(tmp_path, page.url, "--dump-dom")
    finally:
        page.close()
    assert re.findall(r"<span>0?[.35]+ to [.035]+</span><span>([^<]*)</span>", text) == labels


def test_a_page_that_is_open_when_the_job_ends(tmp_path):
    """What it shows stays, and is not told to be so now."""
    table = {
        "name": "tasks",
        "columns": ["task", "state"],
        "right": [],
        "rows": [["worker:0", "training"]],
        "marked": [],
    }
    told = Told(tables=[table], train_steps=21)
    told.most = 1
    page = Page("0", told)
    try:
        text = browse(tmp_path, page.url, "--dump-dom")
    finally:
        page.close()
    dom = Dom(text)
    assert told.num_asked > 1 and "does not answer any more" in dom.texts["trouble"]
    assert (dom.texts["step"], dom.texts["rate"], dom.texts["left"]) == ("7 / 21", "–", "–")
    assert re.match(r"Step, loss and what workers told are of \d+ s ago", dom.texts["old"])
    assert re.search(r'<span class="state ?">training', text) and re.search(r'<body[^>]* class="old"', text)
