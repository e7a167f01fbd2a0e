"""Places among the tasks of srun and mpirun: Slurm's lists, recorded environments, the division, mistakes."""

import itertools
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train import flags, launcher
from ps_train.cluster import TaskId
from ps_train.commands import bench, status, train
from ps_train.errors import UsageError
from ps_train.resolvers import CHOICES, ClusterFlags, Resolved, mpi, resolve, slurm
from ps_train.resolvers.launched import BLOCK, FIRST_PORT, NUM_BLOCKS, SRUN, Place, make_cluster
from ps_train.resolvers.node_lists import expand_counts, expand_nodes

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))

# srun -n 4 -N 2 of Slurm 22.05.8; what is not read is left out.
SRUN_TASKS = [
    {
        "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_STEP_NODELIST": "host[0-1]",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local), "SLURMD_NODENAME": f"host{node}",
    }
    for rank, (node, local) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0)])
]  # fmt: skip
# The process of a batch script with -n 4 -N 2, and of salloc -n 3 -N 2.
BATCH = {
    "SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_JOB_NUM_NODES": "2", "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_NODELIST": "host[0-1]", "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "3,1", "SLURMD_NODENAME": "host0",
}  # fmt: skip
SALLOC = {
    "SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2",
    "SLURM_NODELIST": "host[0-1]", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1",
}  # fmt: skip
# mpirun -np 3 of Open MPI 4.1.4, mpiexec -n 3 of MPICH 4.0.2 (Hydra).
OPEN_MPI = [
    {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "OMPI_COMM_WORLD_NODE_RANK": str(rank), "OMPI_UNIVERSE_SIZE": "3",
        "PMIX_NAMESPACE": "1861156865", "PMIX_RANK": str(rank),
    }
    for rank in range(3)
]  # fmt: skip
HYDRA = [
    {
        "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": str(rank), "PMI_FD": "6", "PMI_RANK": str(rank),
        "PMI_SIZE": "3",
    }
    for rank in range(3)
]  # fmt: skip
NO_FLAGS = ClusterFlags()


def problems(choice, env, given=NO_FLAGS, gather=None):
    with pytest.raises(UsageError) as caught:
        mpi.resolve(env, given, gather) if gather else resolve(choice, given, env)
    return str(caught.value).splitlines()


def resolved(envs, given=NO_FLAGS, choice="auto"):
    """The cluster of all the tasks, which must be one, and their names."""
    found = [resolve(choice, given, env) for env in envs]
    assert len({place.cluster for place in found}) == 1
    assert {place.task for place in found} == set(found[0].cluster.tasks)
    return found[0].cluster, [str(place.task) for place in found]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node1", "node1"),
        ("node[1-3]", "node1 node2 node3"),
        ("node[08-11,20],login", "node08 node09 node10 node11 node20 login"),
        ("r[1-2]n[0-1]-ib", "r1n0-ib r1n1-ib r2n0-ib r2n1-ib"),
        ("a[1],b,c[2-2]", "a1 b c2"),
        ("n[9-11]", "n9 n10 n11"),
        ("gpu-a.lan,gpu-b.lan", "gpu-a.lan gpu-b.lan"),
    ],
)
def test_nodes(text, nodes):
    assert expand_nodes(text) == nodes.split()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no name of a node at character 0"),
        ("a,,b", "has no name of a node at character 2"),
        ("a,", "has no name of a node at character 2"),
        ("n[1-2", "has '[' at character 1"),
        ("n1]", "has ']' at character 2"),
        ("n[]", "has '[' at character 1"),
        ("n[a-b]", "has 'a-b' in a bracket"),
        ("n[3-1]", "has '3-1' in a bracket, which counts down"),
        ("n[1-999999999]", "stands for more than 100000 nodes"),
        ("n[1-999][1-999]", "stands for more than 100000 nodes"),
        ("n1 n2", "has ' ' at character 2"),
    ],
)
def test_nodes_that_cannot_be_read(text, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        expand_nodes(text)


def test_counts():
    assert expand_counts("4") == [4]
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "2,", "2(x3", "x", "2(3)", "-1", "1(x200000)"):
        with pytest.raises(ValueError):
            expand_counts(text)


NUMBERS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9)), min_size=1, max_size=4)
NAMES = st.text("abcxyz-", min_size=1, max_size=5)


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), NUMBERS), st.integers(1, 4)), min_size=1, max_size=4))
def test_fuzz_nodes(items):
    """What is written out as Slurm does comes back."""
    texts, nodes = [], []
    for name, ranges, width in items:
        if ranges is None:
            texts.append(name)
            nodes.append(name)
            continue
        words = [f"{first:0{width}}-{first + more:0{width}}" for first, more in ranges]
        texts.append(f"{name}[{','.join(words)}]")
        nodes += [f"{name}{n:0{width}}" for first, more in ranges for n in range(first, first + more + 1)]
    assert expand_nodes(",".join(texts)) == nodes


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(st.text("n[]-,0 1x()", max_size=12))
def test_fuzz_text(text):
    for expand in (expand_nodes, expand_counts):
        try:
            assert expand(text)
        except ValueError as error:
            assert str(error)


def test_tasks_of_srun():
    cluster, names = resolved(SRUN_TASKS, ClusterFlags(port_base=2222))
    assert names == ["ps:0", "worker:0", "worker:1", "worker:2"]
    assert cluster.as_dict() == {
        "ps": {0: "host0:2222"},
        "worker": {0: "host0:2223", 1: "host0:2224", 2: "host1:2222"},
    }
    assert resolved(SRUN_TASKS, ClusterFlags(port_base=2222), "slurm")[0] == cluster
    assert resolved(SRUN_TASKS, ClusterFlags(num_ps=2))[1] == ["ps:0", "worker:0", "worker:1", "ps:1"]
    colocated, names = resolved(SRUN_TASKS, ClusterFlags(colocate_ps=True))
    assert colocated.is_colocated and names == ["worker:0", "worker:1", "worker:2", "worker:3"]


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 5), st.randoms(use_true_random=False)
)
def test_fuzz_distributions_of_srun(counts, num_ps, random):
    """In whatever order srun numbers the tasks, all see one cluster, and ps tasks share a host only if they must."""
    where = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    random.shuffle(where)
    if len(where) <= num_ps:
        return
    envs = [
        {
            "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": f"n[0-{len(counts) - 1}]",
            "SLURM_STEP_NUM_TASKS": str(len(where)), "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
            "SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local),
        }
        for rank, (node, local) in enumerate(where)
    ]  # fmt: skip
    cluster, names = resolved(envs, ClusterFlags(num_ps=num_ps))
    assert cluster.num_ps == num_ps
    for name, (node, _) in zip(names, where, strict=True):
        host = cluster.address(TaskId.from_string(name)).partition(":")[0]
        assert host == (f"n{node}" if len(counts) > 1 else "127.0.0.1")
    hosts = [address.partition(":")[0] for _, address in cluster.ps]
    assert len(set(hosts)) == min(num_ps, len(counts))


def test_jobs_that_share_a_host_do_not_meet():
    def base(job, step):
        envs = [{**env, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for env in SRUN_TASKS]
        return int(resolved(envs)[0].ps[0][1].rpartition(":")[2])

    bases = [base(job, step) for job, step in itertools.product(range(1000, 1030), range(3))]
    assert len(set(bases)) == len(bases)
    assert all(
        FIRST_PORT <= each < each + BLOCK <= FIRST_PORT + BLOCK * NUM_BLOCKS <= 32_768 for each in bases
    )


def test_processes_that_are_not_one_of_several_start_a_local_cluster():
    alone = {**SRUN_TASKS[0], "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    for env in (BATCH, SALLOC, alone, {**OPEN_MPI[0], "OMPI_COMM_WORLD_SIZE": "1"}):
        assert resolve("auto", NO_FLAGS, env) == Resolved(None, None)
    assert resolve("flags", NO_FLAGS, SRUN_TASKS[0]) == Resolved(None, None)
    # `mpirun -np 1` within a step of several tasks
    assert (
        resolve("auto", NO_FLAGS, {**SRUN_TASKS[0], **OPEN_MPI[0], "OMPI_COMM_WORLD_SIZE": "1"}).task is None
    )


@pytest.mark.parametrize("envs", [OPEN_MPI, HYDRA], ids=["Open MPI", "Hydra"])
def test_ranks_on_one_host(envs):
    cluster, names = resolved(envs, ClusterFlags(port_base=2222))
    assert names == ["ps:0", "worker:0", "worker:1"]
    assert cluster.as_dict() == {
        "ps": {0: "127.0.0.1:2222"}, "worker": {0: "127.0.0.1:2223", 1: "127.0.0.1:2224"}
    }  # fmt: skip
    assert resolved(envs, choice="mpi")[1] == names


def test_mvapich():
    envs = [
        {name.replace("OMPI", "MV2"): value for name, value in env.items() if name.startswith("OMPI")}
        for env in OPEN_MPI
    ]
    assert resolved(envs)[1] == ["ps:0", "worker:0", "worker:1"]


def test_ranks_on_several_hosts_tell_each_other():
    hosts = ["b", "a", "b", "a"]
    envs = [
        {**OPEN_MPI[0], "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "4",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        for rank in range(4)
    ]  # fmt: skip
    found = [mpi.resolve(env, ClusterFlags(num_ps=2, port_base=70), lambda: hosts) for env in envs]
    assert [str(place.task) for place in found] == ["ps:0", "ps:1", "worker:0", "worker:1"]
    assert found[0].cluster.as_dict() == {"ps": {0: "b:70", 1: "a:70"}, "worker": {0: "b:71", 1: "a:71"}}
    assert problems("mpi", envs[0], gather=lambda: ["b"]) == [
        "mpi4py sees 1 of mpirun's 4 ranks: it is built for another MPI than this mpirun. Install mpi4py for it (pip install "
        "--no-binary=mpi4py mpi4py), or tell it which there is (MPI4PY_MPIABI=mpich or openmpi)."
    ]
    assert problems("mpi", envs[0], gather=lambda: ["b"] * 4) == [
        "4 ranks are on hosts that call themselves b, and 2 on this one: several have the same name. Give each host its own, by "
        "which the others reach it."
    ]


def test_mpirun_within_a_slurm_job_goes_first_and_srun_with_pmi_does_not_count_as_mpirun():
    both = [{**SRUN_TASKS[0], **env} for env in OPEN_MPI]
    assert resolved(both)[1] == ["ps:0", "worker:0", "worker:1"]
    hydra = [{**SRUN_TASKS[0], **env} for env in HYDRA]
    assert resolved(hydra)[1] == ["ps:0", "worker:0", "worker:1"]
    pmi2 = [{**env, "PMI_RANK": env["SLURM_PROCID"], "PMI_SIZE": "4", "PMI_FD": "11"} for env in SRUN_TASKS]
    pmix = [{**env, "PMIX_RANK": env["SLURM_PROCID"]} for env in SRUN_TASKS]
    expected = resolved(SRUN_TASKS)
    assert resolved(pmi2) == resolved(pmix) == expected


def test_what_a_user_says_goes_before_what_a_launcher_says():
    given = ClusterFlags(job_name="worker", ps_hosts="p:1", worker_hosts="w:1")
    for env in (SRUN_TASKS[1], OPEN_MPI[1]):
        assert str(resolve("auto", given, env).task) == "worker:0"
        assert resolve("auto", ClusterFlags(job_name="evaluator"), env).task == TaskId("evaluator", 0)
        tf_config = '{"cluster": {"ps": ["p:1"], "worker": ["w:1"]}, "task": {"type": "ps"}}'
        assert str(resolve("auto", NO_FLAGS, {**env, "TF_CONFIG": tf_config}).task) == "ps:0"


@pytest.mark.parametrize(
    ("choice", "env", "given", "expected"),
    [
        (
            "slurm", {}, NO_FLAGS,
            ["--cluster_resolver=slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, "
             "SLURM_NODEID, SLURM_LOCALID not set, so this is no task of srun. Put srun before the command, as srun -n 4 python "
             "-m ps_train, or leave --cluster_resolver out for a local cluster."],
        ),
        (
            "slurm", BATCH, NO_FLAGS,
            ["--cluster_resolver=slurm: SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE not set, so this is "
             "a batch script's own process. Put srun before the command, as srun -n 4 python -m ps_train, or leave "
             "--cluster_resolver out for a local cluster."],
        ),
        (
            "mpi", {}, NO_FLAGS,
            ["--cluster_resolver=mpi: OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or PMI_RANK and PMI_SIZE, not set, so this "
             "is no rank of mpirun. Put mpirun before the command, as mpirun -np 4 python -m ps_train, or leave "
             "--cluster_resolver out for a local cluster."],
        ),
        (
            "auto", {"PMIX_RANK": "1"}, NO_FLAGS,
            ["PMIX_RANK=1 says that a launcher has started this process, but not of how many ranks it is one. Start the ranks by "
             "mpirun or srun, or name the task by --job_name and the lists of hosts; --cluster_resolver=flags alone is a local "
             "cluster."],
        ),
        (
            "auto", OPEN_MPI[0], ClusterFlags(num_ps=3),
            ["mpirun has started 3 tasks, of which --num_ps=3 would be ps, and none is left to be a worker. Start more (mpirun "
             "-np 5), ask for fewer ps, or add --colocate_ps."],
        ),
        (
            "mpi", {**OPEN_MPI[0], "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, NO_FLAGS,
            ["mpirun has started 1 task, of which --num_ps=1 would be ps, and none is left to be a worker. Start more (mpirun "
             "-np 3), ask for fewer ps, or add --colocate_ps."],
        ),
        (
            "slurm", SRUN_TASKS[0],
            ClusterFlags(job_name="ps", task_index=0, ps_hosts="p:1", num_workers=2, port_base=65534),
            ["--job_name, --task_index, --ps_hosts beside --cluster_resolver=slurm, which gives the tasks of srun their jobs and "
             "hosts. Leave one of the two out.",
             "--num_workers=2 contradicts srun, which has started 4 tasks, of which 3 would be workers. Leave it out, or start 3 "
             "(srun -n 3).",
             "--port_base=65534 is out of range for hosts with up to 3 tasks, which take a port each from there on. Expected a "
             "whole number from 1 to 65533."],
        ),
        (
            "slurm", SRUN_TASKS[0], ClusterFlags(num_ps=2, colocate_ps=True, num_workers=0),
            ["--num_ps=2 beside --colocate_ps or --update=allreduce: there the workers hold the variables. Leave out one of the two.",
             "--num_workers=0 is out of range. Expected a whole number from 1."],
        ),
        (
            "auto", {**SRUN_TASKS[0], "SLURM_NODEID": "x", "SLURM_STEP_NODELIST": "h[", "SLURM_STEP_TASKS_PER_NODE": "a"},
            NO_FLAGS,
            ["SLURM_NODEID is 'x'. Expected a whole number from 0.",
             "SLURM_STEP_NODELIST='h[' has '[' at character 1. Expected such as node[01-03,7].",
             "SLURM_STEP_TASKS_PER_NODE='a' has 'a' between its commas. Expected such as 2(x3),1."],
        ),
        (
            "auto", {**OPEN_MPI[0], "OMPI_COMM_WORLD_RANK": "3"}, NO_FLAGS,
            ["OMPI_COMM_WORLD_RANK is 3. Expected less than OMPI_COMM_WORLD_SIZE, 3."],
        ),
    ],
)  # fmt: skip
def test_mistakes(choice, env, given, expected):
    assert problems(choice, env, given) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SLURMD_NODENAME": "host7"}, "SLURMD_NODENAME is host7, but node 0 of "),
        ({"SLURM_LOCALID": "3"}, "SLURM_NODEID=0 and SLURM_LOCALID=3 are not in "),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2 and SLURM_LOCALID=0 are not in "),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,2"}, "stand for 2 nodes and 5 tasks on 2, but SLURM_STEP_NUM_TASKS is 4."),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, "stand for 2 nodes and 4 tasks on 1, but SLURM_STEP_NUM_TASKS is 4."),
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID is 4. Expected less than SLURM_STEP_NUM_TASKS, 4."),
        ({"SLURM_STEP_NODELIST": "host0,host0"}, "has a node twice."),
    ],
)  # fmt: skip
def test_variables_that_do_not_fit_together_are_refused(changes, reason):
    (line,) = problems("auto", {**SRUN_TASKS[0], **changes})
    assert reason in line and line.endswith("Name the tasks by --job_name and lists of hosts if not.")


def test_the_command_line_takes_the_sizes_from_the_launcher():
    def plan(*args, env=SRUN_TASKS[1]):
        return train.make_plan(flags.parse(args)[0], env)

    assert str(plan("--num_ps=2").place.task) == "worker:0"
    assert (
        plan("--update=sync", "--replicas_to_aggregate=3", "--num_workers=3").place.cluster.num_workers == 3
    )
    with pytest.raises(UsageError) as caught:
        plan("--num_ps=4", "--num_workers=9", "--batch_size=0")
    assert [line[:30] for line in str(caught.value).splitlines()] == [
        "srun has started 4 tasks, of w", "--batch_size=0 is out of range"
    ]  # fmt: skip
    for env in (
        {},
        BATCH,
        {"TF_CONFIG": '{"cluster": {"ps": ["p:1"], "worker": ["w:1"]}, "task": {"type": "ps"}}'},
    ):
        with pytest.raises(
            UsageError, match="^--port_base=9 is for tasks that srun or mpirun has started, and"
        ):
            plan("--port_base=9", env=env)


def test_commands_that_need_no_cluster_take_no_rank(monkeypatch):
    for name, value in SRUN_TASKS[0].items():
        monkeypatch.setenv(name, value)
    assert bench.make_plan(flags.parse(["bench"])[0]).num_workers == 2
    for choice in ("slurm", "mpi"):
        with pytest.raises(UsageError, match="the command status is no task of the job that it asks"):
            status.make_plan(flags.parse([f"--cluster_resolver={choice}"])[0])
    assert status.make_plan(flags.parse(["--ps_hosts=p:1"])[0], SRUN_TASKS[0]).cluster is None


def test_who_forgets_srun_on_several_nodes_is_told(monkeypatch, capsys):
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "run_local", lambda *_: 0)
    assert train.run(flags.parse([])[0]) == 0
    assert capsys.readouterr().err == (
        "ps_train: This Slurm job has 2 nodes, and this is a local cluster, on this host alone. To train on all: srun python "
        "-m ps_train.\n"
    )
    for env in ({}, {**BATCH, "SLURM_JOB_NUM_NODES": "1"}, SRUN_TASKS[0]):
        assert slurm.unused_nodes(env) == ""


def test_a_place_is_on_the_list():
    places = [Place("a", 0), Place("a", 1)]
    assert str(make_cluster(places, places[1], NO_FLAGS, SRUN).task) == "worker:0"
    assert CHOICES == ("auto", "flags", "tf_config", "slurm", "mpi")
