"""The cluster and the task from what `mpirun` sets for each rank: Open MPI's, MPICH's, Intel's, MVAPICH's.

    mpirun -np 4 python -m ps_train --num_ps=1      # 1 ps and 3 workers

| launcher | rank, number of ranks | of these on this host |
|---|---|---|
| Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_SIZE` |
| MVAPICH | `MV2_COMM_WORLD_RANK`, `_SIZE` | `MV2_COMM_WORLD_LOCAL_SIZE` |
| MPICH, Intel MPI (Hydra) | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALNRANKS` |

Where all ranks are on this host they talk over loopback. No launcher tells a rank which hosts the others are on, so with
several they tell each other their hosts' names, once, through MPI itself: that needs mpi4py, and nothing else here does.
`MPI_Finalize` is called right after it, so that a rank ends as any other process.

In a Slurm step, `PMI_RANK` without Hydra's variables is one of `srun --mpi=pmi2`, whose ranks are Slurm's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ps_train.errors import UsageError
from ps_train.resolvers import slurm
from ps_train.resolvers.launched import MPIRUN, Place, make_cluster, number_of, read_number
from ps_train.resolvers.resolved import ClusterFlags, Resolved

_JOB_NAMES = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class Variables(NamedTuple):
    """The names of one launcher's."""

    rank: str
    size: str
    local_size: str


OPEN_MPI = Variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
MVAPICH = Variables("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
HYDRA = Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


def find_variables(env: Mapping[str, str]) -> Variables | None:
    """Those of the launcher that has started this process; None if there is none."""
    for names in (OPEN_MPI, MVAPICH, HYDRA):
        if names.rank in env and names.size in env:
            is_srun = names is HYDRA and HYDRA.local_size not in env and slurm.is_step(env)
            return None if is_srun else names
    return None


def is_one_of_several(env: Mapping[str, str]) -> bool:
    """Whether this process is one of several ranks."""
    names = find_variables(env)
    return names is not None and env[names.size].strip() != "1"


def check_is_known(env: Mapping[str, str]) -> None:
    """Raises `UsageError` for a rank of a launcher that does not tell how many there are."""
    if "PMIX_RANK" in env and find_variables(env) is None and not slurm.is_step(env):
        raise UsageError(
            f"PMIX_RANK={env['PMIX_RANK']} says that a launcher has started this process, but not of how many ranks it is one. "
            "Start the ranks by mpirun or srun, or name the task by --job_name and the lists of hosts; --cluster_resolver=flags "
            "alone is a local cluster."
        )


def resolve(
    env: Mapping[str, str], flags: ClusterFlags, gather: Callable[[], list[str]] | None = None
) -> Resolved:
    """Raises `UsageError` with all problems.

    Args:
      env: the environment.
      flags: what is given beside it.
      gather: gives the host of each rank; called only if they are on several. None: by mpi4py.
    """
    names = find_variables(env)
    if names is None:
        raise UsageError(
            f"--cluster_resolver=mpi: {OPEN_MPI.rank} and {OPEN_MPI.size}, or {HYDRA.rank} and {HYDRA.size}, not set, so this "
            "is no rank of mpirun. Put mpirun before the command, as mpirun -np 4 python -m ps_train, or leave "
            "--cluster_resolver out for a local cluster."
        )
    problems: list[str] = []
    rank = read_number(env[names.rank], names.rank, problems)
    size = read_number(env[names.size], names.size, problems, minimum=1)
    local_size = size if size == 1 else 0
    if names.local_size in env:
        local_size = read_number(env[names.local_size], names.local_size, problems, minimum=1)
    if not problems and rank >= size:
        problems.append(f"{names.rank} is {rank}. Expected less than {names.size}, {size}.")
    if problems:
        raise UsageError.from_problems(problems)
    hosts = ["127.0.0.1"] * size if local_size == size else (gather or gather_hosts)()
    _check_hosts(hosts, rank, size, local_size)
    places = [Place(host, hosts[:index].count(host)) for index, host in enumerate(hosts)]
    job = next((env[name] for name in _JOB_NAMES if env.get(name)), "")
    return make_cluster(places, places[rank], flags, MPIRUN, number_of(job))


def gather_hosts() -> list[str]:
    """The name of each rank's host, told through MPI; every rank must call it, once. Raises `UsageError`."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"The ranks of mpirun are on several hosts, and to tell each other which they need mpi4py: {error}. pip install mpi4py, "
            "start the tasks by srun, or name them by --job_name and the lists of hosts."
        ) from None
    MPI.Init()
    try:
        return list(MPI.COMM_WORLD.allgather(socket.gethostname()))
    finally:
        MPI.Finalize()


def _check_hosts(hosts: list[str], rank: int, size: int, local_size: int) -> None:
    if len(hosts) != size:
        raise UsageError(
            f"mpi4py sees {len(hosts)} of mpirun's {size} ranks: it is built for another MPI than this mpirun. Install mpi4py "
            "for it (pip install --no-binary=mpi4py mpi4py), or tell it which there is (MPI4PY_MPIABI=mpich or openmpi)."
        )
    same = hosts.count(hosts[rank])
    if local_size and same != local_size:
        raise UsageError(
            f"{same} ranks are on hosts that call themselves {hosts[rank]}, and {local_size} on this one: several have the same "
            "name. Give each host its own, by which the others reach it."
        )
