r"""What a trace says in words: each step's time by parts, its critical path, and whose step the others waited for.

    found = summarize(*chrome.read("runs/1/trace-100-105.json"))
    print("\n".join(lines(found)))
    json.dumps(found)

The parts of a step are those of `bench` (`step_trace.PARTS`), by the same rule: an instant belongs to the computation if the worker
computes then, else to that of the things under way which ends last. The path's links are those of `critical`. Row and path have one
definition of what is a pull and what a push (`critical.span_of`): a scalar, as a token or the global step, is `other` in both. They
differ in what they count: the row all of the step, the path only what its end waited for, in other workers' steps, too.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ps_train.profile_table import aligned
from ps_train.step_trace import PARTS, PULL, PUSH, WAIT
from ps_train.timeline import OTHER, Span, attribute
from ps_train.trace.critical import CALL, GAP, Group, PathFinder, grouped, has_weight, span_of, way_of
from ps_train.trace.merged import AlignedRun, Merged
from ps_train.trace.parts import STEP
from ps_train.wording import counted

MIN_SHARE = 0.05  # of a step, from which on a link is named in the text
MAX_PATHS = 12  # of single steps in the text: the longest
MOST = 3  # links that are named for a worker


def summarize(merged: Merged, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` prints; times are milliseconds, those of begins by the reference's clock."""
    finder = PathFinder(merged.runs)
    steps = _steps(merged.runs)
    shown = [_as_dict(step, finder) for step in steps]
    found = {
        "steps": shown,
        "workers": _workers(shown),
        "last": _last(steps) if facts.get("update") == "sync" else {},
    }
    return {**{key: facts[key] for key in ("trace_steps", "update", "clocks", "missing", "cut")}, **found}


def _steps(runs: Iterable[AlignedRun]) -> list[list[AlignedRun]]:
    """The runs of each step, by the begin of the steps."""
    found: list[list[AlignedRun]] = []
    open_of: dict[str, list[AlignedRun]] = {}
    for run in sorted((run for run in runs if run.kind == STEP), key=lambda run: run.begin):
        if run.batch == 0:
            open_of[run.owner] = []
            found.append(open_of[run.owner])
        open_of[run.owner].append(run)
    return found


def _as_dict(step: Sequence[AlignedRun], finder: PathFinder) -> dict[str, Any]:
    begin, end = step[0].begin, step[-1].end
    parts = attribute([span for run in step for span in _spans(run)], begin, end)
    path = [
        {
            "what": describe(group, step[0]), "kind": group.kind, "task": group.task, "name": group.name, "of": group.owner,
            "num_more": group.num_more, "ms": group.nanos / 1e6, "share": group.nanos / (end - begin),
        }
        for group in grouped(finder.path(step))
    ]  # fmt: skip
    return {
        "worker": step[0].owner, "step": step[-1].step, "begin_ms": begin / 1e6, "ms": (end - begin) / 1e6,
        "parts_ms": {part: parts.get(part, 0) / 1e6 for part in PARTS}, "path": path,
    }  # fmt: skip


def _spans(run: AlignedRun) -> Iterable[Span]:
    for op in run.ops:
        yield Span(op.kind, op.start, op.end)
    for message in run.messages:
        span = span_of(message, run)
        if span.kind != OTHER:
            yield span


def describe(group: Group, run: AlignedRun) -> str:
    """A group of links, in the words of the step of `run`."""
    elsewhere = f" on {group.task}" if group.task not in (run.server, group.owner) else ""
    whose = f" of {group.owner}" if group.owner != run.owner and CALL != group.kind else ""
    text = {
        PULL: f"pull from {group.task} {group.name}{whose}",
        PUSH: f"push to {group.task} {group.name}{whose}",
        OTHER: f"other: message to {group.task} {group.name}{whose}",
        WAIT: f"wait{elsewhere} {group.name}{whose}",
        GAP: f"nothing{elsewhere} before {group.name}{whose}",
        CALL: group.name,
    }
    return text.get(group.kind, f"{group.name}{elsewhere}{whose}")


def _workers(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each worker: how many steps, their mean length, and the longest links of their paths, in the mean."""
    by_worker: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        by_worker[step["worker"]].append(step)
    found = {}
    for worker, own in sorted(by_worker.items()):
        total: Counter[str] = Counter()
        for step in own:
            for link in step["path"]:
                total[link["what"]] += link["ms"]
        mean_ms = statistics.fmean(step["ms"] for step in own)
        links = [
            {"what": what, "ms": ms / len(own), "share": ms / len(own) / mean_ms}
            for what, ms in total.most_common()
        ]
        found[worker] = {"steps": len(own), "mean_ms": mean_ms, "links": links}
    return found


def _last(steps: Sequence[Sequence[AlignedRun]]) -> dict[str, Any]:
    """Worker -> global steps for which its gradient came last, of those that several workers have in the trace."""
    pushed: dict[int, dict[str, int]] = defaultdict(dict)
    for step in steps:
        arrivals = [
            m.arrival
            for run in step
            for m in run.messages
            if way_of(m.source, m.target, run) == PUSH and has_weight(m)
        ]
        if arrivals:
            pushed[step[-1].step][step[0].owner] = max(arrivals)
    found: dict[str, Any] = defaultdict(list)
    for number, by_worker in sorted(pushed.items()):
        if len(by_worker) > 1:
            found[max(by_worker, key=lambda worker: by_worker[worker])].append(number)
    return dict(found)


def lines(found: Mapping[str, Any]) -> list[str]:
    """The text."""
    head = ("worker", "step", "begin", "ms", *PARTS)
    rows = [
        (
            step["worker"], str(step["step"]), f"{step['begin_ms']:.1f}", f"{step['ms']:.1f}",
            *(f"{step['parts_ms'][part]:.1f}" for part in PARTS),
        )
        for step in found["steps"]
    ]  # fmt: skip
    shown = aligned([head, *rows]) if rows else ["There is no step in it."]
    longest = sorted(found["steps"], key=lambda step: -step["ms"])[:MAX_PATHS]
    for step in found["steps"]:
        if step in longest:
            shown.append(f"{step['worker']} step {step['step']}, {step['ms']:.1f} ms: {_path(step['path'])}")
    for worker, own in found["workers"].items():
        most = ", ".join(f"{link['what']} {_size(link)}" for link in own["links"][:MOST])
        shown.append(
            f"{worker}: {counted(own['steps'], 'step')}, {own['mean_ms']:.1f} ms in the mean; most on the path: {most}"
        )
    return [*shown, *_of_the_cluster(found), *_warnings(found)]


def overview(found: Mapping[str, Any]) -> list[str]:
    """The text without the steps themselves."""
    workers = ", ".join(
        f"{worker} {counted(own['steps'], 'step')}" for worker, own in found["workers"].items()
    )
    numbers = [step["step"] for step in found["steps"]]
    window = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
    return [
        f"--trace_steps={found['trace_steps']}, {found['update']}: global steps {window}; {workers}",
        *_warnings(found),
    ]


def _path(path: Sequence[Mapping[str, Any]]) -> str:
    named = [f"{link['what']}{_more(link)} {_size(link)}" for link in path if link["share"] >= MIN_SHARE]
    rest = sum(link["share"] for link in path if link["share"] < MIN_SHARE)
    return " -> ".join(named) + (f"; shorter links {100 * rest:.0f}%" if rest >= 0.005 else "")


def _more(link: Mapping[str, Any]) -> str:
    return f" and {link['num_more']} more" if link["num_more"] else ""


def _size(link: Mapping[str, Any]) -> str:
    return f"{link['ms']:.1f} ms ({100 * link['share']:.0f}%)"


def _of_the_cluster(found: Mapping[str, Any]) -> list[str]:
    last, workers = found["last"], found["workers"]
    if last:
        total = sum(len(numbers) for numbers in last.values())
        most = max(last, key=lambda worker: len(last[worker]))
        return [
            f"the cluster: {most}'s gradient was the last in {len(last[most])} of {counted(total, 'step')}"
        ]
    if len(workers) < 2:
        return []
    slowest = max(workers, key=lambda worker: workers[worker]["mean_ms"])
    others = [own["mean_ms"] for worker, own in workers.items() if worker != slowest]
    return [
        f"the cluster: {slowest} has the longest steps, {workers[slowest]['mean_ms']:.1f} ms against "
        f"{statistics.fmean(others):.1f} ms of the others"
    ]


def _warnings(found: Mapping[str, Any]) -> list[str]:
    shown = [f"missing: {worker}: {reason}" for worker, reason in sorted(found["missing"].items())]
    shown += [
        f"cut: {counted(number, 'run')} of {worker} left out: its part was too large"
        for worker, number in sorted(found["cut"].items())
    ]
    errors = [clock["error_ms"] for clock in found["clocks"].values()]
    if len(errors) > 1:
        worst = "unknown" if None in errors else f"{max(errors):.2f} ms at most"
        shown.append(f"clocks are aligned; error {worst}")
    return shown
