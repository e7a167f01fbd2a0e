"""`plan`'s simulation against what queueing theory knows exactly, and its sharing against a slow oracle."""

import dataclasses
import random

import numpy as np
import pytest

from ps_train.plan import sizes
from ps_train.plan.setup import (
    COMPUTE,
    DELAY,
    PS_CPU,
    PS_IN,
    PS_OUT,
    WAIT,
    WORKER_LINK,
    Setup,
)
from ps_train.plan.sharing import Events, Shared
from ps_train.plan.simulate import simulate

LINK = 1e7


def setup(**changes):
    """Steps of 0.5 s, 1 MB each way; links of 10 MB/s at the ps, any number at the workers."""
    given = {"pull_bytes": 1e6, "push_bytes": 1e6, "ps_out_rate": LINK, "ps_in_rate": LINK, **changes}
    return Setup(0.5, **given)


def rate(all_steps=1500, **changes):
    return simulate(setup(**changes), all_steps).steps_per_sec


def ends(rate, jobs, **options):
    """When each of (time, amount) ends on one resource."""
    events, found = Events(), {}
    shared = Shared(events, rate, **options)
    for number, (secs, amount) in enumerate(jobs):

        def done(number=number):
            found[number] = events.now

        events.after(secs, shared.add, amount, done)
    while events.step():
        shared.settle()
        assert shared.served <= rate * events.now * (1 + 1e-9) + options.get("burst", 0.0)
    assert shared.served == pytest.approx(sum(amount for _, amount in jobs))
    return [found[number] for number in range(len(jobs))]


def ends_by_small_steps(rate, jobs, most_each):
    """The same, from one arrival or end to the next, each job by itself."""
    left, ended, now = {}, {}, 0.0
    coming = sorted((secs, number) for number, (secs, _) in enumerate(jobs))
    while coming or left:
        speed = min(most_each, rate / len(left)) if left else 0.0
        ending = min((amount / speed for amount in left.values()), default=np.inf)
        step = min(ending, coming[0][0] - now if coming else np.inf)
        now += step
        left = {number: amount - step * speed for number, amount in left.items()}
        for number in [n for n, amount in left.items() if amount <= 1e-9]:
            ended[number] = now
            del left[number]
        while coming and coming[0][0] <= now + 1e-12:
            number = coming.pop(0)[1]
            left[number] = jobs[number][1]
    return [ended[number] for number in range(len(jobs))]


def test_two_jobs_that_share_a_link():
    assert ends(10.0, [(0.0, 10.0), (0.5, 10.0)]) == pytest.approx([1.5, 2.0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most_each", [np.inf, 2.0])
def test_sharing_is_what_small_steps_make_of_it(seed, most_each):
    chance = random.Random(seed)
    jobs = [(chance.uniform(0, 20), chance.uniform(0.1, 10)) for _ in range(60)]
    assert ends(5.0, jobs, most_each=most_each) == pytest.approx(
        ends_by_small_steps(5.0, jobs, most_each), abs=1e-6
    )


def test_a_bucket_of_tokens_is_filled_by_rest():
    at = ends(10.0, [(0.0, 30.0), (10.0, 15.0), (10.5, 15.0)], burst=20.0)
    assert at == pytest.approx(
        [1.0, 10.0, 11.0]
    )  # 20 at once and 10 in 1 s; all at once; the 5 left and half a second's 5


def test_one_worker_takes_what_its_parts_take():
    assert 1 / rate() == pytest.approx(0.5 + 0.1 + 0.1)
    assert 1 / rate(num_ps=4) == pytest.approx(0.5 + 0.025 + 0.025)
    assert 1 / rate(num_ps=4, worker_in_rate=LINK, worker_out_rate=2 * LINK) == pytest.approx(0.65)
    assert 1 / rate(latency_secs=0.01, update_secs=0.2) == pytest.approx(0.7 + 0.04 + 0.2)
    assert 1 / rate(is_sync=True, latency_secs=0.01, update_secs=0.2) == pytest.approx(0.7 + 0.05 + 0.4)
    assert 1 / rate(carry_secs=0.6) == pytest.approx(
        0.5 + 0.3 + 0.3
    )  # longer than the transfers, beside which it is


def test_with_prefetch_a_step_is_the_longer_of_two_ways():
    assert 1 / rate(prefetch=True) == pytest.approx(0.6)
    assert 1 / rate(prefetch=True, pull_bytes=9e6) == pytest.approx(0.9)
    assert rate(prefetch=True, is_sync=True) == rate(is_sync=True)


def test_with_overlap_a_third_of_the_arithmetic_is_beside_the_pull_and_the_rest_beside_the_push():
    assert 1 / rate(overlap=True) == pytest.approx(0.5)
    assert 1 / rate(overlap=True, pull_bytes=4e6, push_bytes=2e6) == pytest.approx(0.4 + 1 / 3)
    assert 1 / rate(overlap=True, pull_bytes=4e6, push_bytes=5e6, is_sync=True) == pytest.approx(0.9)
    assert 1 / rate(overlap=True, prefetch=True, push_bytes=6e6) == pytest.approx(1 / 6 + 0.6)


@pytest.mark.parametrize("workers", [1, 7, 100])
def test_async_that_only_computes_is_linear(workers):
    found = simulate(Setup(0.5, num_workers=workers))
    assert found.steps_per_sec == pytest.approx(2 * workers, rel=0.01)
    assert found.shares[COMPUTE] == pytest.approx(1)


@pytest.mark.parametrize("cv", [0.0, 0.5])
@pytest.mark.parametrize(
    "changes, name, steps_per_sec",
    [
        ({"push_bytes": 0.0}, PS_OUT, 10.0),
        ({"pull_bytes": 0.0}, PS_IN, 10.0),
        ({"push_bytes": 0.0, "num_ps": 2}, PS_OUT, 20.0),
        ({"push_bytes": 0.0, "num_ps": 2, "shares": (0.8, 0.2)}, PS_OUT, 12.5),
        ({"push_bytes": 0.0, "pull_bytes": 0.0, "update_secs": 0.2, "ps_cores": 3.0}, PS_CPU, 15.0),
    ],
)
def test_async_saturates_at_exactly_what_the_fullest_can_carry(changes, name, steps_per_sec, cv):
    found = simulate(setup(num_workers=40, compute_cv=cv, **changes), 4000)
    assert found.steps_per_sec == pytest.approx(steps_per_sec, rel=0.01)
    assert found.use[name] == pytest.approx(1.0) and found.bottleneck == name


def test_sync_waits_for_the_expected_maximum_of_exponential_times():
    mean = 0.5 * sum(1 / n for n in range(1, 9))
    found = simulate(Setup(0.5, compute_cv=1.0, num_workers=8, is_sync=True), 16_000)
    assert found.steps_per_sec == pytest.approx(8 / mean, rel=0.04)
    assert found.bottleneck == WAIT and found.shares[WAIT] == pytest.approx(1 - 0.5 / mean, abs=0.02)


@pytest.mark.parametrize("cv", [0.1, 0.3])
def test_sync_waits_for_the_expected_maximum_of_gamma_times(cv):
    times = np.linspace(1e-6, 4.0, 400_001)
    density = times ** (cv**-2 - 1) * np.exp(-times / cv**2)
    below = np.cumsum(density) / np.sum(density)
    mean_of_most = float(np.sum((1 - below**50) * (times[1] - times[0])))
    found = simulate(Setup(0.5, compute_cv=cv, num_workers=50, is_sync=True), 10_000)
    assert found.steps_per_sec == pytest.approx(50 / (0.5 * mean_of_most), rel=0.01)


def test_sync_has_all_pull_at_the_same_time_and_push_at_the_same_time():
    assert 16 / rate(num_workers=16, is_sync=True) == pytest.approx(0.5 + 1.6 + 1.6)


def test_backup_workers_cut_the_tail():
    slow = {
        "num_workers": 10,
        "num_slow": 1,
        "slow_factor": 5.0,
        "is_sync": True,
        "ps_out_rate": np.inf,
        "ps_in_rate": np.inf,
    }
    assert rate(**slow) == pytest.approx(10 / 2.5)
    assert rate(num_backups=1, **slow) == pytest.approx(9 / 0.5)
    varied = {"num_workers": 50, "compute_cv": 0.5, "is_sync": True}
    assert rate(num_backups=3, num_ps=50, **varied) > 1.2 * rate(num_ps=50, **varied)


def test_async_goes_on_without_a_slow_one_unless_its_lead_is_bounded():
    slow = {"num_workers": 10, "num_slow": 1, "slow_factor": 4.0, "num_ps": 100}
    alone = 1 / rate(num_ps=100)
    assert rate(5000, **slow) == pytest.approx(9 / alone + 1 / (alone + 1.5), rel=0.02)
    found = simulate(setup(max_lead=3, **slow))
    assert found.steps_per_sec == pytest.approx(10 / (alone + 1.5), rel=0.02) and found.bottleneck == WAIT


def test_colocated():
    assert 1 / rate(is_colocated=True) == pytest.approx(0.5)
    links = {"worker_in_rate": LINK, "worker_out_rate": LINK}
    for workers in (2, 10):
        away = 0.1 * (workers - 1) / workers
        found = rate(num_workers=workers, is_colocated=True, is_sync=True, **links)
        assert workers / found == pytest.approx(0.5 + 2 * away)
    big = setup(num_workers=50, is_colocated=True, pull_bytes=2e7, push_bytes=2e7, prefetch=True, **links)
    many = simulate(big, 2000)
    assert many.steps_per_sec == pytest.approx(50 * LINK / (4e7 * 0.98), rel=0.05)


@pytest.mark.parametrize("seed", range(12))
def test_no_link_carries_more_than_its_rate(seed):
    chance = random.Random(seed)
    found = simulate(
        setup(
            num_workers=chance.randint(1, 60),
            num_ps=chance.randint(1, 5),
            compute_cv=chance.choice([0.0, 0.2, 1.0]),
            update_secs=chance.uniform(0, 0.1),
            carry_secs=chance.uniform(0, 0.1),
            is_sync=chance.random() < 0.5,
            prefetch=chance.random() < 0.5,
            overlap=chance.random() < 0.3,
            is_colocated=chance.random() < 0.3,
            max_lead=chance.choice([None, 2]),
            num_backups=chance.randint(0, 2),
            worker_out_rate=chance.uniform(0.2, 2) * LINK,
            worker_in_rate=chance.uniform(0.2, 2) * LINK,
            seed=seed,
        )
    )
    assert max(found.use.values()) <= 1 + 1e-9
    assert sum(found.shares.values()) == pytest.approx(1) and found.steps_per_sec > 0


def test_it_is_the_same_each_time():
    some = setup(num_workers=20, compute_cv=0.5)
    assert simulate(some) == simulate(some)
    assert simulate(some) != simulate(dataclasses.replace(some, seed=1))


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"worker_in_rate": 1e5}, WORKER_LINK),
        ({"latency_secs": 1.0}, DELAY),
        ({"update_secs": 2.0}, PS_CPU),
        ({}, COMPUTE),
    ],
)
def test_the_bottleneck_has_a_name(changes, name):
    assert simulate(setup(**changes)).bottleneck == name


def test_how_many_ps_are_enough():
    assert sizes.enough_ps(setup(pull_bytes=0.0, push_bytes=0.0, num_workers=50)) == 1
    busy = setup(num_workers=40, compute_cv=0.2)
    count = sizes.enough_ps(busy)
    most = simulate(sizes.with_ps(busy, 40)).steps_per_sec
    assert 6 <= count < 20
    assert simulate(sizes.with_ps(busy, count)).steps_per_sec >= 0.93 * most
    assert simulate(sizes.with_ps(busy, count // 2)).steps_per_sec < 0.93 * most


def test_a_thousand_workers_and_what_they_are_compared_with():
    rows = sizes.grow(setup(num_workers=1000, num_ps=16), [1, 1000], 16)
    assert [row.speed_up for row in rows] == pytest.approx([1.0, 160 / rate(num_ps=16)], rel=0.05)
    assert rows[0].efficiency == pytest.approx(1.0) and rows[1].bottleneck in (PS_OUT, PS_IN)


def test_what_helps_is_simulated_and_the_best_comes_first():
    row = simulate(setup(num_workers=40, num_ps=1))
    found = sizes.helps(row, {"bfloat16": 0.5})
    assert found[0][1] >= found[-1][1]
    assert dict(found)["--wire_dtype=bfloat16"] == pytest.approx(2.0, rel=0.1)
    assert dict(found)["--num_ps=2"] == pytest.approx(2.0, rel=0.1)
    sync = dict(sizes.helps(simulate(setup(num_workers=40, is_sync=True, compute_cv=1.0)), {}))
    assert list(sync)[0] == "--update=async" and "--replicas_to_aggregate=38" in sync
