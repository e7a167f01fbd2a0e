"""Tables and words of an experiment, on figures made by hand, and the page that shows them."""

import base64
import csv
import html.parser
import io

import pytest

from ps_train.experiment import comparisons, job, page, plots, results, table, words
from ps_train.experiment.grid import make_points
from ps_train.experiment.page import Content

MACHINE = dict.fromkeys(page._MACHINE) | {
    "cores": 8,
    "memory_bytes": 4_000_000_000,
    "processor": "a <fast> one",
}


def record(point, seed, rate=100.0, accuracy=0.9, outcome="done", **more):
    """Of a run of 20 steps of 64 examples."""
    figures = {
        "global_step": 20, "examples": 1280, "train_secs": 1280 / rate, "wall_secs": 9.5, "steps_per_sec": rate / 64,
        "examples_per_sec": rate, "loss": 0.125, "staleness": None, "dropped": 0, "cpu_secs": 3.0,
    }  # fmt: skip
    return {
        "name": f"{point.name}-{seed}", "outcome": outcome, "exit_status": 0 if outcome == "done" else 1,
        "reason": "" if outcome == "done" else "worker:0 failed: a < b", "point": dict(point.settings), "seed": seed,
        "command": f"python -m ps_train train --seed={seed}", "started": 1.7e9, "machine": MACHINE, "others_cores": 0.0,
        "before": {"load": 0.5, "free_bytes": 2_000_000_000}, "after": {"load": 1.5, "free_bytes": None},
        "figures": {**figures, **more.pop("figures", {})}, "metrics": {"accuracy": accuracy},
        "evaluations": [
            {"global_step": step, "examples": 64 * step, "train_secs": 64 * step / rate, "held_out_examples": 300,
             "metrics": {"accuracy": value}} for step, value in ((5, accuracy / 2), (20, accuracy))
        ],
        "curve": [[0.5, 5, 320, 2.0], [2.0, 20, 1280, 1.0]],
        "staleness_counts": {}, "num_ps": 1, "num_workers": 2, "is_launched": False, **more,
    }  # fmt: skip


@pytest.fixture
def two():
    return make_points(["update=async,sync"])


def of_two(points, first, second, **values):
    """Records of two points with the given rates; accuracy is the same in all unless it is given."""
    rates = {points[0]: first, points[1]: second}
    return [
        record(point, seed, rate, **values) for point in points for seed, rate in enumerate(rates[point], 1)
    ]


# The tables.


def test_the_table_has_means_and_ranges(two):
    records = of_two(two, (100.0, 110.0, 120.0), (50.0,))
    records.append(record(two[1], 2, outcome="failed"))
    head, first, second = table.rows(records, two)
    assert head == [
        "update", "seeds", "examples/s", "steps/s", "training s", "held-out accuracy", "last loss", "CPU s",
    ]  # fmt: skip
    assert first[:4] == ["async", "3", "110 (100-120)", "1.719 (1.562-1.875)"]
    assert second[:3] == ["sync", "1, 1 failed", "50"]
    assert (first[5], second[5]) == ("0.9 (0.9)", "0.9")


def test_rows_of_the_files(two):
    records = of_two(two, (100.0,), (50.0,), figures={"loss": None})
    rows = list(csv.DictReader(io.StringIO(results.as_csv(results.run_rows(records, ["update"])))))
    assert [(row["run"], row["update"], row["seed"], row["examples_per_sec"]) for row in rows] == [
        ("update=async-1", "async", "1", "100.0"), ("update=sync-1", "sync", "1", "50.0"),
    ]  # fmt: skip
    assert (rows[0]["loss"], rows[0]["eval_accuracy"], rows[0]["load_before"]) == ("", "0.9", "0.5")
    assert rows[0]["command"] == "python -m ps_train train --seed=1"
    assert results.curve_rows(records[:1], ["update"]) == [
        ["run", "update", "seed", "global_step", "examples", "train_secs", "loss"],
        ["update=async-1", "async", 1, 5, 320, 0.5, 2.0],
        ["update=async-1", "async", 1, 20, 1280, 2.0, 1.0],
    ]
    head, early, row = results.evaluation_rows([records[0], {**records[1], "evaluations": []}], ["update"])
    assert early[3:] == [5, 320, 3.2, 300, 0.45]
    assert dict(zip(head, row, strict=True)) == {
        "run": "update=async-1", "update": "async", "seed": 1, "global_step": 20, "examples": 1280, "train_secs": 12.8,
        "held_out_examples": 300, "eval_accuracy": 0.9,
    }  # fmt: skip


def test_speed_up_is_over_the_fewest_workers_of_the_same_settings():
    points = make_points(["update=async,sync num_workers=2,4"])
    rates = dict(zip(points, (100.0, 150.0, 80.0, 160.0), strict=True))
    records = [record(point, 1, rate) for point, rate in rates.items()]
    lines = table.speed_ups(records, points)
    assert [(line.label, line.factors()) for line in lines] == [
        ("update=async", {2: 2.0, 4: 3.0}), ("update=sync", {2: 2.0, 4: 4.0}),
    ]  # fmt: skip
    assert table.speed_ups(records[:1], points) == [], "one number of workers is no line"
    assert (
        table.speed_ups(
            of_two(make_points(["update=async,sync"]), (1.0,), (2.0,)), make_points(["update=async,sync"])
        )
        == []
    )


# The words.


def test_a_difference_is_called_one_if_the_ranges_are_apart(two):
    records = of_two(two, (100.0, 110.0, 120.0), (50.0, 60.0, 55.0))
    found = words.conclusions(records, two, num_runs=6)
    assert found == [
        "examples/s: update=async (100-120) is above update=sync (50-60), 2.00 times: the ranges of 3 seeds do not overlap.",
        "held-out accuracy: no difference is shown between update=async (0.9) and update=sync (0.9): the ranges of 3 seeds overlap.",
        "1 of 2 comparisons is called a difference. With so few seeds the ranges of two equal points are apart by chance in 10% of "
        "cases: if all points were equal, about 0.2 would be called one.",
    ]


@pytest.mark.parametrize(
    "low, is_called", [((90.0, 99.9), True), ((90.0, 100.0), False), ((101.0, 115.0), False)]
)
def test_ranges_that_touch_overlap(two, low, is_called):
    records = of_two(two, (100.0, 120.0), low)
    first = next(one for one in comparisons.comparisons(records, two) if one.measure.name == table.RATE)
    assert first.is_difference == is_called


def test_a_metric_differs_by_so_much(two):
    records = of_two(two, (100.0,) * 2, (100.0,) * 2)
    for one, accuracy in zip(records, (0.75, 0.7, 0.5, 0.55), strict=True):
        one["metrics"] = {"accuracy": accuracy}
    assert words.conclusions(records, two, num_runs=4)[1] == (
        "held-out accuracy: update=async (0.7-0.75) is above update=sync (0.5-0.55), by 0.2: the ranges of 2 seeds do not overlap."
    )


def in_short(points, rates):
    """The first answer on examples/s; `rates`: of each point, those of its seeds."""
    records = [
        record(point, seed, rate)
        for point, seeds in zip(points, rates, strict=True)
        for seed, rate in enumerate(seeds, 1)
    ]
    return words.answers(records, points)[0].partition(";")[0]


def test_in_short_it_is_said_where_a_change_was_seen():
    points = make_points(["update=async,sync slow=0,1"])
    high, low, one = (150.0, 151.0), (100.0, 101.0), (150.0,)
    assert in_short(points, (low, high, low, high)).endswith("examples/s 50% more everywhere")
    assert in_short(points, (low, high, one, one)).endswith("examples/s 50% more with update=async")
    points = make_points(["slow=0,1", "slow=0,1 wire=int8"])
    text = in_short(points, (high, low, high, (50.0, 51.0)))
    assert text.endswith("examples/s 33% less with no wire, 66% less with wire=int8")


def test_a_small_change_is_not_called_none(two):
    assert in_short(two, ((100.0, 100.1), (100.3, 100.4))).endswith("examples/s 0.3% more")
    assert in_short(two, ((1000.0, 1001.0), (3.0, 3.1))).endswith("examples/s 99.7% less")


def test_of_one_seed_nothing_is_said_about_the_spread(two):
    found = words.conclusions(of_two(two, (100.0,), (50.0,)), two, num_runs=2)
    assert found == [
        "One seed of update=async; update=sync: nothing can be said about the spread.",
        "No two points have two seeds each: nothing can be said about the spread, so no difference is called one. Give --seeds=3 or "
        "more.",
    ]


def test_runs_that_failed_or_are_not_done_yet_are_told_and_do_not_count(two):
    records = of_two(two, (100.0, 110.0, 500.0), (50.0, 60.0, 70.0))
    records[2]["outcome"] = "failed"
    found = words.conclusions(records, two, num_runs=8)
    assert found[0] == (
        "1 of 8 runs failed (update=async): the figures are those of the others, and a point whose runs fail often is worse than its "
        "figures."
    )
    assert found[1] == "2 of 8 runs have no result yet: the same command goes on with them."
    assert found[2].startswith("examples/s: update=async (100-110) is above update=sync (50-70)")
    assert "the ranges of 2 and 3 seeds do not overlap" in found[2]
    assert "in 20% of cases" in found[-1]


def test_points_are_compared_along_each_axis():
    points = make_points(["update=async,sync num_workers=1,2,4"])
    records = [
        record(point, seed, 100.0 * number + seed)
        for number, point in enumerate(points, 1)
        for seed in (1, 2)
    ]
    pairs = [one for one in comparisons.comparisons(records, points) if one.measure.name == table.RATE]
    assert len(pairs) == 2 * 3 + 3, "those that differ in two axes are left out"
    assert str(pairs[-1]).startswith(
        "num_workers=4 (601-602) is above num_workers=2 (501-502) with update=sync, 1.20 times"
    )
    many = words._without_difference(pairs[0].measure, pairs)
    assert many == ["examples/s: no difference is shown in 9 more comparisons: the ranges overlap."]


def test_flags_that_vary_together_are_one_axis():
    grids = ["update=async train_steps=9 slow=0,1", "update=sync train_steps=3 slow=0,1"]
    points = make_points(grids)
    records = [
        record(point, seed, 100.0 * number) for number, point in enumerate(points, 1) for seed in (1, 2)
    ]
    pairs = [(one.high, one.low, one.shared) for one in comparisons.comparisons(records, points)]
    assert pairs[:4] == [
        ("slow=1", "slow=0", "update=async"),
        ("update=sync", "update=async", "slow=0"),
        ("update=sync", "update=async", "slow=1"),
        ("slow=1", "slow=0", "update=sync"),
    ], "the target is in no name: they differ without it, and all have used as many examples"
    for one in records:
        one["figures"]["examples"] *= 2 if one["point"]["update"] == "sync" else 1
    pairs = [(one.high, one.low, one.shared) for one in comparisons.comparisons(records, points)]
    assert pairs[1] == ("update=sync train_steps=3", "update=async train_steps=9", "slow=0")


def test_what_follows_from_examples_a_second_is_not_said_again():
    points = make_points(["update=async train_steps=9", "update=sync train_steps=3,6"])
    records = [
        record(point, seed, 100.0 * number) for number, point in enumerate(points, 1) for seed in (1, 2)
    ]

    def in_secs():
        named = [one for one in comparisons.comparisons(records, points) if one.measure.name == table.SECS]
        return [(one.high, one.low) for one in named]

    assert in_secs() == [], "all have used as many examples"
    for one in records[4:]:
        one["figures"]["examples"] *= 2
    more = "update=sync train_steps=6"
    assert in_secs() == [("update=async train_steps=9", more), ("update=sync train_steps=3", more)]


def test_in_short_each_change_of_a_setting_is_told_once():
    points = make_points(["update=async slow=0,1", "update=sync slow=0,1"])
    rates, accuracies = (100.0, 80.0, 50.0, 10.0), (0.8, 0.7, 0.8, 0.8)
    records = [
        record(point, seed, rate + seed / 10, accuracy + seed / 1000)
        for point, rate, accuracy in zip(points, rates, accuracies, strict=True)
        for seed in (1, 2)
    ]
    assert words.answers(records, points) == [
        "slow=1 instead of slow=0: examples/s 20% less with update=async, 80% less with update=sync; held-out accuracy 0.1 lower "
        "with update=async, no difference with update=sync.",
        "update=sync instead of update=async: examples/s 50% less with slow=0, 87% less with slow=1; held-out accuracy no difference "
        "with slow=0, 0.1 higher with slow=1.",
    ]
    assert words.answers(records[::-1], points[::-1])[0].startswith(
        "slow=0 instead of slow=1: examples/s 4.9 times as much with update=sync, 25% more with update=async; "
    )
    equal = [record(point, seed, 100.0 + seed) for point in points for seed in (1, 2)]
    assert words.answers(equal, points)[0] == (
        "slow=1 instead of slow=0: examples/s no difference everywhere; held-out accuracy no difference everywhere."
    )
    assert words.answers(records[::2], points) == [], "one seed each"


def test_in_short_many_values_are_told_against_the_first():
    points = make_points(["num_workers=1,2,3,4,5"])
    records = [
        record(point, seed, 10.0 * int(point.value("num_workers"))) for point in points for seed in (1, 2)
    ]
    told = words.answers(records, points)
    assert [one.split(":")[0] for one in told] == [
        f"num_workers={count} instead of num_workers=1" for count in (2, 3, 4, 5)
    ]
    few = words.answers(records[:6], points[:3])
    assert [one.split(":")[0] for one in few][-1] == "num_workers=3 instead of num_workers=2" and len(
        few
    ) == 3


def test_no_figure_is_compared_that_says_what_another_does(two):
    def compared(records, points):
        return [one.name for one in comparisons._compared_measures(records, points)]

    records = of_two(two, (100.0,), (50.0,))
    assert compared(records, two) == [table.RATE, "accuracy"]
    records[1]["figures"]["examples"] *= 2
    assert compared(records, two) == [table.RATE, table.STEPS, "accuracy"]
    points = make_points(["train_steps=1,2"])
    assert compared(of_two(points, (100.0,), (50.0,)), points) == [table.RATE, table.SECS, "accuracy"]


def test_points_of_several_grids_are_named_by_what_they_do_not_set():
    points = make_points(["update=sync", "update=sync replicas_to_aggregate=2"])
    records = [record(point, seed, 10.0 * seed) for point in points for seed in (1, 2)]
    (first, *_) = comparisons.comparisons(records, points)
    assert "no replicas_to_aggregate" in str(first) and str(first).endswith("with update=sync")


def test_chance_is_that_of_a_random_order():
    assert [comparisons.chance(n, n) for n in (1, 2)] == [1.0, pytest.approx(1 / 3)]
    assert comparisons.chance(2, 3) == pytest.approx(2 / 10)


def test_what_to_know_before_believing_it(two):
    records = of_two(two, (100.0, 110.0), (50.0, 60.0))
    during = (
        "Metrics before the end are of checkpoints: their saving is in the speeds, and their seconds lie between those of the "
        "loss's points."
    )
    assert words.limits(records, two) == [
        during,
        "Held-out figures are those at the end of each run. The last loss is that of one batch of the chief: it is in the table, and "
        "no difference is read from it.",
    ]
    launched = [{**one, "is_launched": True, "machine": {**MACHINE, "cores": 2}} for one in records]
    elsewhere = "The tasks ran on hosts over ssh: the machine named here, and how busy it was, are those of the one that started them."
    assert words.limits(launched, two)[0] == elsewhere, "and nothing of tasks that share its processors"
    assert len(words.limits(launched, two)) == 3
    for one in records:
        one["machine"] = {**MACHINE, "cores": 2}
    records[0] |= {
        "others_cores": 1.25,
        "machine": {**MACHINE, "cores": 4},
        "before": {"load": 1.0, "free_bytes": 10**8},
    }
    records[2]["figures"]["examples"] *= 2
    records[3]["reason"] = "it ended before step 30"
    records[1]["figures"] |= dict.fromkeys(("steps_per_sec", "examples_per_sec", "train_secs"))
    for one in records:
        one["metrics"] = {}
    assert words.limits(records, two) == [
        "update=sync-2: it ended before step 30.",
        "update=async-2: no speed is known, as its workers never trained all at once. More --train_steps give it time.",
        "The runs were made on different machines or versions: their speeds cannot be compared.",
        "Up to 3 tasks shared 2 processors, of which a worker that waits leaves the others more: speeds tell how well that goes, and "
        "not how a job on hosts of their own scales.",
        "Other processes kept 0.0 to 1.2 processors busy during the runs: that is in the speeds, and in their spread.",
        "There was no more than 100 MB of free memory before one of the runs.",
        "A global step takes 64 examples at update=async and 96 at update=sync: losses and metrics after as many steps are not after "
        "as many examples, nor after the same time.",
        "No run was evaluated on held-out data: nothing is said about what was learnt.",
    ]
    assert words.limits([], two) == []


# The page.


class Reader(html.parser.HTMLParser):
    """Balanced tags, text, and every address."""

    VOID = ("meta", "img", "br", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.text, self.addresses, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def content(points, records, **more):
    commands = [(point.text, f"python -m ps_train train --x='<{point.text}>'") for point in points]
    return Content("Experiment a<b", records, points, 6, commands, more.pop("plots", []), **more)


def test_the_page_needs_nothing_beside_it(two):
    records = of_two(two, (100.0, 110.0), (50.0, 60.0))
    records.append(record(two[0], 3, outcome="failed"))
    reader = read(page.as_html(content(two, records, plots=[("Loss by <steps>", b"\x89PNG")])))
    assert reader.addresses == ["data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()]
    assert not {"script", "link", "iframe"} & set(reader.tags)
    text = "".join(reader.text)
    for shown in (
        "Experiment a<b", "2 points, 5 of 6 runs ended.", "is above update=sync (50-60)", "105 (100-110)",
        "a <fast> one", "4 GB", "worker:0 failed: a < b", "--x='<update=async>'", "time of processors that the cgroup allows",
    ):  # fmt: skip
        assert shown in text, shown


def test_a_wide_table_keeps_ranges_whole_and_may_break_names(two):
    records = of_two(two, (100.0, 110.0), (50.0, 60.0))
    text = page.as_html(content(two, records))
    assert "<td>105 <br><small>(100-110)</small></td>" in text and "<th>examples/s</th>" in text
    assert page._cell("model_params.slow") == "model_<wbr>params.<wbr>slow"
    assert [page._cell(value) for value in ("0.125", "1e-05 (1e-05-2.5)", "a (b)", 3)] == [
        "0.125", "1e-05 <br><small>(1e-05-2.5)</small>", "a (b)", "3",
    ]  # fmt: skip
    assert text.count("<table>") == text.count('<div class="wide"><table>') == 3
    in_short = text.index("<h2>In short</h2>")
    assert in_short < text.index("update=sync instead of update=async: ") < text.index("<h2>What the figures")


def test_the_page_of_nothing(two):
    text = "".join(read(page.as_html(content(two, [], note="No plots: x"))).text)
    assert "0 of 6 runs ended" in text and "No plots: x" in text and "No run has come to its end." in text


def test_without_matplotlib_all_else_is_there(two, tmp_path, monkeypatch):
    def refuse(*_):
        raise ImportError

    monkeypatch.setattr(plots, "draw_all", refuse)
    said = []

    class Screen:
        say = staticmethod(said.append)

    runs = job_runs(tmp_path, two)
    job.write_files(str(tmp_path), two, runs, of_two(two, (100.0,), (50.0,)), Screen)
    assert said == [plots.MISSING] and "pip install matplotlib" in plots.MISSING
    assert plots.MISSING in "".join(read((tmp_path / "report.html").read_text()).text)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["curves.csv", "evaluations.csv", "report.html", "runs.csv"]


def job_runs(out, points):
    from ps_train.config import TrainConfig
    from ps_train.experiment.runs import Run

    return [Run(point, TrainConfig(train_dir=str(out / "x"), seed=1), 1, 2) for point in points]
