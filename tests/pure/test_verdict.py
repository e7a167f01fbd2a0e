"""What is concluded from a job's figures: each verdict, at its threshold, and the flag that it names."""

import pytest

from ps_train import verdict as rules
from ps_train.profile import Profile, PsFigures
from ps_train.step_trace import PARTS, Traffic
from ps_train.verdict import fullest_line, group_shares, judge

SETTINGS = {
    "update": "async",
    "batch_size": 32,
    "pack_bytes": 131072,
    "wire_dtype": "float32",
    "num_workers": 2,
}
MB = 1_000_000


def ps(mb=20, messages=8, secs=0.02, link=1000, used=0.1, is_local=False):
    """`mb` megabytes and `messages` each way, in `secs`; a link of `link` MB/s."""
    traffic = Traffic(mb * MB, mb * MB, messages // 2, messages // 2, secs, secs)
    return PsFigures(traffic, link * MB, link * MB, used, 4, is_local)


def worker(
    name="worker:0", ps_figures=None, least_wait=0.0, cores_used=1.0, rates=None, settings=None, **parts
):
    """A step of 100 ms; what the parts in ms leave is other."""
    secs = {part: parts.get(part, 0) / 1000 for part in PARTS}
    secs["other"] += 0.1 - sum(secs.values())
    return Profile(
        name, 10, 5.0, 0.1, 0.12, 10.0, secs, least_wait / 1000, cores_used, 4, True, {**SETTINGS, **(settings or {})},
        {"ps:0": ps_figures or ps()}, rates or {},
    )  # fmt: skip


def test_shares_add_up():
    shares = group_shares([worker(compute=50, pull=20, update=10), worker(wait=30, input=60)])
    assert shares == pytest.approx(
        {"input": 0.3, "compute": 0.25, "transfer": 0.15, "wait": 0.15, "other": 0.15}
    )


def test_compute():
    found = judge([worker(compute=60, pull=30)])
    assert found.kind == "compute-bound" and found.why == "60% of a step is arithmetic on the worker"
    assert len(found.advice) == 1 and "--num_workers, now 2" in found.advice[0]


def test_compute_on_one_host_whose_processors_are_all_busy():
    found = judge([worker(compute=90, ps_figures=ps(is_local=True), cores_used=1.8)] * 2)
    assert "Here they share 4 processors" in found.advice[1]


def test_compute_that_does_not_get_a_processor():
    assert "other programs use this host" in judge([worker(compute=90, cores_used=0.2)]).advice[-1]
    assert len(judge([worker(compute=90, cores_used=0.9 * rules.STARVED + 0.01)]).advice) == 1


def test_input():
    found = judge([worker(input=60, compute=30)])
    assert found.kind == "input-bound" and found.why == "the next batch is waited for during 60% of a step"
    assert "num_parallel_calls" in found.advice[0]


def test_a_full_link():
    found = judge([worker(compute=30, pull=30, push=30, ps_figures=ps(link=1100))])
    assert found.kind == "wire-bound"
    assert found.why == (
        "60% of a step moves 40 MB in 8 messages and applies them, and the link of ps:0 is used to 91% (pull)"
    )
    assert found.advice[0] == "--wire_dtype=bfloat16 halves the bytes, int8 leaves a quarter."
    half = judge([worker(pull=60, ps_figures=ps(link=1100), settings={"wire_dtype": "bfloat16"})])
    assert "--num_ps, now 1" in half.advice[0]


def test_a_link_that_is_full_with_what_all_workers_send():
    """Each gets but 300 MB/s of it; three times ten steps a second with 20 MB fill it."""
    figures = ps(secs=0.066, link=900)
    rates = {"worker:0": 10.0, "worker:1": 10.0, "worker:2": 10.0}
    profile = worker(pull=50, push=40, ps_figures=figures, rates=rates)
    assert fullest_line([profile]).used == pytest.approx(600 / 900)
    assert judge([profile]).kind == "wire-bound" and "67%" in judge([profile]).why
    assert fullest_line([worker(ps_figures=figures)]).used == pytest.approx(303 / 900, abs=0.001)


def test_workers_that_pull_at_the_same_time_share_the_link_of_the_ps():
    line = fullest_line([worker(ps_figures=ps(link=2000), settings={"update": "sync", "num_workers": 2})])
    assert line.way == "pull" and line.used == pytest.approx(1.0)


def test_the_link_was_not_probed():
    figures = PsFigures(Traffic(20 * MB, 20 * MB, 4, 4, 0.02, 0.02))
    assert fullest_line([worker(ps_figures=figures)]) is None
    assert judge([worker(pull=90, ps_figures=figures)]).kind == "wire-bound"


def test_many_small_messages():
    many = ps(mb=1, messages=400, used=3.0)
    found = judge([worker(pull=60, ps_figures=many, settings={"pack_bytes": 0})])
    assert found.kind == "message-bound" and "2 MB in 400 messages and applies them, 5 kB each" in found.why
    assert found.advice[0].startswith("--pack_bytes=auto")
    assert judge([worker(pull=60, ps_figures=many)]).kind == "ps-CPU-bound", "they are packed already"


def test_a_busy_ps():
    busy = ps(used=4 * rules.BUSY_PS + 0.1, link=2000)
    found = judge([worker(pull=60, ps_figures=busy)] * 2)
    assert found.kind == "ps-CPU-bound" and found.why.endswith("and a ps keeps 2.5 of 4 processors busy")
    assert "--num_ps, now 1" in found.advice[0]


def test_one_host_whose_processors_copy():
    """Loopback is no wire: what a link gives there is what the processors do."""
    local = ps(link=2000, used=1.0, is_local=True)
    found = judge([worker(pull=60, ps_figures=local, cores_used=1.4)])
    assert found.kind == "ps-CPU-bound" and found.why.endswith(
        "a ps keeps 1.0 of 4 processors busy, all tasks here 3.8"
    )


def test_a_full_loopback():
    found = judge([worker(pull=60, ps_figures=ps(link=1000, used=0.5, is_local=True), cores_used=0.5)])
    assert found.kind == "wire-bound" and found.why.endswith(
        "as fast as loopback lets them: 100% of it (pull)"
    )
    assert found.advice[0].endswith("measure on real hosts, too.") and "bfloat16" in found.advice[1]


def test_a_long_update():
    found = judge([worker(pull=10, push=10, update=50)])
    assert found.kind == "ps-CPU-bound" and found.why.endswith("; most of that is the update")


def test_messages_that_take_their_time():
    found = judge([worker(pull=60, ps_figures=ps(mb=1))])
    assert found.kind == "wire-bound" and "no link is used to more than 5% and no ps is busy" in found.why
    assert found.advice == ["A larger --batch_size has fewer steps do the same work."]


def test_waiting_for_a_slow_worker():
    sync = {"update": "sync"}
    found = judge([
        worker("worker:0", wait=60, compute=20, least_wait=40, settings=sync),
        worker("worker:1", wait=2, input=50, compute=40, least_wait=1, settings=sync),
        worker("worker:2", wait=70, compute=20, least_wait=40, settings=sync),
    ])  # fmt: skip
    assert found.kind == "waiting for others" and found.why.endswith(
        "; worker:1 is the slow one, input takes 50% of its step"
    )
    assert "num_parallel_calls" in found.advice[0] and "--replicas_to_aggregate" in found.advice[1]


def test_a_wait_that_everybody_has_is_the_update():
    found = judge([worker(wait=60, compute=20, least_wait=55, settings={"update": "sync"})] * 2)
    assert found.kind == "ps-CPU-bound"


def test_short_steps():
    assert judge([worker(compute=20)]).kind == "overhead-bound"


def test_lines():
    lines = judge([worker(compute=60)]).lines()
    assert lines[0] == "verdict: compute-bound: 60% of a step is arithmetic on the worker" and lines[
        1
    ].startswith("  More")
