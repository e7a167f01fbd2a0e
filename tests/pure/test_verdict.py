"""What is concluded from a job's figures: each verdict, at its threshold, and the flag that it names."""

import dataclasses
import pathlib
import re

import pytest

from ps_train import verdict as rules
from ps_train.profile import Profile, PsFigures, Settings
from ps_train.step_trace import PARTS, Traffic
from ps_train.verdict import fullest_line, group_shares, judge

SETTINGS = Settings(
    update="async", num_ps=1, num_workers=2, quorum=2, is_colocated=False, first_ps_bytes=0, partition="none", wire_dtype="float32", prefetch=False,
    pack_bytes=131072, fuse_bytes=524288, bucket_bytes=67108864,
)  # fmt: skip
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
    all_ps = ps_figures if isinstance(ps_figures, dict) else {"ps:0": ps_figures or ps()}
    return Profile(
        name, 10, 5.0, 0.1, 0.12, 10.0, secs, least_wait / 1000, cores_used, 4,
        dataclasses.replace(SETTINGS, **(settings or {})), True, all_ps, rates or {},
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
    assert found.advice[1].startswith("--prefetch pulls the next step's variables")
    half = judge(
        [worker(pull=60, ps_figures=ps(link=1100), settings={"wire_dtype": "bfloat16", "prefetch": True})]
    )
    assert "--num_ps, now 1" in half.advice[0]
    sync = judge([worker(pull=60, ps_figures=ps(link=1100), settings={"update": "sync"})])
    assert sync.kind == "wire-bound" and not any("--prefetch" in line for line in sync.advice)


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


def test_what_is_joined_is_small():
    many = ps(mb=1, messages=400)
    for name, flag in (("pack_bytes", "--pack_bytes=auto"), ("bucket_bytes", "--bucket_bytes=67108864")):
        found = judge([worker(pull=60, ps_figures=many, settings={name: 4096})])
        assert found.kind == "message-bound" and len(found.advice) == 1 and found.advice[0].startswith(flag)
    other = judge([worker(pull=60, ps_figures=many, settings={"fuse_bytes": 0})])
    assert other.kind == "message-bound"
    assert not any(
        line.startswith(("--pack_bytes", "--bucket_bytes", "--fuse_bytes")) for line in other.advice
    )


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
    assert found.advice[0].endswith("measure on real hosts, too.")
    assert found.advice[1].startswith("--colocate_ps ") and "have a link each" in found.advice[2]
    assert not any("bfloat16" in line for line in found.advice), "on one host it may cost more than it saves"


def test_a_long_update():
    found = judge([worker(pull=10, push=10, update=50)])
    assert found.kind == "ps-CPU-bound" and found.why.endswith("; most of that is the update")
    assert not any("--fuse_bytes" in line for line in found.advice)
    apart = judge([worker(pull=10, push=10, update=50, settings={"fuse_bytes": 0})])
    assert apart.advice[0].startswith("--fuse_bytes=auto")


def two_ps(first, second, **settings):
    """A step that is bound by a busy ps, of two that send so many megabytes."""
    figures = {"ps:0": ps(mb=first, used=3.0, link=2000), "ps:1": ps(mb=second, link=2000)}
    return judge([worker(pull=60, ps_figures=figures, settings={"num_ps": 2, **settings})])


def test_a_large_variable_that_one_ps_has():
    found = two_ps(19, 1)
    assert found.kind == "ps-CPU-bound"
    assert found.advice[0] == (
        "ps:0 sends much more than the others. --partition=auto splits a large variable, for hosts of their own."
    )
    assert found.advice[1] == "More ps tasks (--num_ps, now 2), on hosts of their own, share the work."
    assert "A partitioner of yours splits" in two_ps(19, 1, partition="auto").advice[0]
    full = {"ps:0": ps(mb=19, link=1000), "ps:1": ps(mb=1)}
    assert "ps:0 sends" in judge([worker(pull=60, ps_figures=full, settings={"num_ps": 2})]).advice[2]


def test_one_ps_has_all_of_it():
    """The other one is in no trace."""
    found = judge([worker(pull=60, ps_figures=ps(used=3.0, link=2000), settings={"num_ps": 2})])
    assert found.advice[0].startswith("ps:0 sends much more") and "--num_ps, now 2" in found.advice[1]
    own = {"num_ps": 2, "is_colocated": True}  # a worker does not see what it sends itself
    found = judge([worker(pull=60, ps_figures=ps(used=3.9, link=2000), settings=own)])
    assert found.kind == "ps-CPU-bound" and not any("sends" in line for line in found.advice)


def test_ps_tasks_that_are_even_or_send_little():
    assert two_ps(10, 10).advice[0].endswith("share the work; --partition=auto splits a large variable.")
    assert two_ps(2, 0).advice[0].startswith("More ps tasks"), "nothing there is large"
    assert two_ps(10, 10, partition="auto").advice[0].endswith("share the work.")


COLOCATED = {"is_colocated": True}


def test_the_processors_of_a_colocated_ps_are_those_of_its_worker():
    other = ps(used=1.5, link=2000, is_local=True)
    profiles = [worker(name, {f"ps:{1 - index}": other}, cores_used=1.5, settings=COLOCATED, pull=60)
                for index, name in enumerate(("worker:0", "worker:1"))]  # fmt: skip
    assert rules.host_used(profiles) == pytest.approx(3.0)
    assert judge(profiles).kind == "wire-bound"
    busy = [dataclasses.replace(profile, cores_used=1.8) for profile in profiles]
    assert judge(busy).kind == "ps-CPU-bound" and "all tasks here 3.6" in judge(busy).why
    assert not any("--colocate_ps" in line or "--num_ps" in line for line in judge(busy).advice)


def gathered(**parts):
    """Two workers on one host, of which the first holds a small model: it has no link, and the other one all the traffic."""
    settings = {"is_colocated": True, "num_ps": 2, "first_ps_bytes": 4 * 2**20, **parts.pop("settings", {})}
    first = worker("worker:0", {}, settings=settings, compute=40, update=10, cores_used=0.4)
    figures = {"ps:0": parts.pop("ps_figures", ps(mb=2, link=5000, is_local=True))}
    return judge([first, worker("worker:1", figures, settings=settings, cores_used=0.4, **parts)])


def test_a_colocated_worker_that_holds_all_does_not_speak_for_the_others():
    found = gathered(pull=85, compute=10)
    assert found.kind == "wire-bound" and "moves 4 MB in 8 messages and applies them" in found.why
    apart = {"pack_bytes": 0, "fuse_bytes": 0}
    many = gathered(pull=85, compute=10, settings=apart, ps_figures=ps(mb=1, messages=400, is_local=True))
    assert many.kind == "message-bound" and "in 400 messages" in many.why
    busy = [worker("worker:0", {}, settings=COLOCATED, compute=90, cores_used=1.8),
            worker("worker:1", ps(is_local=True), settings=COLOCATED, compute=90, cores_used=1.8)]  # fmt: skip
    assert "Here they share 4 processors" in judge(busy).advice[1]


def test_what_the_first_worker_holds_on_purpose_is_no_large_variable():
    settings = {"is_colocated": True, "num_ps": 3, "num_workers": 3, "first_ps_bytes": 4_200_000}
    for mb, is_named in ((4.2, False), (20, True)):
        figures = {"ps:0": ps(mb=mb, link=2000), "ps:1": ps(mb=0.9, link=2000)}
        found = judge([worker("worker:2", figures, settings=settings, pull=60, cores_used=3.9)])
        assert any("ps:0 sends much more" in line for line in found.advice) == is_named


def test_a_colocated_worker_does_not_use_its_own_link():
    sync = {"is_colocated": True, "num_ps": 2, "update": "sync"}
    figures = {"ps:1": ps(mb=20, secs=0.02, link=2500)}  # 1000 MB/s
    assert fullest_line([worker(ps_figures=figures, settings=sync)]).used == pytest.approx(0.4)
    rates = {"worker:0": 10.0, "worker:1": 70.0}
    line = fullest_line([worker(ps_figures=figures, settings={**sync, "update": "async"}, rates=rates)])
    assert line.used == pytest.approx(0.4), "70 steps a second are those of ps:1's own worker"


def test_a_colocated_ps_on_a_host_of_its_own():
    """Its worker computes there, too: what would be much for a ps is not."""
    for used, kind in ((2.5, "wire-bound"), (3.5, "ps-CPU-bound")):
        one = worker(pull=60, ps_figures={"ps:1": ps(used=used, link=2000)}, settings=COLOCATED)
        assert judge([one]).kind == kind
    assert "a worker with its ps keeps 3.5 of 4 processors busy" in judge([one]).why


def test_a_job_of_one_worker_that_holds_all():
    """Nothing travels; what is not computed is the update, which takes now longer and now less."""
    alone = {"update": "sync", "num_workers": 1, "quorum": 1, "is_colocated": True}
    found = judge([worker(ps_figures={}, wait=60, compute=30, least_wait=10, settings=alone)])
    assert (found.kind, found.why) == (
        "ps-CPU-bound",
        "60% of a step applies gradients, and a worker with its ps keeps 1.0 of 4 processors busy; most of that is the update",
    )
    assert found.advice == ["A larger --batch_size makes fewer updates for the same data."]


def test_each_setting_is_read():
    source = pathlib.Path(rules.__file__).read_text(encoding="utf-8")
    for field in dataclasses.fields(Settings):
        name = "is_sync" if field.name == "update" else field.name
        assert re.search(rf"settings\.{name}\b", source), field.name


def test_messages_that_take_their_time():
    found = judge([worker(pull=60, ps_figures=ps(mb=1))])
    assert found.kind == "wire-bound" and "no link is used to more than 5% and no ps is busy" in found.why
    prefetch, *others = found.advice
    assert prefetch.startswith("--prefetch ")
    assert others == ["A larger --batch_size has fewer steps do the same work."]
    local = judge([worker(pull=60, ps_figures=ps(mb=1, is_local=True), cores_used=0.1)])
    assert "no ps is busy" in local.why and list(local.advice) == others


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


@pytest.mark.parametrize("quorum, limit", [(3, "less than 3"), (2, "less than 2"), (1, None)])
def test_backup_workers_there_are(quorum, limit):
    settings = {"update": "sync", "num_workers": 3, "quorum": quorum}
    *lines, last = judge([worker(wait=60, compute=20, settings=settings)] * 3).advice
    assert last.startswith("--update=async")
    assert lines == ([f"--replicas_to_aggregate=N, {limit}, goes on without the last ones."] if limit else [])


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
