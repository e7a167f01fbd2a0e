"""What a machine needs for a job, checked: each finding is a line with what to do about it.

    findings = examine(place, train_dir, num_tasks=3, env=os.environ)
    print(as_text(findings))

| module | checks |
|---|---|
| `machine` | Python, processor, memory, limits, clock |
| `software` | packages, TensorFlow, GPUs, variables of the environment |
| `directory` | --train_dir |
| `network` | the cluster's names, ports and peers |

TensorFlow's import and the network take their time side by side; each has its bounds, which add up to less than 15 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ps_train import net
from ps_train.addresses import split_address
from ps_train.doctor import directory, machine, network, software
from ps_train.doctor.findings import PROBLEM, Finding, as_dict, as_text
from ps_train.resolvers.resolved import Resolved

__all__ = ["PROBLEM", "Finding", "as_dict", "as_text", "examine"]


def examine(place: Resolved, train_dir: str | None, num_tasks: int, env: Mapping[str, str]) -> list[Finding]:
    """All checks that make sense.

    Args:
      place: the cluster and this host's task; a cluster without a task is looked at from outside.
      train_dir: the flag.
      num_tasks: of a local cluster, where no cluster is named.
      env: the environment.
    """
    cluster, own = place
    is_member = cluster is not None and own in cluster.tasks
    is_local = cluster is None and own is None
    port = None
    if not is_local:
        num_tasks = 1
    num_peers = num_tasks - 1 if cluster is None else len(cluster.tasks) - 1
    if cluster is not None and own is not None and is_member:
        num_tasks = cluster.num_on_host_of(own)
        port = split_address(cluster.address(own))[1]
    with ThreadPoolExecutor() as pool:
        of_software = pool.submit(software.check, env)
        of_directory = pool.submit(directory.check, train_dir) if train_dir else None
        of_network = pool.submit(network.check, cluster, own) if cluster is not None else None
        findings = machine.check(num_tasks, num_peers) + of_software.result()
        for checks in (of_directory, of_network):
            findings += checks.result() if checks is not None else []
    if is_local or is_member:  # else no server is to run here
        findings.append(network.check_exposure(port, net.has_other_interfaces()))
    return findings
