"""What a job's steps wait for, in words, and the flag that would help: rules on the figures of `profile`, nothing else.

    verdict = judge(profiles)                # a Profile of each worker that has one
    verdict.kind                             # 'wire-bound'
    verdict.lines()                          # for people

1. The parts of a step are put together in five groups, as shares of the step, on an average of the workers: input, compute,
   transfer (pull, push and the update on the ps), waiting for others, and the rest. The largest group names the verdict.
2. In sync the update is made while the workers wait. What the least of all waits took is the update; only what is beyond it is
   waiting for others.
3. A transfer is slow for one of these reasons, looked for in this order: most of its time is the update's; a link is full
   (FULL_LINK); there are very many small messages (SMALL_MESSAGE_BYTES, MANY_MESSAGES) that a flag would join; the processors of a ps
   are busy (BUSY_PS), or those of a host that has all tasks (BUSY_HOST); loopback, which is no link, is full; else it is the delay of
   each message, wire-bound if they are large.
4. With --colocate_ps the processors of a ps are those of its worker, counted once, and busy when those of a host would be. Its link is
   used by the other workers alone.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.choices import BUCKET_BYTES
from ps_train.profile import Profile
from ps_train.step_trace import INPUT, PULL, PUSH, UPDATE, WAIT
from ps_train.timeline import COMPUTE, OTHER
from ps_train.wording import LOPSIDED, as_bytes, imbalance

# Of what the probe's single large tensor got: real traffic, which starts and ends and meets that of others, gets no more.
FULL_LINK = 0.6
# On loopback, 4 KB and 16 KB messages take about as long as empty ones; from some 10 of them on packing pays.
SMALL_MESSAGE_BYTES = 16 * 1024
MANY_MESSAGES = 20
# Pulled from one ps. The smallest variable that --partition=auto splits, of 8 MiB, has as many in 8 bits.
SPLIT_BYTES = 2 * 2**20
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

LARGER_BATCH = "A larger --batch_size computes more for the same bytes."


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
    for profile in profiles:
        parts, inside = profile.parts, _update_in_wait(profiles, profile)
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
      used: over the probe's rate, the larger of the rate while something is under way, and that of all workers who use it on an
        average. In sync they all pull at the same time, so that the first is that of all of them, too.
    """

    ps: str
    way: str
    used: float


def fullest_line(profiles: Sequence[Profile]) -> Line | None:
    """The one that is used most, or None if none was probed."""
    lines = []
    for profile in profiles:
        num_others = profile.settings.num_workers - profile.settings.is_colocated
        together = num_others if profile.settings.is_sync else 1
        for name, ps in profile.ps.items():
            steps_per_sec = sum(_rates_over_link(profile, name)) or profile.steps_per_sec
            for way, num_bytes, rate, limit in (
                (PULL, ps.traffic.pulled_bytes, together * ps.pull_rate, ps.link_pull_rate),
                (PUSH, ps.traffic.pushed_bytes, ps.push_rate, ps.link_push_rate),
            ):
                if limit:
                    lines.append(Line(name, way, max(rate, num_bytes * steps_per_sec) / limit))
    return max(lines, key=lambda line: line.used, default=None)


def _rates_over_link(profile: Profile, ps: str) -> list[float]:
    """Steps a second of each worker that is not the ps itself; with --colocate_ps the n-th worker is ps:n."""
    tasks = sorted(profile.rates, key=lambda name: (name.partition(":")[0], int(name.partition(":")[2])))
    is_known = profile.settings.is_colocated and len(tasks) == profile.settings.num_workers
    own = tasks[int(ps.partition(":")[2])] if is_known else None
    return [profile.rates[task] for task in tasks if task != own]


def _judge_transfer(profiles: Sequence[Profile], share: str) -> Verdict:
    first = profiles[0]
    all_ps = [ps for profile in profiles for ps in profile.ps.values()]
    is_local = bool(all_ps) and all(ps.is_local for ps in all_ps)
    line = fullest_line(profiles)
    num_senders = (
        sum(bool(profile.ps) for profile in profiles) or 1
    )  # one that holds all itself sends nothing
    moved = sum(ps.traffic.pulled_bytes + ps.traffic.pushed_bytes for ps in all_ps) / num_senders
    count = sum(ps.traffic.pull_messages + ps.traffic.push_messages for ps in all_ps) / num_senders
    begin = f"{share} moves {as_bytes(round(moved))} in {count:.0f} messages and applies them"
    begin = begin if count else f"{share} applies gradients"
    holder = busiest_holder(profiles)
    busy = f"{begin}, and {holder.name} keeps {holder.used:.1f} of {holder.cores} processors busy"
    busy += f", all tasks here {host_used(profiles):.1f}" if is_local else ""
    update = statistics.fmean(p.parts[UPDATE] + _update_in_wait(profiles, p) for p in profiles)
    if update > statistics.fmean(p.parts[PULL] + p.parts[PUSH] for p in profiles):
        advice = [*_fuse_advice(first), *_ps_advice(profiles, is_local)]
        return Verdict(PS_CPU_BOUND, f"{busy}; most of that is the update", advice)
    is_full = line is not None and line.used >= FULL_LINK
    if line is not None and is_full and not is_local:
        why = f"{begin}, and the link of {line.ps} is used to {100 * line.used:.0f}% ({line.way})"
        return Verdict(WIRE_BOUND, why, _wire_advice(profiles))
    joining = _joining_advice(first)
    if joining and count >= MANY_MESSAGES and moved / count <= SMALL_MESSAGE_BYTES:
        why = f"{begin}, {as_bytes(round(moved / count))} each: the messages count, not the bytes"
        return Verdict(MESSAGE_BOUND, why, joining)
    if holder.is_busy or is_local and host_used(profiles) >= BUSY_HOST * holder.cores:
        return Verdict(PS_CPU_BOUND, busy, _ps_advice(profiles, is_local))
    if line is not None and is_full:
        why = f"{begin}, as fast as loopback lets them: {100 * line.used:.0f}% of it ({line.way})"
        advice = [*_one_host_advice(first), *_spread_advice(profiles, "have a link each"), LARGER_BATCH]
        return Verdict(WIRE_BOUND, why, advice)
    use = "" if line is None else f", though no link is used to more than {100 * line.used:.0f}%"
    why = f"{begin}{use} and no ps is busy: each message takes its time"
    is_small = 0 < moved <= count * SMALL_MESSAGE_BYTES
    return Verdict(MESSAGE_BOUND if is_small else WIRE_BOUND, why, _delay_advice(first, is_local))


class Holder(NamedTuple):
    """A process that holds variables.

    Attributes:
      name: as it is spoken of.
      used, cores: processors that it keeps busy, and that it may use.
      limit: of its processors, from which on it is busy.
    """

    name: str
    used: float
    cores: int
    limit: float

    @property
    def is_busy(self) -> bool:
        """Whether what goes to it has to wait for its processors."""
        return self.used >= self.limit * self.cores


def busiest_holder(profiles: Sequence[Profile]) -> Holder:
    """The one that is nearest to its limit. A worker that is a ps, too, computes with the same processors."""
    is_colocated = profiles[0].settings.is_colocated
    name, limit = ("a worker with its ps", BUSY_HOST) if is_colocated else ("a ps", BUSY_PS)
    found = [(ps.cores_used or 0.0, ps.cores or 1) for profile in profiles for ps in profile.ps.values()]
    if is_colocated:
        found += [(profile.cores_used, profile.cores) for profile in profiles]
    used, cores = max(found, key=lambda pair: pair[0] / pair[1], default=(0.0, 1))
    return Holder(name, used, cores, limit)


def _judge_wait(profiles: Sequence[Profile], share: str) -> Verdict:
    why = f"{share} waits for the gradients of other workers"
    advice = [*_quorum_advice(profiles[0]), "--update=async has nobody wait."]
    waits = {profile.worker: profile.parts[WAIT] for profile in profiles}
    slow = min(profiles, key=lambda profile: profile.parts[WAIT])
    if len(waits) > 1 and slow.parts[WAIT] < STRAGGLER * statistics.fmean(waits.values()):
        shares = {name: value for name, value in group_shares([slow]).items() if name != WAIT}
        reason = max(shares, key=lambda name: shares[name])
        why += f"; {slow.worker} is the slow one, {reason} takes {100 * shares[reason]:.0f}% of its step"
        advice = [*judge([_without_wait(slow)]).advice[:1], *advice]
    return Verdict(WAIT_BOUND, why, advice)


def _quorum_advice(profile: Profile) -> list[str]:
    quorum = profile.settings.quorum
    return (
        [f"--replicas_to_aggregate=N, less than {quorum}, goes on without the last ones."]
        if quorum > 1
        else []
    )


def _without_wait(profile: Profile) -> Profile:
    """The profile as it would be if nobody were waited for."""
    step_secs = profile.step_secs - profile.parts[WAIT]
    return dataclasses.replace(
        profile, parts={**profile.parts, WAIT: 0.0}, step_secs=step_secs, least_wait_secs=0.0
    )


def host_used(profiles: Sequence[Profile]) -> float:
    """Processors that the workers and the ps tasks keep busy together, each process counted once."""
    settings = profiles[0].settings
    workers = statistics.fmean(profile.cores_used for profile in profiles) * settings.num_workers
    if settings.is_colocated:
        return workers
    ps = {name: figures.cores_used or 0.0 for profile in profiles for name, figures in profile.ps.items()}
    return workers + sum(ps.values())


def fullest_ps(profiles: Sequence[Profile]) -> str | None:
    """The ps that sends so much more than the others that a large variable must be the reason, if there is one.

    More than what the first one holds by itself on purpose (--first_ps_bytes).
    """
    pulled: dict[str, list[float]] = {}
    for profile in profiles:
        for name, ps in profile.ps.items():
            pulled.setdefault(name, []).append(ps.traffic.pulled_bytes)
    sizes = {name: statistics.fmean(each) for name, each in pulled.items()}
    settings = profiles[0].settings
    num_unused = 0 if settings.is_colocated else settings.num_ps - len(sizes)
    if imbalance([*sizes.values(), *[0.0] * num_unused]) < LOPSIDED:
        return None
    fullest = max(sizes, key=lambda name: sizes[name])
    return fullest if sizes[fullest] - settings.first_ps_bytes >= SPLIT_BYTES else None


def _update_in_wait(profiles: Sequence[Profile], profile: Profile) -> float:
    """What of a worker's wait is the update; without other workers there is nothing else to wait for."""
    if not profile.settings.is_sync:
        return 0.0
    least = min(p.least_wait_secs for p in profiles)
    return profile.parts[WAIT] if profile.settings.num_workers == 1 else min(least, profile.parts[WAIT])


def _input_advice(profiles: Sequence[Profile]) -> list[str]:
    return [
        "In input_fn: map(..., num_parallel_calls=tf.data.AUTOTUNE), cache() before what is random, prefetch() last.",
        f"More workers (--num_workers, now {profiles[0].settings.num_workers}), on hosts of their own, read in parallel.",
    ]


def _compute_advice(profiles: Sequence[Profile]) -> list[str]:
    lines = [
        f"More workers (--num_workers, now {profiles[0].settings.num_workers}), on hosts of their own, compute in parallel."
    ]
    if (
        any(ps.is_local for profile in profiles for ps in profile.ps.values())
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


def _wire_advice(profiles: Sequence[Profile]) -> list[str]:
    settings = profiles[0].settings
    lines = (
        ["--wire_dtype=bfloat16 halves the bytes, int8 leaves a quarter."]
        if settings.wire_dtype == "float32"
        else []
    )
    return [
        *lines,
        *_prefetch_advice(profiles[0]),
        *_spread_advice(profiles, "have a link each"),
        LARGER_BATCH,
    ]


def _ps_advice(profiles: Sequence[Profile], is_local: bool) -> list[str]:
    lines = _spread_advice(profiles, "share the work")
    if is_local:
        lines += _one_host_advice(profiles[0])
    return [*lines, "A larger --batch_size makes fewer updates for the same data."]


def _one_host_advice(profile: Profile) -> list[str]:
    """Fewer bits are none: what they save in copying they cost in arithmetic, on some machines a little more and on some less."""
    if profile.settings.is_colocated:
        return [ON_ONE_HOST]
    return [
        ON_ONE_HOST,
        "--colocate_ps has the workers hold the variables: what one reads of its own does not travel.",
    ]


def _spread_advice(profiles: Sequence[Profile], why: str) -> list[str]:
    """How more ps tasks, or those that there are, take what one has now."""
    settings, fullest = profiles[0].settings, fullest_ps(profiles)
    is_whole = settings.partition == "none"
    lines = []
    if fullest is not None:
        how = "--partition=auto" if is_whole else "A partitioner of yours"
        lines.append(
            f"{fullest} sends much more than the others. {how} splits a large variable, for hosts of their own."
        )
    if not settings.is_colocated:
        more = f"More ps tasks (--num_ps, now {settings.num_ps}), on hosts of their own, {why}"
        split = "; --partition=auto splits a large variable" if is_whole and fullest is None else ""
        lines.append(f"{more}{split}.")
    return lines


def _joining_advice(profile: Profile) -> list[str]:
    """What would have more travel together than does now."""
    lines = []
    if profile.settings.pack_bytes < SMALL_MESSAGE_BYTES:
        lines.append("--pack_bytes=auto has small variables and gradients travel together.")
    if profile.settings.bucket_bytes < SMALL_MESSAGE_BYTES:
        lines.append(
            f"--bucket_bytes={BUCKET_BYTES}, the default, has more travel together than {profile.settings.bucket_bytes}."
        )
    return lines


def _fuse_advice(profile: Profile) -> list[str]:
    if profile.settings.fuse_bytes:
        return []
    return ["--fuse_bytes=auto keeps small variables that are updated alike as one, with one update."]


def _prefetch_advice(profile: Profile) -> list[str]:
    if profile.settings.is_sync or profile.settings.prefetch:
        return []
    return [
        "--prefetch pulls the next step's variables while this one goes on; each gradient lacks the worker's own last update."
    ]


def _delay_advice(profile: Profile, is_local: bool) -> list[str]:
    lines = [*_joining_advice(profile), *([] if is_local else _prefetch_advice(profile))]
    lines.append("A larger --batch_size has fewer steps do the same work.")
    if profile.settings.is_sync:
        lines.append("--update=async needs fewer round trips in a step.")
    return lines
