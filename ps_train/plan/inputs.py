"""What a Setup is made of: the file that `bench --report_file` writes, or a worker's report with `--profile_steps`, and flags.

    setup = measured("bench.json").setup        # as it was measured
    setup = on_links(setup, 10_000, None)       # on hosts of their own, with links of 10 Gbit/s

What is read of a report, as the mean of its workers:

| of the Setup | from |
|---|---|
| compute_secs | the parts input, compute and other of a step |
| compute_cv | how much the steps' length varies, all of it taken for that of the above |
| pull_bytes, push_bytes | the bytes of a step to and from all ps tasks; with --colocate_ps those that stayed at home are added |
| update_secs | the part update; in sync the least wait, too |
| carry_secs | what the ps tasks' processors did for a step beyond that; not known with --colocate_ps |
| latency_secs | of messages that are small on an average, what pull and push took beyond all this, in four; of others 0 |
| shares | bytes pulled from each ps |
| the links' rates | what the probe's large tensor got |

Of a bench on one host the rates are those of loopback, and workers and ps tasks had the same processors: give the links of the hosts
that you plan for by flags. Where a step's parts went on together, the exposed part of a pull is shorter than its bytes take.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ps_train.errors import UsageError
from ps_train.plan.setup import Setup
from ps_train.profile import Profile
from ps_train.step_trace import INPUT, PULL, PUSH, UPDATE, WAIT
from ps_train.timeline import COMPUTE, OTHER
from ps_train.verdict import SMALL_MESSAGE_BYTES

# Of a frame on an Ethernet link: 1448 bytes of 1514 are what TCP carries.
PAYLOAD = 1448 / 1514
OWN = (COMPUTE, INPUT, OTHER)  # parts of a step that need neither link nor ps
BYTES_FACTORS = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5, "int8": 0.25}


class Measured(NamedTuple):
    """A Setup as it was measured, and what else is worth a word.

    Attributes:
      setup: of it.
      wire_dtype: in which its bytes were counted.
      is_local: all tasks were on one host.
      steps_per_sec: of all workers.
      own: part of a step -> seconds, of those that `Setup.compute_secs` is made of.
    """

    setup: Setup
    wire_dtype: str
    is_local: bool
    steps_per_sec: float
    own: Mapping[str, float]


def rate_of(mbit: float) -> float:
    """Bytes a second that a link of so many megabits a second carries.

    >>> round(rate_of(100))
    11955086
    """
    return mbit * 1e6 / 8 * PAYLOAD


def measured(path: str) -> Measured:
    """Reads a report; raises `UsageError`."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise UsageError(f"--bench_report={path} cannot be read: {error.strerror}. Check its path.") from None
    except ValueError:
        raise UsageError(f"--bench_report={path} is not JSON. {_EXPECTED}") from None
    try:
        profiles = _profiles(content)
        return from_profiles(profiles)
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError):
        raise UsageError(f"--bench_report={path} holds no measured steps. {_EXPECTED}") from None


_EXPECTED = "Expected what python -m ps_train bench --report_file=FILE writes, or a worker's report with --profile_steps."


def _profiles(content: Any) -> list[Profile]:
    found = list(content["workers"].values()) if "workers" in content else [content["profile"]]
    if not found:
        raise ValueError
    return [Profile.from_dict(values) for values in found]


def from_profiles(profiles: Sequence[Profile]) -> Measured:
    """What the profiles of a job's workers say."""
    settings = profiles[0].settings
    update = statistics.fmean(_update_secs(profile) for profile in profiles)
    links = [ps for profile in profiles for ps in profile.ps.values()]
    away = 1 - 1 / settings.num_workers if settings.is_colocated else 1.0
    parts = {part: statistics.fmean(profile.parts[part] for profile in profiles) for part in OWN}
    own = sum(parts.values())
    varied = statistics.fmean((profile.step_cv or 0.0) * profile.step_secs for profile in profiles)
    setup = Setup(
        compute_secs=own,
        compute_cv=min(varied / own, 1.0),
        pull_bytes=sum(ps.traffic.pulled_bytes for ps in links) / len(profiles) / (away or 1.0),
        push_bytes=sum(ps.traffic.pushed_bytes for ps in links) / len(profiles) / (away or 1.0),
        update_secs=update,
        carry_secs=0.0 if settings.is_colocated else max(_ps_secs(profiles) - update, 0.0),
        ps_cores=max((ps.cores for ps in links if ps.cores), default=1),
        num_workers=settings.num_workers,
        num_ps=max(settings.num_ps, 1),
        shares=None if settings.is_colocated else _shares(profiles),
        ps_out_rate=_slowest(ps.link_pull_rate for ps in links),
        ps_in_rate=_slowest(ps.link_push_rate for ps in links),
        worker_in_rate=_slowest(ps.link_pull_rate for ps in links),
        worker_out_rate=_slowest(ps.link_push_rate for ps in links),
        is_sync=settings.is_sync,
        num_backups=max(settings.num_workers - settings.quorum, 0) if settings.is_sync else 0,
        prefetch=settings.prefetch,
        is_colocated=settings.is_colocated,
    )
    setup = dataclasses.replace(setup, latency_secs=_latency_secs(profiles, setup))
    is_local = bool(links) and all(ps.is_local for ps in links)
    rate = settings.num_workers * statistics.fmean(profile.steps_per_sec for profile in profiles)
    return Measured(setup, settings.wire_dtype, is_local, rate, parts)


def _update_secs(profile: Profile) -> float:
    """In sync what the mean's update takes is in each worker's wait."""
    return profile.parts[UPDATE] + min(profile.least_wait_secs, profile.parts[WAIT])


def _ps_secs(profiles: Sequence[Profile]) -> float:
    """Processor seconds of all ps tasks together in a step of one worker; 0 if it is not known."""
    rate = sum(profiles[0].rates.values()) or sum(profile.steps_per_sec for profile in profiles)
    used = _by_ps(profiles, lambda ps: ps.cores_used or 0.0)
    return sum(used.values()) / rate


def _latency_secs(profiles: Sequence[Profile], setup: Setup) -> float:
    """A small message takes as long as an empty one; of the simulated ones a pull and a push wait for two each."""
    links = [ps.traffic for profile in profiles for ps in profile.ps.values()]
    num_bytes = sum(link.pulled_bytes + link.pushed_bytes for link in links)
    if num_bytes > SMALL_MESSAGE_BYTES * sum(link.pull_messages + link.push_messages for link in links):
        return 0.0
    took = statistics.fmean(profile.parts[PULL] + profile.parts[PUSH] for profile in profiles)
    moved = setup.pull_bytes / setup.ps_out_rate + setup.push_bytes / setup.ps_in_rate
    return max(took - moved - setup.carry_secs, 0.0) / 4


def _shares(profiles: Sequence[Profile]) -> tuple[float, ...] | None:
    sizes = _by_ps(profiles, lambda ps: ps.traffic.pulled_bytes)
    total = sum(sizes.values())
    if not total or len(sizes) > profiles[0].settings.num_ps:
        return None
    rest = (0.0,) * (profiles[0].settings.num_ps - len(sizes))
    return tuple(size / total for size in sizes.values()) + rest


def _by_ps(profiles: Sequence[Profile], figure: Any) -> Mapping[str, float]:
    """Name of each ps -> the mean of what the workers say."""
    found: dict[str, list[float]] = {}
    for profile in profiles:
        for name, ps in profile.ps.items():
            found.setdefault(name, []).append(figure(ps))
    return {name: statistics.fmean(each) for name, each in found.items()}


def _slowest(rates: Any) -> float:
    return min((rate for rate in rates if rate), default=math.inf)


def on_links(setup: Setup, mbit: float | None, ps_mbit: float | None) -> Setup:
    """With links of so many megabits a second in each direction, those of ps tasks apart; None: as they were."""
    if mbit is not None:
        rate = rate_of(mbit)
        setup = dataclasses.replace(
            setup, ps_out_rate=rate, ps_in_rate=rate, worker_out_rate=rate, worker_in_rate=rate
        )
    if ps_mbit is not None:
        setup = dataclasses.replace(setup, ps_out_rate=rate_of(ps_mbit), ps_in_rate=rate_of(ps_mbit))
    return setup


def in_dtype(setup: Setup, dtype: str, was: str) -> Setup:
    """With what travels in one type, that was counted in another; small variables and what is not trained are taken for none."""
    factor = BYTES_FACTORS[dtype] / BYTES_FACTORS[was]
    return dataclasses.replace(
        setup, pull_bytes=factor * setup.pull_bytes, push_bytes=factor * setup.push_bytes
    )
