"""What a task that completes no step is waiting for: a pure function from evidence to text.

    evidence = Evidence(own="worker:0", chief="worker:0", secs=30.0, step=312, servers=(...), peers=(...), ...)
    conclude(evidence)     # "waiting for worker:1, which has not given its gradient for step 313 and was last heard ..."
    explain(evidence)      # all of it, line by line, the conclusion last

`stall_watch` collects the evidence. What is looked at, in this order, and the first that explains the wait is the conclusion:

1. a ps that does not answer its board;
2. where the main thread is: making a session, saving a checkpoint, in code of the user's outside of `session.run`;
3. sync: the ledger, whether the round waits for the chief or for other workers' gradients; with --max_lead the slowest;
4. this task's own input, if a Python function of it has not returned, or if all else has an alibi;
5. this task's own computation, if its process is busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ps_train.cluster import ENDED
from ps_train.stacks import Stack
from ps_train.updates.standing import LeadStanding, Standing

SILENT_SECS = 3.0  # a record changes twice a second
BUSY_CORES = 0.3
MAX_NAMED = 4
COLLECTIVE = "waiting in the all-reduce"


class Server(NamedTuple):
    """A ps as this task sees it: `reason` says why the last call failed."""

    name: str
    address: str
    is_up: bool
    reason: str = ""


class Peer(NamedTuple):
    """A training task's record: `age_secs` since it changed, `stall` its own conclusion if it completes no step either."""

    name: str
    state: str = ""
    age_secs: float = math.inf
    step: int | None = None
    stall: str = ""
    reason: str = ""


class Evidence(NamedTuple):
    """What could be found out about a stall.

    Attributes:
      own, chief: names of this task and of the chief.
      secs: since the last step was completed, or since the session was made.
      step: global step after this task's last step, or when the session was made.
      is_first: whether this task has not completed a step yet.
      servers, peers: the ps tasks; the other training tasks.
      standings: sync: where the open round of each optimizer stands; empty in async, or if it could not be read.
      lead: with --max_lead: who is how far; None if it could not be read.
      gradients: sync: gradients in each accumulator.
      notes: what could not be found out, and why.
      is_loop_there: on the chief of a sync job, whether its update loop runs; None elsewhere.
      stack: where the main thread is.
      queues: names of queues on the ps tasks that are the model's own, such as those of TensorFlow's own SyncReplicasOptimizer.
      calls: places of the Python functions that did not return while the evidence was collected.
      waits_for_pieces: whether this task's work queue has nothing to take for now.
      cores: how many cores this process kept busy meanwhile.
      is_all_reduced: whether each step has a collective of all tasks, whose addresses are those of `servers`.
      tells_ages: whether the text will be read at once, so that it can say how long ago something was.
    """

    own: str
    chief: str
    secs: float
    step: int | None
    is_first: bool = False
    servers: Sequence[Server] = ()
    peers: Sequence[Peer] = ()
    standings: Sequence[Standing] = ()
    lead: LeadStanding | None = None
    gradients: Sequence[int] = ()
    notes: Sequence[str] = ()
    is_loop_there: bool | None = None
    stack: Stack = Stack("session", "", ())
    queues: Sequence[str] = ()
    calls: Sequence[str] = ()
    waits_for_pieces: bool = False
    cores: float = 0.0
    is_all_reduced: bool = False
    tells_ages: bool = True

    @property
    def next_step(self) -> str:
        """The step that does not come, in words."""
        return f"step {(self.step or 0) + 1}"


def explain(evidence: Evidence) -> list[str]:
    """The lines to log: what is known, and the conclusion last."""
    since = "the session was made, at" if evidence.is_first else "this task's last, to"
    lines = [
        f"no step for {evidence.secs:.0f} s since {since} global step {evidence.step or 0}. What is known, told once for "
        "each such wait:"
    ]
    for standing in evidence.standings:
        lines.append(f"  round for {evidence.next_step}: {describe_round(standing)}")
        lines.append(f"  tokens here: {standing.tokens.get(evidence.own, 0)}")
    if evidence.lead is not None:
        lines.append(f"  steps: {_names(f'{name} {steps}' for name, steps in evidence.lead.steps.items())}")
    if evidence.gradients:
        lines.append(f"  accumulators: {_count_gradients(evidence.gradients)}")
    if evidence.is_loop_there is not None:
        lines.append(f"  the chief's update loop {'runs' if evidence.is_loop_there else 'is not there'}")
    servers = [server for server in evidence.servers if not (evidence.is_all_reduced and server.is_up)]
    if servers:
        lines.append("  " + "; ".join(_describe_server(server) for server in servers))
    lines += [f"  {line}" for line in _describe_peers(evidence)]
    lines += [f"  {note}" for note in evidence.notes]
    lines.append(f"  this process keeps {evidence.cores:.1f} cores busy; its main thread:")
    lines += [f"    {line}" for line in evidence.stack.lines]
    lines += [f"  a Python function that was called by TensorFlow: {call}" for call in evidence.calls]
    return [*lines, f"  so: {conclude(evidence)}"]


def conclude(evidence: Evidence) -> str:
    """What the task waits for, in one sentence without a full stop."""
    down = [server for server in evidence.servers if not server.is_up]
    if down:
        return ", and ".join(
            f"{s.name} at {s.address} does not answer: {s.reason or 'no reason'}" for s in down
        )
    if evidence.stack.place == "bring-up":
        return "the session is being made anew"
    if evidence.stack.place == "saving":
        return "this task is saving a checkpoint"
    if evidence.stack.place == "code":
        where = evidence.stack.innermost or (evidence.stack.lines or ("?",))[-1]
        return f"this task is not in session.run but in code of its own: {where}"
    for standing in evidence.standings:
        reason = _conclude_round(standing, evidence)
        if reason:
            return reason
    lead = evidence.lead
    if lead is not None and evidence.own in lead.waiting:
        named = [f"{name}, which {_heard(evidence, name)}" for name in lead.slowest[:MAX_NAMED]]
        behind = lead.steps[evidence.own] - min(lead.steps.values())
        return f"as far ahead as it may be (--max_lead), {behind} steps, of {', of '.join(named)}"
    return _conclude_own(evidence)


def _conclude_round(standing: Standing, evidence: Evidence) -> str:
    """Why the round does not complete, unless that is this task's own doing."""
    step = evidence.next_step
    chief = f"the chief, {evidence.chief}"
    if evidence.chief != evidence.own:
        chief += f", which {_heard(evidence, evidence.chief)},"
    if standing.is_torn:
        return f"a worker was lost halfway through its push, and {chief} has to have the round done again"
    if standing.is_updating:
        return f"the update of {step} was begun on the ps tasks, by {chief.rstrip(',')}, and is not over"
    if len(standing.arrived) >= standing.needed > 0:
        if standing.is_paused:
            return f"{chief} holds the update of {step} back while it saves a checkpoint"
        return f"all gradients for {step} are there, but {chief} does not apply them"
    owing = standing.owing
    if evidence.own in owing:
        is_on_its_way = evidence.own in standing.claimed
        return f"this task's gradient for {step} is on its way to the ps tasks" if is_on_its_way else ""
    return _waiting_for(owing, evidence) if owing else ""


def _waiting_for(owing: Sequence[str], evidence: Evidence) -> str:
    if len(owing) == 1:
        return (
            f"waiting for {owing[0]}, which has not given its gradient for {evidence.next_step} and "
            f"{_heard(evidence, owing[0])}"
        )
    named = [f"{name}, which {_heard(evidence, name)}" for name in owing[:MAX_NAMED]]
    named += [f"{len(owing) - MAX_NAMED} more"] if len(owing) > MAX_NAMED else []
    return f"waiting for the gradients for {evidence.next_step} of {', of '.join(named)}"


def _conclude_own(evidence: Evidence) -> str:
    if evidence.waits_for_pieces:
        return "waiting for pieces of the data that other workers have in hand: none is left to take (--input=workqueue)"
    if evidence.calls:
        return f"this worker's own input gives no data: {evidence.calls[0]} has not returned"
    if evidence.cores >= BUSY_CORES:
        return (
            f"this worker computes, {evidence.cores:.1f} cores being busy: if a step of the model takes that long, "
            "all is well"
        )
    if evidence.is_all_reduced:
        return _conclude_collective(evidence)
    if evidence.queues:
        return (
            f"this worker waits at a queue of the model's on the ps tasks ({_names(evidence.queues)}) or for its own input: "
            "every ps answers, and this process is idle"
        )
    return (
        "this worker's own input gives no data, as it seems: every ps answers, no other task is waited for, and this "
        "process is idle"
    )


def _conclude_collective(evidence: Evidence) -> str:
    """Whom an all-reduce waits for: those that do not say that they wait for others, too."""
    others = [peer for peer in evidence.peers if COLLECTIVE not in peer.stall]
    if not others:
        return f"{COLLECTIVE} of {evidence.next_step}, as all other workers do"
    named = [f"{peer.name}, which {_heard(evidence, peer.name)}" for peer in others[:MAX_NAMED]]
    return f"{COLLECTIVE} of {evidence.next_step}, of {', of '.join(named)}; or for its own input"


def _heard(evidence: Evidence, name: str) -> str:
    """What is known of another task, to follow "which"."""
    peer = next((peer for peer in evidence.peers if peer.name == name), Peer(name))
    if not peer.state:
        return "has not been heard of"
    if peer.state in ENDED:
        return f"has ended ({peer.reason or peer.state})"
    if peer.age_secs > SILENT_SECS:
        return f"was last heard of {peer.age_secs:.0f} s ago" if evidence.tells_ages else "is silent"
    if peer.stall:
        return f"is alive and says: {peer.stall}"
    return "is alive" if peer.state == "training" else f"is alive ({peer.state})"


def describe_round(standing: Standing) -> str:
    """Who has given a gradient to the open round and who owes one, as `1 of 2 gradients; given by ..., owed by ...`."""
    count = f"{len(standing.arrived)} of {standing.needed} gradients"
    parts = [f"given by {_names(standing.arrived)}"] if standing.arrived else []
    on_the_way = [name for name in standing.claimed if name not in standing.arrived]
    parts += [f"on the way from {_names(on_the_way)}"] if on_the_way else []
    owing = [name for name in standing.owing if name not in on_the_way]
    parts += [f"owed by {_names(owing)}"] if owing else []
    parts += [f"to join later: {_names(standing.pending)}"] if standing.pending else []
    flags = {
        "update called for and not begun": standing.num_rung > 0,
        "update running": standing.is_updating,
        "updates held back": standing.is_paused,
        "to be done again": standing.is_torn,
    }
    return "; ".join([count, *parts, *(text for text, is_so in flags.items() if is_so)])


def _count_gradients(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"{number} {'gradient' if high == 1 else 'gradients'} in each of {len(counts)}"


def _describe_server(server: Server) -> str:
    return f"{server.name} {'answers' if server.is_up else f'does not answer: {server.reason}'}"


def _describe_peers(evidence: Evidence) -> list[str]:
    """A line for each peer that is not simply at work, and one for all that are."""
    owing = {name for standing in evidence.standings for name in standing.owing}
    lines, at_work = [], []
    for peer in evidence.peers:
        heard = _heard(evidence, peer.name)
        if heard == "is alive" and peer.name not in owing:
            at_work.append(f"{peer.name} at step {peer.step}")
            continue
        known = f" ({peer.state} at step {peer.step})" if peer.step is not None else ""
        lines.append(f"{peer.name}{known} {heard}")
    return lines + ([f"alive: {_names(at_work)}"] if at_work else [])


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = [f"and {len(names) - 2 * MAX_NAMED} more"] if len(names) > 2 * MAX_NAMED else []
    return ", ".join([*names[: 2 * MAX_NAMED], *more])
