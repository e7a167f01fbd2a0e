"""What a job's steps wait for, in words, and the flag that would help: rules on the figures of `profile`, nothing else.

    verdict = judge(profiles)                # a Profile of each worker that has one
    verdict.kind                             # 'wire-bound'
    verdict.lines()                          # for people

1. The parts of a step are put together in five groups, as shares of the step, on an average of the workers: input, compute,
   transfer (pull, push and the update on the ps), waiting for others, and the rest. The largest group names the verdict.
2. In sync the update is made while the workers wait. What the least of all waits took is the update; only what is beyond it is
   waiting for others.
3. A transfer is slow for one of these reasons, looked for in this order: most of its time is the update's; a link is full
   (FULL_LINK); there are very many small messages (SMALL_MESSAGE_BYTES, MANY_MESSAGES); the processors of a ps are busy (BUSY_PS), or
   those of a host that has all tasks (BUSY_HOST); loopback, which is no link, is full; else it is the delay of each message.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.profile import Profile
from ps_train.step_trace import INPUT, PULL, PUSH, UPDATE, WAIT
from ps_train.timeline import COMPUTE, OTHER
from ps_train.wording import as_bytes

# Of what the probe's single large tensor got: real traffic, which starts and ends and meets that of others, gets no more.
FULL_LINK = 0.6
# On loopback, 4 KB and 16 KB messages take about as long as empty ones; from some 10 of them on packing pays.
SMALL_MESSAGE_BYTES = 16 * 1024
MANY_MESSAGES = 20
# Of its processors. Receiving and applying one tensor uses one; several at once are seldom spread evenly.
BUSY_PS = 0.6
# All tasks of one host together, of its processors: the system needs the rest.
BUSY_HOST = 0.85
# Of the share of a step in which ops compute. One op by itself keeps one processor busy if it gets it.
STARVED = 0.6
# The least of the mean waits of several workers over their mean, below which that worker is the one that is waited for.
STRAGGLER = 0.5

COMPUTE_BOUND, INPUT_BOUND, WIRE_BOUND, MESSAGE_BOUND, PS_CPU_BOUND, WAIT_BOUND, OVERHEAD_BOUND = (
    "compute-bound", "input-bound", "wire-bound", "message-bound", "ps-CPU-bound", "waiting for others",
    "overhead-bound",
)  # fmt: skip
TRANSFER = "transfer"
ON_ONE_HOST = (
    "On one host the bytes are copied by the same processors that compute: measure on real hosts, too."
)


class Verdict(NamedTuple):
    """What was concluded.

    Attributes:
      kind: one of the words above.
      why: a sentence with the figures.
      advice: sentences, the first the most likely to help.
    """

    kind: str
    why: str
    advice: Sequence[str]

    def lines(self) -> list[str]:
        """For people."""
        return [f"verdict: {self.kind}: {self.why}", *(f"  {line}" for line in self.advice)]


def judge(profiles: Sequence[Profile]) -> Verdict:
    """The Verdict on a job, by the profiles of one or more of its workers."""
    shares = group_shares(profiles)
    group = max(shares, key=lambda name: shares[name])
    share = f"{100 * shares[group]:.0f}% of a step"
    if group == TRANSFER:
        return _judge_transfer(profiles, share)
    if group == WAIT:
        return _judge_wait(profiles, share)
    if group == INPUT:
        return Verdict(INPUT_BOUND, f"the next batch is waited for during {share}", _input_advice(profiles))
    if group == COMPUTE:
        return Verdict(COMPUTE_BOUND, f"{share} is arithmetic on the worker", _compute_advice(profiles))
    why = f"{share} is none of these: starting and ending it, scalars on their way, gaps between small ops"
    return Verdict(OVERHEAD_BOUND, why, ["A larger --batch_size has fewer steps do the same work."])


def group_shares(profiles: Sequence[Profile]) -> dict[str, float]:
    """Share of the step of each group; they add up to 1."""
    groups = dict.fromkeys((INPUT, COMPUTE, TRANSFER, WAIT, OTHER), 0.0)
    update_secs = min(profile.least_wait_secs for profile in profiles)
    for profile in profiles:
        parts = dict(profile.parts)
        inside = min(update_secs, parts[WAIT]) if profile.settings.get("update") == "sync" else 0.0
        own = {
            INPUT: parts[INPUT],
            COMPUTE: parts[COMPUTE],
            TRANSFER: parts[PULL] + parts[PUSH] + parts[UPDATE] + inside,
            WAIT: parts[WAIT] - inside,
            OTHER: parts[OTHER],
        }
        for name, secs in own.items():
            groups[name] += secs / profile.step_secs / len(profiles)
    return groups


class Line(NamedTuple):
    """One direction of the line to a ps: how much of what the probe found is used.

    Attributes:
      ps: its name.
      way: "pull" or "push".
      used: over the probe's rate, the larger of the rate while something is under way, and that of all workers on an
        average. In sync all workers pull at the same time, so that the first is that of all of them, too.
    """

    ps: str
    way: str
    used: float


def fullest_line(profiles: Sequence[Profile]) -> Line | None:
    """The one that is used most, or None if none was probed."""
    lines = []
    for profile in profiles:
        steps_per_sec = sum(profile.rates.values()) or profile.steps_per_sec
        together = _num_workers(profiles) if profile.settings.get("update") == "sync" else 1
        for name, ps in profile.ps.items():
            for way, num_bytes, rate, limit in (
                (PULL, ps.traffic.pulled_bytes, together * ps.pull_rate, ps.link_pull_rate),
                (PUSH, ps.traffic.pushed_bytes, ps.push_rate, ps.link_push_rate),
            ):
                if limit:
                    lines.append(Line(name, way, max(rate, num_bytes * steps_per_sec) / limit))
    return max(lines, key=lambda line: line.used, default=None)


def _judge_transfer(profiles: Sequence[Profile], share: str) -> Verdict:
    first = profiles[0]
    all_ps = [ps for profile in profiles for ps in profile.ps.values()]
    is_local = all(ps.is_local for ps in all_ps)
    line = fullest_line(profiles)
    moved = sum(ps.traffic.pulled_bytes + ps.traffic.pushed_bytes for ps in first.ps.values())
    count = sum(ps.traffic.pull_messages + ps.traffic.push_messages for ps in first.ps.values())
    begin = f"{share} moves {as_bytes(round(moved))} in {count:.0f} messages and applies them"
    busiest = max(all_ps, key=lambda ps: (ps.cores_used or 0.0) / (ps.cores or 1))
    used, cores = busiest.cores_used or 0.0, busiest.cores or 1
    busy = f"{begin}, and a ps keeps {used:.1f} of {cores} processors busy"
    busy += f", all tasks here {host_used(profiles):.1f}" if is_local else ""
    update = statistics.fmean(p.parts[UPDATE] + _update_in_wait(profiles, p) for p in profiles)
    if update > statistics.fmean(p.parts[PULL] + p.parts[PUSH] for p in profiles):
        return Verdict(PS_CPU_BOUND, f"{busy}; most of that is the update", _ps_advice(first, is_local))
    is_full = line is not None and line.used >= FULL_LINK
    if line is not None and is_full and not is_local:
        why = f"{begin}, and the link of {line.ps} is used to {100 * line.used:.0f}% ({line.way})"
        return Verdict(WIRE_BOUND, why, _wire_advice(first))
    if (
        first.settings.get("pack_bytes") == 0
        and count >= MANY_MESSAGES
        and moved / count <= SMALL_MESSAGE_BYTES
    ):
        why = f"{begin}, {as_bytes(round(moved / count))} each: the messages count, not the bytes"
        return Verdict(
            MESSAGE_BOUND, why, ["--pack_bytes=auto has small variables and gradients travel together."]
        )
    if used >= BUSY_PS * cores or is_local and host_used(profiles) >= BUSY_HOST * cores:
        return Verdict(PS_CPU_BOUND, busy, _ps_advice(first, is_local))
    if line is not None and is_full:
        why = f"{begin}, as fast as loopback lets them: {100 * line.used:.0f}% of it ({line.way})"
        return Verdict(WIRE_BOUND, why, [ON_ONE_HOST, *_wire_advice(first)])
    use = "" if line is None else f", though no link is used to more than {100 * line.used:.0f}%"
    why = f"{begin}{use} and no ps is busy: each message takes its time"
    return Verdict(WIRE_BOUND, why, _delay_advice(first))


def _judge_wait(profiles: Sequence[Profile], share: str) -> Verdict:
    why = f"{share} waits for the gradients of other workers"
    advice = [
        "--replicas_to_aggregate=N, less than the workers, goes on without the last ones.",
        "--update=async has nobody wait.",
    ]
    waits = {profile.worker: profile.parts[WAIT] for profile in profiles}
    slow = min(profiles, key=lambda profile: profile.parts[WAIT])
    if len(waits) > 1 and slow.parts[WAIT] < STRAGGLER * statistics.fmean(waits.values()):
        shares = {name: value for name, value in group_shares([slow]).items() if name != WAIT}
        reason = max(shares, key=lambda name: shares[name])
        why += f"; {slow.worker} is the slow one, {reason} takes {100 * shares[reason]:.0f}% of its step"
        advice = [*judge([_without_wait(slow)]).advice[:1], *advice]
    return Verdict(WAIT_BOUND, why, advice)


def _without_wait(profile: Profile) -> Profile:
    """The profile as it would be if nobody were waited for."""
    step_secs = profile.step_secs - profile.parts[WAIT]
    return dataclasses.replace(
        profile, parts={**profile.parts, WAIT: 0.0}, step_secs=step_secs, least_wait_secs=0.0
    )


def host_used(profiles: Sequence[Profile]) -> float:
    """Processors that the workers and the ps tasks keep busy together."""
    ps = {name: figures.cores_used or 0.0 for profile in profiles for name, figures in profile.ps.items()}
    workers = statistics.fmean(profile.cores_used for profile in profiles)
    return sum(ps.values()) + workers * (profiles[0].settings.get("num_workers") or len(profiles))


def _update_in_wait(profiles: Sequence[Profile], profile: Profile) -> float:
    is_sync = profile.settings.get("update") == "sync"
    return min(min(p.least_wait_secs for p in profiles), profile.parts[WAIT]) if is_sync else 0.0


def _input_advice(profiles: Sequence[Profile]) -> list[str]:
    return [
        "In input_fn: map(..., num_parallel_calls=tf.data.AUTOTUNE), cache() before what is random, prefetch() last.",
        f"More workers (--num_workers, now {_num_workers(profiles)}), on hosts of their own, read in parallel.",
    ]


def _compute_advice(profiles: Sequence[Profile]) -> list[str]:
    lines = [
        f"More workers (--num_workers, now {_num_workers(profiles)}), on hosts of their own, compute in parallel."
    ]
    if (
        any(ps.is_local for ps in profiles[0].ps.values())
        and host_used(profiles) >= BUSY_HOST * profiles[0].cores
    ):
        lines.append(
            f"Here they share {profiles[0].cores} processors, all of them busy: more workers on this host do not help."
        )
    shares = group_shares(profiles)
    used = statistics.fmean(profile.cores_used for profile in profiles)
    if used < STARVED * shares[COMPUTE]:
        lines.append(
            f"A worker kept only {used:.1f} processors busy: other programs use this host, or an op sleeps, as a py_function may."
        )
    return lines


def _wire_advice(profile: Profile) -> list[str]:
    lines = (
        ["--wire_dtype=bfloat16 halves the bytes, int8 leaves a quarter."]
        if profile.settings.get("wire_dtype") == "float32"
        else []
    )
    return [
        *lines,
        *_more_ps(profile, "have a link each."),
        "A larger --batch_size computes more for the same bytes.",
    ]


def _ps_advice(profile: Profile, is_local: bool) -> list[str]:
    lines = _more_ps(profile, "share the work; a partitioner splits a large variable.")
    if is_local:
        lines.append(ON_ONE_HOST)
    return [*lines, "A larger --batch_size makes fewer updates for the same data."]


def _more_ps(profile: Profile, why: str) -> list[str]:
    if profile.settings.get("is_colocated"):
        return []
    return [f"More ps tasks (--num_ps, now {len(profile.ps)}), on hosts of their own, {why}"]


def _delay_advice(profile: Profile) -> list[str]:
    lines = ["A larger --batch_size has fewer steps do the same work."]
    if profile.settings.get("pack_bytes") == 0:
        lines.insert(0, "--pack_bytes=auto sends fewer messages.")
    if profile.settings.get("update") == "sync":
        lines.append("--update=async needs fewer round trips in a step.")
    return lines


def _num_workers(profiles: Sequence[Profile]) -> int:
    return profiles[0].settings.get("num_workers") or len(profiles)
