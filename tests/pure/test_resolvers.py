"""Where a process's place comes from: the forms of TF_CONFIG, flags, both, and neither."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train.cluster import Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.resolvers import ClusterFlags, Resolved, resolve

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))
NO_FLAGS = ClusterFlags()
PS = {"ps": ["p:1"]}
WORKERS = {"ps": ["p:1"], "worker": ["w0:1", "w1:1"]}


def tf_config(cluster=None, task=None, **more):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **more})}


def worker_flags(index=1, **changes):
    given = {"job_name": "worker", "task_index": index, "ps_hosts": "p:1", "worker_hosts": "w0:1,w1:1"}
    return ClusterFlags(**{**given, **changes})


def problems(choice, flags, env):
    with pytest.raises(UsageError) as caught:
        resolve(choice, flags, env)
    return str(caught.value).splitlines()


def test_nothing_given_is_a_local_cluster():
    for env in (
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": " "},
        {"TF_CONFIG": "{}"},
        tf_config(task={"type": "worker", "index": 0}),
    ):
        assert resolve("auto", NO_FLAGS, env) == Resolved(None, None)
    assert resolve("flags", NO_FLAGS, tf_config(WORKERS, {"type": "ps", "index": 0})) == Resolved(None, None)


def test_flags_name_the_task():
    cluster = Cluster.from_hosts(ps="p:1", worker="w0:1,w1:1")
    assert resolve("auto", worker_flags(), {}) == Resolved(cluster, TaskId("worker", 1))
    assert resolve("flags", worker_flags(), {"TF_CONFIG": "{"}) == Resolved(cluster, TaskId("worker", 1))


def test_the_index_may_be_left_out_where_it_is_the_only_one():
    assert resolve("auto", worker_flags(None, job_name="ps"), {}).task == TaskId("ps", 0)
    assert resolve("auto", worker_flags(None, job_name="evaluator"), {}).task == TaskId("evaluator", 0)
    assert problems("auto", worker_flags(None), {}) == [
        "--job_name=worker is given without --task_index, and job 'worker' has several tasks. Add --task_index."
    ]


def test_an_evaluator_needs_no_hosts():
    assert resolve("auto", ClusterFlags(job_name="evaluator"), {}) == Resolved(None, TaskId("evaluator", 0))
    assert problems("auto", ClusterFlags(job_name="evaluator", task_index=1), {}) == [
        "Task evaluator:1 does not exist: there is one evaluator. Expected the index 0."
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            worker_flags(3),
            [
                "Task worker:3 is not in the cluster: job 'worker' has 2 tasks (0-1). "
                "Check --task_index or --worker_hosts."
            ],
        ),
        (worker_flags(-1), ["--task_index=-1 is negative. Expected a whole number from 0."]),
        (
            worker_flags(0, job_name="chief"),
            [
                "Task chief:0 is not in the cluster: it has no job 'chief', so worker:0 is the chief. "
                "Check --task_index or --chief_host."
            ],
        ),
        (
            ClusterFlags(task_index=1),
            [
                "--task_index is given without --job_name, so this process has no place in it. "
                "Add --job_name and --task_index, or leave all of them out for a local cluster."
            ],
        ),
        (
            ClusterFlags(ps_hosts="p"),
            [
                "The cluster has no worker and no chief. Expected at least one host:port. Check --worker_hosts.",
                "Address 'p' of ps:0 has no port. Expected host:port, such as host:2222. Check --ps_hosts.",
                "The cluster is given without --job_name, so this process has no place in it. "
                "Add --job_name and --task_index, or leave all of them out for a local cluster.",
            ],
        ),
        (
            ClusterFlags(job_name="ps"),
            [
                "The cluster has no ps. Expected at least one host:port, or --colocate_ps where the workers hold the variables. Check --ps_hosts.",
                "The cluster has no worker and no chief. Expected at least one host:port. Check --worker_hosts.",
            ],
        ),
    ],
)
def test_flags_that_name_no_place(flags, expected):
    assert problems("auto", flags, {}) == expected


@pytest.mark.parametrize(
    ("cluster", "task", "expected", "chief"),
    [
        ({**WORKERS, "chief": ["c:1"]}, {"type": "chief", "index": 0}, "chief:0", "chief:0"),
        ({**WORKERS, "master": ["c:1"]}, {"type": "master", "index": 0}, "chief:0", "chief:0"),
        ({**WORKERS, "chief": ["c:1"]}, {"type": "master"}, "chief:0", "chief:0"),
        (WORKERS, {"type": "worker", "index": "1"}, "worker:1", "worker:0"),
        ({**PS, "chief": ["c:1"]}, {"type": "ps"}, "ps:0", "chief:0"),
        ({**PS, "worker": {"0": "w:1", "4": "v:1"}}, {"type": "worker", "index": 4}, "worker:4", "worker:0"),
        ({**WORKERS, "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0}, "evaluator:0", "worker:0"),
    ],
)
def test_forms_of_tf_config(cluster, task, expected, chief):
    for choice in ("auto", "tf_config"):
        found = resolve(choice, NO_FLAGS, tf_config(cluster, task, environment="cloud"))
        assert (str(found.task), str(found.cluster.chief_task)) == (expected, chief)


def test_the_training_order_is_the_same_with_master_and_chief():
    orders = {
        resolve("auto", NO_FLAGS, tf_config({**WORKERS, job: ["c:1"]}, {"type": "ps"})).cluster.training_tasks
        for job in ("master", "chief")
    }
    assert orders == {(TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1))}


def test_an_evaluator_in_tf_config_needs_no_cluster():
    env = tf_config(task={"type": "evaluator"})
    assert resolve("auto", NO_FLAGS, env) == Resolved(None, TaskId("evaluator", 0))


EXAMPLE = '{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{'a': 1}",
            "TF_CONFIG is not JSON: Expecting property name enclosed in double quotes at character 1 of "
            f"\"{{'a': 1}}\". Expected {EXAMPLE}.",
        ),
        ("[1]", f"TF_CONFIG is [1]. Expected an object, {EXAMPLE}, or no TF_CONFIG at all."),
        ("null", f"TF_CONFIG is null. Expected an object, {EXAMPLE}, or no TF_CONFIG at all."),
        (
            json.dumps({"clusters": WORKERS, "task": {"type": "worker", "index": 0}}),
            "TF_CONFIG has the key 'clusters'. Did you mean cluster?",
        ),
        (
            json.dumps({"cluster": WORKERS, "Task": {"type": "worker", "index": 0}}),
            "TF_CONFIG has the key 'Task'. Did you mean task?",
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker", "indx": 0}}),
            "TF_CONFIG's 'task' has the key 'indx'. Did you mean index?",
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"job": "worker", "index": 0}}),
            "TF_CONFIG's 'task' has no 'type', only 'job', 'index'. "
            'Expected such as {"type": "worker", "index": 0}.',
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "workers", "index": 0}}),
            "TF_CONFIG's task type is 'workers'. Did you mean worker? Expected ps, worker, chief, master or evaluator.",
        ),
        (
            json.dumps({"cluster": {**PS, "chief": ["c:1"], "workers": ["w:1"]}, "task": {"type": "ps"}}),
            "The cluster has the job 'workers'. Did you mean worker? Check TF_CONFIG.",
        ),
        ("[" * 100_000, f"TF_CONFIG has a number or a nesting beyond all bounds. Expected {EXAMPLE}."),
        (
            '{"sparseCluster": {"worker": {"1": "w:1"}}}',
            "TF_CONFIG has 'sparseCluster', which shows each task only a part of the cluster. Expected 'cluster', "
            "with every task. Set enableDynamicWorker: false in the TFJob.",
        ),
        (
            '{"cluster": ["p:1"]}',
            'The cluster is [\'p:1\']. Expected an object such as {"ps": ["host:port"], "worker": ["host:port"]}.',
        ),
        (
            json.dumps({"cluster": WORKERS, "task": [0]}),
            'TF_CONFIG\'s \'task\' is [0]. Expected an object such as {"type": "worker", "index": 0}.',
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "slave"}}),
            "TF_CONFIG's task type is 'slave'. Expected ps, worker, chief, master or evaluator.",
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker"}}),
            "TF_CONFIG's task has no index, and job 'worker' has several tasks. Add 'index'.",
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": True}}),
            "TF_CONFIG's task index is True. Expected a whole number from 0.",
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}),
            "Task worker:2 is not in the cluster: job 'worker' has 2 tasks (0-1). "
            "Check 'task' and 'cluster' in TF_CONFIG.",
        ),
        (
            json.dumps({"cluster": WORKERS}),
            "TF_CONFIG names a cluster but no task. Add 'task', or --job_name and --task_index.",
        ),
        (
            json.dumps({"cluster": {**PS, "worker": {"1": "w:1"}}, "task": {"type": "worker", "index": 1}}),
            "The cluster has neither a chief nor a worker:0 to be the chief; its workers are 1. Check TF_CONFIG.",
        ),
    ],
)
def test_tf_config_that_names_no_place(text, expected):
    assert problems("auto", NO_FLAGS, {"TF_CONFIG": text}) == [expected]


def test_tf_config_asked_for_but_not_there():
    for text, what in ((None, "is not set"), (" ", "is not set"), ("{}", "names no cluster")):
        env = {"TF_CONFIG": text} if text else {}
        assert problems("tf_config", NO_FLAGS, env) == [
            "--cluster_resolver=tf_config is given, but the environment variable TF_CONFIG "
            f"{what}. Set it, or leave the flag out for a local cluster."
        ]


def test_flags_and_tf_config_that_agree_or_complete_each_other():
    env = tf_config(WORKERS, {"type": "worker", "index": 1})
    expected = Resolved(Cluster.from_dict(WORKERS), TaskId("worker", 1))
    assert resolve("auto", worker_flags(), env) == expected
    assert resolve("auto", worker_flags(worker_hosts="W0:1,w1:1"), env).task == TaskId("worker", 1)
    assert resolve("auto", ClusterFlags(job_name="worker", task_index=1), tf_config(WORKERS)) == expected
    assert resolve("auto", worker_flags(None, job_name=None), env) == expected


CHOOSE = "Remove one, or choose with --cluster_resolver=flags or --cluster_resolver=tf_config."


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (worker_flags(0), f"The flags say worker:0 and TF_CONFIG says worker:1. {CHOOSE}"),
        (ClusterFlags(task_index=0), f"The flags say --task_index=0 and TF_CONFIG says worker:1. {CHOOSE}"),
        (
            worker_flags(worker_hosts="w1:1,w0:1"),
            "The flags and TF_CONFIG name two clusters. Job 'worker' has the same addresses in another order: "
            f"w1:1,w0:1 in the flags, w0:1,w1:1 in TF_CONFIG. {CHOOSE}",
        ),
        (
            ClusterFlags(ps_hosts="other:1"),
            f"The flags and TF_CONFIG name two clusters. Job 'ps' differs: other:1 in the flags, p:1 in TF_CONFIG. {CHOOSE}",
        ),
    ],
)
def test_flags_and_tf_config_in_conflict(flags, expected):
    env = tf_config(WORKERS, {"type": "worker", "index": 1})
    assert problems("auto", flags, env) == [expected]
    assert resolve("tf_config", flags, env).task == TaskId("worker", 1)


def test_a_resolver_that_is_not_there():
    assert problems("k8s", NO_FLAGS, {}) == [
        "--cluster_resolver=k8s is not a resolver. Expected one of auto, flags, tf_config, slurm, mpi."
    ]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["w:1", "p:1", "", "x", "0"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["cluster", "task", "type", "index", "ps", "worker", "chief", "0"]), inner
        ),
    ),
    max_leaves=8,
)
TEXTS = st.one_of(
    st.text(max_size=30),
    TREES.map(json.dumps),
    st.fixed_dictionaries({"cluster": TREES, "task": TREES}).map(json.dumps),
)


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(TEXTS)
def test_fuzz_tf_config(text):
    for flags in (NO_FLAGS, worker_flags()):
        try:
            found = resolve("auto", flags, {"TF_CONFIG": text})
        except UsageError as error:
            assert str(error)
        else:
            assert found.task is None or found.cluster is None or found.task in found.cluster.tasks
