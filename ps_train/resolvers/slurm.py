"""The cluster and the task from what `srun` sets for each task of a job step.

    srun -n 4 python -m ps_train --num_ps=1      # 1 ps and 3 workers

`SLURM_STEP_NODELIST` and `SLURM_STEP_TASKS_PER_NODE` say how many tasks are on which node. A task's place is its node
(`SLURM_NODEID`) and its number there (`SLURM_LOCALID`), and not its rank: so the order in which srun numbers the tasks
(`--distribution`: block, cyclic, plane, arbitrary) does not matter. What a task knows of itself is held against the lists,
and a contradiction is refused.

The process of a batch script, of `salloc` and of `srun --pty` is not one of several tasks: `python -m ps_train` starts a
local cluster there. A batch script's has `SLURM_PROCID` and `SLURM_NTASKS`, too, so the step's own variables count.

Where all tasks are on one node they talk over loopback; on several, a node's name must be that of a host.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps_train.errors import UsageError
from ps_train.resolvers.launched import SRUN, Place, make_cluster, read_number
from ps_train.resolvers.node_lists import expand_counts, expand_nodes
from ps_train.resolvers.resolved import ClusterFlags, Resolved
from ps_train.wording import shown

RANK = "SLURM_PROCID"
SIZE = "SLURM_STEP_NUM_TASKS"
NODES = "SLURM_STEP_NODELIST"
COUNTS = "SLURM_STEP_TASKS_PER_NODE"
NODE = "SLURM_NODEID"
LOCAL = "SLURM_LOCALID"
NODE_NAME = "SLURMD_NODENAME"
_NEEDED = (RANK, SIZE, NODES, COUNTS, NODE, LOCAL)
_JOB_STRIDE = 37  # odd: neighbouring jobs, and the steps of one, begin at different blocks of ports


def is_step(env: Mapping[str, str]) -> bool:
    """Whether srun has started this process, alone or as one of several."""
    return RANK in env and SIZE in env


def is_one_of_several(env: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks of a step."""
    return is_step(env) and env[SIZE].strip() != "1"


def unused_nodes(env: Mapping[str, str]) -> str:
    """What to tell whoever starts a local cluster in a Slurm job of several nodes; "" elsewhere."""
    number = env.get("SLURM_JOB_NUM_NODES", "")
    if is_step(env) or not number.isdigit() or int(number) < 2:
        return ""
    return (
        f"This Slurm job has {number} nodes, and this is a local cluster, on this host alone. To train on all: srun python -m "
        "ps_train."
    )


def resolve(env: Mapping[str, str], flags: ClusterFlags) -> Resolved:
    """Raises `UsageError` with all problems."""
    missing = [name for name in _NEEDED if not env.get(name, "").strip()]
    if missing:
        where = "a batch script's own process" if "SLURM_JOB_ID" in env else "no task of srun"
        raise UsageError(
            f"--cluster_resolver=slurm: {', '.join(missing)} not set, so this is {where}. Put srun before the command, as "
            "srun -n 4 python -m ps_train, or leave --cluster_resolver out for a local cluster."
        )
    places, own = _read_places(env)
    return make_cluster(places, own, flags, SRUN, _job_number(env))


def _read_places(env: Mapping[str, str]) -> tuple[list[Place], Place]:
    """All tasks of the step, node by node, and this one."""
    problems: list[str] = []
    rank, node, local = (read_number(env[name], name, problems) for name in (RANK, NODE, LOCAL))
    size = read_number(env[SIZE], SIZE, problems, minimum=1)
    nodes, counts = [], []
    try:
        nodes = expand_nodes(env[NODES].strip())
    except ValueError as error:
        problems.append(f"{NODES}={shown(env[NODES])} {error}. Expected such as node[01-03,7].")
    try:
        counts = expand_counts(env[COUNTS].strip())
    except ValueError as error:
        problems.append(f"{COUNTS}={shown(env[COUNTS])} {error}. Expected such as 2(x3),1.")
    if not problems:
        problems = _contradictions(env, nodes, counts, (rank, size, node, local))
    if problems:
        raise UsageError.from_problems(problems)
    hosts = nodes if len(nodes) > 1 else ["127.0.0.1"]
    places = [Place(host, index) for host, count in zip(hosts, counts, strict=True) for index in range(count)]
    return places, Place(hosts[node], local)


def _contradictions(
    env: Mapping[str, str], nodes: list[str], counts: list[int], own: tuple[int, int, int, int]
) -> list[str]:
    """A line for each way in which the variables do not fit together."""
    rank, size, node, local = own
    found = []
    lists = f"{NODES}={shown(env[NODES])} and {COUNTS}={shown(env[COUNTS])}"
    if len(set(nodes)) != len(nodes):
        found.append(f"{NODES}={shown(env[NODES])} has a node twice. Expected each node once.")
    if len(nodes) != len(counts) or sum(counts) != size:
        found.append(
            f"{lists} stand for {len(nodes)} nodes and {sum(counts)} tasks on {len(counts)}, but {SIZE} is {size}."
        )
    elif rank >= size:
        found.append(f"{RANK} is {rank}. Expected less than {SIZE}, {size}.")
    elif node >= len(nodes) or local >= counts[node]:
        found.append(f"{NODE}={node} and {LOCAL}={local} are not in {lists}.")
    elif env.get(NODE_NAME, nodes[node]) != nodes[node]:
        found.append(f"{NODE_NAME} is {env[NODE_NAME]}, but node {node} of {lists} is {nodes[node]}.")
    if found:
        found[-1] += " Is this one step of one job? Name the tasks by --job_name and lists of hosts if not."
    return found


def _job_number(env: Mapping[str, str]) -> int:
    problems: list[str] = []
    job, step = (read_number(env.get(name), name, problems) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _JOB_STRIDE * job + step
