"""A cluster out of the tasks that `srun` or `mpirun` has started: which is a ps, which a worker, and at which port.

>>> places = [Place("n0", 0), Place("n0", 1), Place("n1", 0), Place("n1", 1)]
>>> found = make_cluster(places, places[2], ClusterFlags(num_ps=2, port_base=2222), SRUN)
>>> str(found.task), found.cluster.as_dict()
('ps:1', {'ps': {0: 'n0:2222', 1: 'n1:2222'}, 'worker': {0: 'n0:2223', 1: 'n1:2223'}})

Every task gets the same list of places and computes the same cluster from it; nothing is agreed upon over the network.

1. The ps tasks are the first on each host, host after host, then the second on each, until there are --num_ps. So each
   has a host of its own while there are hosts: its host's link is what limits a ps.
2. All others are workers, in the order of the places. Worker 0 is the chief. With --colocate_ps all are workers.
3. A task listens at --port_base + its number on its host. By default that begins at one of 256 blocks of 64 ports, by the
   job's number, so that two jobs that share a host do not meet; all are below the ports that Linux gives to outgoing
   connections.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.cluster import FROM_MPIRUN, FROM_SRUN, Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.resolvers.resolved import ClusterFlags, Resolved, size_problems
from ps_train.wording import counted

FIRST_PORT = 15_000
NUM_BLOCKS = 256
BLOCK = 64
MAX_PORT = 65_535


class Place(NamedTuple):
    """One task's host and its number among the tasks there, from 0."""

    host: str
    local_index: int


class Launcher(NamedTuple):
    """`program` started the tasks, `count_flag` says how many; `resolver` and `source` are our words for it."""

    program: str
    count_flag: str
    resolver: str
    source: str


SRUN = Launcher("srun", "-n", "slurm", FROM_SRUN)
MPIRUN = Launcher("mpirun", "-np", "mpi", FROM_MPIRUN)


def make_cluster(
    places: Sequence[Place], own: Place, flags: ClusterFlags, launcher: Launcher, job_number: int = 0
) -> Resolved:
    """The cluster of all `places`, and the task that is at `own`; raises `UsageError` with all problems of the flags."""
    problems = flag_problems(len(places), flags, launcher)
    width = max(place.local_index for place in places)
    base = flags.port_base
    if base is None:
        base = port_base_of(job_number)
    elif not 1 <= base <= MAX_PORT - width:
        problems.append(
            f"--port_base={base} is out of range for hosts with up to {width + 1} tasks, which take a port each from there on. "
            f"Expected a whole number from 1 to {MAX_PORT - width}."
        )
    if problems:
        raise UsageError.from_problems(problems)
    jobs = divide(places, flags.wanted_ps)
    hosts = {
        job: [f"{place.host}:{base + place.local_index}" for place in members]
        for job, members in jobs.items()
    }
    cluster = Cluster.from_dict(hosts, launcher.source, flags.colocate_ps)
    job = "ps" if own in jobs["ps"] else "worker"
    return Resolved(cluster, TaskId(job, jobs[job].index(own)))


def divide(places: Sequence[Place], num_ps: int) -> dict[str, list[Place]]:
    """The places of each job."""
    by_turns = sorted(places, key=lambda place: place.local_index)  # the hosts stay in their order
    ps = by_turns[:num_ps]
    taken = set(ps)
    return {"ps": ps, "worker": [place for place in places if place not in taken]}


def flag_problems(num_tasks: int, flags: ClusterFlags, launcher: Launcher) -> list[str]:
    """A line for each flag that the launcher's tasks contradict."""
    program, more = launcher.program, f"{launcher.program} {launcher.count_flag}"
    problems = []
    if flags.is_given:
        problems.append(
            f"--{', --'.join(flags.names_given)} beside --cluster_resolver={launcher.resolver}, which gives the tasks of "
            f"{program} their jobs and hosts. Leave one of the two out."
        )
    wrong_sizes = size_problems(flags)
    problems += wrong_sizes
    num_ps = flags.wanted_ps
    if wrong_sizes:
        return problems
    if num_tasks <= num_ps:
        started = f"{program} has started {counted(num_tasks, 'task')}, of which --num_ps={num_ps}"
        problems.append(
            f"{started} would be ps, and none is left to be a worker. Start more ({more} {num_ps + 2}), ask for fewer "
            "ps, or add --colocate_ps."
        )
    elif flags.num_workers not in (None, num_tasks - num_ps):
        problems.append(
            f"--num_workers={flags.num_workers} contradicts {program}, which has started {num_tasks} tasks, of which "
            f"{num_tasks - num_ps} would be workers. Leave it out, or start {num_ps + (flags.num_workers or 0)} ({more} "
            f"{num_ps + (flags.num_workers or 0)})."
        )
    return problems


def port_base_of(job_number: int) -> int:
    """The first port of a job that was given none."""
    return FIRST_PORT + BLOCK * (job_number % NUM_BLOCKS)


def number_of(text: str) -> int:
    """A job's number from its name, the same in every process."""
    return zlib.crc32(text.encode())


def read_number(env_value: str | None, name: str, problems: list[str], minimum: int = 0) -> int:
    """A variable's whole number; `minimum`, and a line in `problems`, if it has none."""
    text = (env_value or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum:
        return int(text)
    problems.append(f"{name} is {env_value!r:.60}. Expected a whole number from {minimum}.")
    return minimum
