"""Exact messages of `ps_train.cluster`, and that nothing but UsageError comes out of it."""

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train.addresses import comparable, split_address
from ps_train.cluster import Cluster, TaskId
from ps_train.errors import UsageError

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))


def problems(make, *args, **kwargs):
    with pytest.raises(UsageError) as caught:
        make(*args, **kwargs)
    return str(caught.value).splitlines()


def worker_problem(address):
    (problem,) = problems(Cluster.from_hosts, ps="p:1", worker=["w:1", address])
    start, end = f"Address {address!r} of worker:1 ", " Check --worker_hosts."
    assert problem.startswith(start) and problem.endswith(end), problem
    return problem[len(start) : -len(end)]


def test_tasks_print_parse_and_sort():
    assert str(TaskId("worker", 1)) == "worker:1"
    assert TaskId.from_string(" worker:1 ") == TaskId("worker", 1)
    assert sorted([TaskId("worker", 10), TaskId("worker", 2), TaskId("ps", 3)])[0] == TaskId("ps", 3)
    for text in ("worker", "worker:", "worker:-1", "master:0", "worker:1:2", ""):
        assert problems(TaskId.from_string, text) == [
            f"Task {text!r} is not a task. Write job:index, such as worker:1; "
            "the jobs are ps, worker, chief and evaluator."
        ]


def test_worker_0_is_the_chief_without_a_chief_job():
    cluster = Cluster.from_hosts(ps="p0:1, p1:1", worker=" w0:1,w1:1 ")
    assert [str(task) for task in cluster.tasks] == ["ps:0", "ps:1", "worker:0", "worker:1"]
    assert cluster.chief_task == TaskId("worker", 0)
    assert cluster.is_chief(TaskId("worker", 0)) and not cluster.is_chief(TaskId("worker", 1))
    assert (cluster.num_ps, cluster.num_workers) == (2, 2)
    assert cluster.as_dict() == {"ps": {0: "p0:1", 1: "p1:1"}, "worker": {0: "w0:1", 1: "w1:1"}}


def test_a_chief_comes_first_in_the_training_order():
    cluster = Cluster.from_hosts(ps=["p:1"], worker=["w0:1", "w1:1"], chief="c:1")
    assert [str(task) for task in cluster.training_tasks] == ["chief:0", "worker:0", "worker:1"]
    assert [cluster.shard_index(task) for task in cluster.training_tasks] == [0, 1, 2]
    assert cluster.chief_task == TaskId("chief", 0) and not cluster.is_chief(TaskId("worker", 0))
    assert cluster.as_dict()["chief"] == {0: "c:1"}


def test_chief_and_ps_alone_are_a_cluster():
    cluster = Cluster.from_dict({"ps": ["p:1"], "chief": ["c:1"]})
    assert cluster.training_tasks == (TaskId("chief", 0),)


def test_master_is_the_chief_and_the_evaluator_is_left_out():
    cluster = Cluster.from_dict({"ps": ["p:1"], "master": ["m:1"], "evaluator": ["e:1"], "tpu": ["t:1"]})
    assert cluster == Cluster.from_hosts(ps="p:1", chief="m:1")
    assert cluster.source != Cluster.from_hosts(ps="p:1", chief="m:1").source


def test_sparse_indices_keep_their_numbers():
    cluster = Cluster.from_dict({"ps": {"3": "p3:1", "1": "p1:1"}, "worker": {"0": "w0:1", "7": "w7:1"}})
    assert [str(task) for task in cluster.tasks] == ["ps:1", "ps:3", "worker:0", "worker:7"]
    assert cluster.shard_index(TaskId("worker", 7)) == 1
    assert problems(cluster.check_member, TaskId("worker", 1)) == [
        "Task worker:1 is not in the cluster: job 'worker' has 2 tasks (0, 7). "
        "Check 'task' and 'cluster' in TF_CONFIG."
    ]
    assert problems(Cluster.from_dict, {"ps": ["p:1"], "worker": {"1": "w:1", "2": "v:1"}}) == [
        "The cluster has neither a chief nor a worker:0 to be the chief; its workers are 1, 2. Check TF_CONFIG."
    ]
    assert Cluster.from_dict({"ps": ["p:1"], "chief": ["c:1"], "worker": {"1": "w:1"}}).num_workers == 2


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("worker:3", "job 'worker' has 2 tasks (0-1). Check --task_index or --worker_hosts."),
        ("ps:1", "job 'ps' has 1 task (0). Check --task_index or --ps_hosts."),
        ("chief:0", "it has no job 'chief', so worker:0 is the chief. Check --task_index or --chief_host."),
        ("evaluator:0", "an evaluator reads checkpoints only, no task talks to it."),
    ],
)
def test_a_task_that_is_not_a_member(task, message):
    cluster = Cluster.from_hosts(ps="p:1", worker="w0:1,w1:1")
    expected = [f"Task {task} is not in the cluster: {message}"]
    assert problems(cluster.check_member, TaskId.from_string(task)) == expected
    assert problems(cluster.address, TaskId.from_string(task)) == expected


def test_other_tasks_that_have_no_place():
    cluster = Cluster.from_hosts(ps="p:1", chief="c:1")
    assert problems(cluster.check_member, TaskId("worker", 0)) == [
        "Task worker:0 is not in the cluster: it has no job 'worker'. Check --task_index or --worker_hosts."
    ]
    assert problems(cluster.check_member, TaskId("wroker", 0)) == [
        "Task wroker:0 is not in the cluster: there is no job 'wroker'; "
        "the jobs are ps, worker, chief and evaluator."
    ]
    assert problems(cluster.shard_index, TaskId("ps", 0)) == [
        "Task ps:0 does not train, so it has no data shard. Expected a worker or the chief."
    ]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("", "is empty. Expected host:port between the commas."),
        ("w", "has no port. Expected host:port, such as host:2222."),
        ("[::1]", "has no port. Expected host:port, such as host:2222."),
        ("w:", "has the port ''. Expected a number from 1 to 65535."),
        ("w:x", "has the port 'x'. Expected a number from 1 to 65535."),
        ("w:²", "has the port '²'. Expected a number from 1 to 65535."),
        ("w:0", "has the port 0. Expected a number from 1 to 65535."),
        ("w:65536", "has the port 65536. Expected a number from 1 to 65535."),
        ("w:-1", "has the port '-1'. Expected a number from 1 to 65535."),
        (":1", "has no host. Expected host:port, such as localhost:2222."),
        ("grpc://w:1", "has a scheme. Expected host:port alone."),
        ("http://w:1", "has a scheme. Expected host:port alone."),
        ("a b:1", "has a blank inside. Expected host:port, with commas between addresses."),
        ("a:1 b:1", "has a blank inside. Expected host:port, with commas between addresses."),
        (
            "::1:2222",
            "has too many colons. Expected host:port; put an IPv6 host in brackets, such as [::1]:2222.",
        ),
        ("[::g]:1", "is not an IPv6 address in brackets, such as [::1]:2222."),
        ("[::1:1", "is not an IPv6 address in brackets, such as [::1]:2222."),
        ("300.1.1.1:1", "has the host '300.1.1.1', which is not an IPv4 address."),
        (
            "a/b:1",
            "has the host 'a/b'. Expected a name of letters, digits, '-', '_' and '.', or an IP address.",
        ),
        (
            "-a.b:1",
            "has the host '-a.b'. Expected a name of letters, digits, '-', '_' and '.', or an IP address.",
        ),
    ],
)
def test_bad_addresses(address, problem):
    assert worker_problem(address) == problem


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("w:1", "w:1"),
        ("w:1", "W:1"),
        ("w.lan:1", "w.lan.:01"),
        ("localhost:1", "127.0.0.1:1"),
        ("[::1]:1", "ip6-localhost:1"),
        ("[fe80:0::1]:1", "[FE80::1]:1"),
    ],
)
def test_duplicates_in_any_spelling(first, second):
    assert problems(Cluster.from_hosts, ps=[first], worker=["v:9", second]) == [
        f"Address {second!r} of worker:1 is also that of ps:0. "
        "Each task needs a port of its own. Check --worker_hosts."
    ]


def test_all_problems_come_in_one_message():
    assert problems(Cluster.from_hosts, ps="a:1,,a:1", worker="", chief="c:1,d") == [
        "There are 2 chiefs, expected at most one. Check --chief_host.",
        "Address '' of ps:1 is empty. Expected host:port between the commas. Check --ps_hosts.",
        "Address 'a:1' of ps:2 is also that of ps:0. Each task needs a port of its own. Check --ps_hosts.",
        "Address 'd' of chief:1 has no port. Expected host:port, such as host:2222. Check --chief_host.",
    ]
    assert problems(Cluster.from_hosts) == [
        "The cluster has no ps. Expected at least one host:port, or --colocate_ps where the workers hold the variables. Check --ps_hosts.",
        "The cluster has no worker and no chief. Expected at least one host:port. Check --worker_hosts.",
    ]


def test_dicts_of_the_wrong_shape():
    assert problems(Cluster.from_dict, [1]) == [
        'The cluster is [1]. Expected an object such as {"ps": ["host:port"], "worker": ["host:port"]}.'
    ]
    assert problems(Cluster.from_dict, {"ps": 5, "worker": [None], "workers": ["w:1"]}) == [
        "Job 'ps' is 5. Expected a list of host:port.",
        "The cluster has no ps. Expected at least one host:port, or --colocate_ps where the workers hold the variables. Check TF_CONFIG. "
        "Not a job, left out: 'workers'.",
        "Address None of worker:0 is not text. Expected host:port. Check TF_CONFIG.",
    ]
    assert problems(Cluster.from_dict, {"ps": ["p:1"], "chief": ["c:1"], "master": ["m:1"]}) == [
        "The cluster has both a 'chief' and a 'master', which are the same job. Keep one."
    ]
    assert problems(Cluster.from_dict, {"ps": ["p:1"], "worker": {"0": "w:1", "00": "v:1", "x": "u:1"}}) == [
        "Job 'worker' has the index 0 twice. Expected each index once.",
        "Job 'worker' has the index 'x'. Expected a whole number from 0.",
    ]


def test_jobs_that_are_near_to_one_that_is_not_there():
    assert problems(Cluster.from_dict, {"PS": ["p:1"], "workers": ["w"], "masters": ["m:1"]}) == [
        "The cluster has the job 'PS'. Did you mean ps? Check TF_CONFIG.",
        "The cluster has the job 'masters'. Did you mean master? Check TF_CONFIG.",
        "The cluster has the job 'workers'. Did you mean worker? Check TF_CONFIG.",
        "Address 'w' of worker:0 has no port. Expected host:port, such as host:2222. Check TF_CONFIG.",
    ]
    assert problems(Cluster.from_dict, {"ps": ["p:1"], "worker": ["w:1"], "evaluators": ["e"]}) == [
        "The cluster has the job 'evaluators'. Did you mean evaluator? Check TF_CONFIG."
    ]
    assert Cluster.from_dict({"ps": ["p:1"], "worker": ["w:1"], "workers": ["v:1"], 7: [], "tpu": []})


def test_clusters_differ_by_meaning_and_order():
    cluster = Cluster.from_hosts(ps="localhost:1,b:1", worker="w:1")
    same = Cluster.from_hosts(ps="127.0.0.1:1,B:1", worker="w:1")
    other = Cluster.from_hosts(ps="b:1,localhost:1", worker="w:1,v:1")
    assert cluster.differences(same) == []
    assert cluster.differences(other) == [
        "Job 'ps' has the same addresses in another order: localhost:1,b:1 here, b:1,localhost:1 there.",
        "Job 'worker' differs: w:1 here, w:1,v:1 there.",
    ]
    sparse = Cluster.from_dict({"ps": {"0": "localhost:1", "2": "b:1"}, "chief": ["w:1"]})
    assert cluster.differences(sparse) == [
        "Job 'ps' has the same addresses in another order: localhost:1,b:1 here, 0=localhost:1,2=b:1 there.",
        "Job 'worker' differs: w:1 here, none there.",
        "Job 'chief' differs: none here, w:1 there.",
    ]


def test_a_cluster_is_a_value():
    cluster = Cluster.from_hosts(ps="p:1", worker="w:1")
    assert {cluster: 1}[Cluster.from_hosts(ps=["p:1"], worker=["w:1"])] == 1
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    with pytest.raises(AttributeError):
        cluster.chief = "c:1"


def test_addresses_take_apart():
    assert split_address("[::1]:2222") == ("::1", 2222)
    assert split_address("a.b:80") == ("a.b", 80)
    assert problems(split_address, "a") == ["Address 'a' has no port. Expected host:port, such as host:2222."]
    assert comparable("[::1]:1") == comparable("LocalHost:1") == "localhost:1"


HOSTS = st.one_of(
    st.text(max_size=30),
    st.text("ab:,.[]1 0-/%\t", max_size=30),
    st.lists(st.one_of(st.text(max_size=12), st.integers(), st.none()), max_size=4),
    st.none(),
)


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(HOSTS, HOSTS, HOSTS)
def test_fuzz_hosts(ps, worker, chief):
    try:
        cluster = Cluster.from_hosts(ps=ps, worker=worker, chief=chief)
    except UsageError as error:
        assert str(error)
        return
    assert Cluster.from_dict(cluster.as_dict()) == cluster
    assert cluster.differences(cluster) == []


def test_a_colocated_cluster():
    cluster = Cluster.from_hosts(worker="a:1,b:2", chief="c:3", is_colocated=True)
    assert cluster.tasks == cluster.training_tasks
    assert [cluster.address(ps) for ps in cluster.ps_tasks] == ["c:3", "a:1", "b:2"]
    assert [str(cluster.host(ps)) for ps in cluster.ps_tasks] == ["chief:0", "worker:0", "worker:1"]
    assert cluster.server_task(TaskId("worker", 1)) == TaskId("ps", 2)
    assert cluster.as_server_dict() == {"ps": {0: "c:3", 1: "a:1", 2: "b:2"}}
    assert cluster.as_dict() == {"worker": {0: "a:1", 1: "b:2"}, "chief": {0: "c:3"}}
    assert Cluster.from_record(cluster.as_record()) == cluster == pickle.loads(pickle.dumps(cluster))
    plain = Cluster.from_hosts(ps="p:1", worker="w:1")
    assert (plain.host(TaskId("ps", 0)), plain.server_task(TaskId("worker", 0))) == (
        TaskId("ps", 0),
        TaskId("worker", 0),
    )
    assert plain.as_server_dict() == plain.as_dict() and Cluster.from_record(plain.as_record()) == plain


def test_what_a_colocated_cluster_is_not():
    sparse = Cluster.from_dict({"worker": {0: "a:1", 7: "b:2"}}, is_colocated=True)
    assert sparse.address(TaskId("ps", 1)) == "b:2"
    assert problems(sparse.check_member, TaskId("ps", 1)) == [
        "Task ps:1 is not in the cluster: by --colocate_ps or --update=allreduce the workers hold the variables. Start the workers only, or leave it out."
    ]
    assert problems(Cluster.from_hosts, ps="p:1", worker="w:1", is_colocated=True) == [
        "--colocate_ps or --update=allreduce is given, and the cluster has a job 'ps': there the workers hold the variables. Leave out one of the two. "
        "Check --ps_hosts."
    ]
    assert problems(Cluster.from_hosts, worker="w:1,w:1", is_colocated=True) == [
        "Address 'w:1' of worker:1 is also that of worker:0. Each task needs a port of its own. Check --worker_hosts."
    ]
    plain = Cluster.from_hosts(ps="p:1", worker="a:1")
    assert (
        sparse.differences(plain, "here", "there")
        == plain.differences(sparse, "there", "here")
        == [
            "The workers hold the variables (--colocate_ps or --update=allreduce) here, and ps tasks do there."
        ]
    )


def test_hosts_that_are_given_by_their_ipv6_numbers():
    cluster = Cluster.from_hosts("[fd00::1]:1", "[FD00:0::1]:2,[fd00::2]:2")
    assert [cluster.num_on_host_of(task) for task in cluster.tasks] == [2, 2, 1]
