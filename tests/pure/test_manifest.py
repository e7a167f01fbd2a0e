"""`ps_train manifest`: what it prints is valid by the published schemas, and is the job that was asked for.

Validated against, all as pip packages:
- the JSON schemas of Kubernetes's own OpenAPI description, in their strict form, where an unknown key is an error
  (`kubernetes-validate`): NetworkPolicy, Service and Job, the oldest release that has all that is used and the newest; a
  TFJob's pod templates as Pods;
- the models of Kubeflow's Python client, which are generated from the operator's OpenAPI description (`kubeflow-training`):
  what is around a TFJob's pod templates.
The TFJob of examples/ was also checked by hand against the operator's CustomResourceDefinition of release 1.9, unknown keys
refused. What none of these knows, such as which of a Job's fields go together, is asserted by itself. No cluster is there to apply them.
"""

import ast
import importlib.util
import json
import pathlib
import re
import shlex
import sys

import kubernetes_validate
import pytest
import yaml

from ps_train import __main__ as program
from ps_train import flags, manifest
from ps_train.cluster import TaskId
from ps_train.commands import train
from ps_train.commands.manifest import make_plan
from ps_train.errors import UsageError

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
OLDEST, NEWEST = "1.31", "1.37"  # podFailurePolicy is stable since 1.31
PARAMS = "rate=0.5,text=a $(HOME) $$ \"x\" 'y' #z: {w},on=true"
FULL = (
    "--image=registry.example:5000/a/mine:1.0", "--name=mine", "--namespace=team-a", "--num_ps=2", "--num_workers=4",
    "--model=/app/mine.py", f"--model_params={PARAMS}", "--train_steps=1000", "--train_dir=/train/mine", "--train_volume=train",
    "--gpus=0,1", "--cpus=0.5", "--memory=4Gi", "--port=3333", "--update=sync", "--shutdown_timeout_secs=60",
)  # fmt: skip
CASES = {
    "least": ("--image=mine",),
    "full": FULL,
    "colocated": ("--image=mine", "--colocate_ps", "--num_workers=3"),
}


def plan(*args):
    return make_plan(flags.parse(["manifest", *args])[0])


def objects(*args):
    """What a reader of the printed YAML gets."""
    return list(yaml.safe_load_all(manifest.as_yaml(plan(*args))))


def by_kind(*args):
    found = {}
    for one in objects(*args):
        found.setdefault(one["kind"], []).append(one)
    return found


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


def client_model(name):
    """Keys and types of a model of Kubeflow's client: read and not imported, as the client takes a second to load."""
    package = pathlib.Path(importlib.util.find_spec("kubeflow.training.models").submodule_search_locations[0])
    file = "kubeflow_org_v1_" + name.removeprefix("KubeflowOrgV1").replace("TFJob", "TfJob")
    path = package / (re.sub(r"(?<=[a-z])([A-Z])", r"_\1", file).lower().replace("v1_tf", "v1_tf") + ".py")
    known = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in (
            "openapi_types",
            "attribute_map",
        ):
            known[node.targets[0].id] = ast.literal_eval(node.value)
    return {key: known["openapi_types"][attribute] for attribute, key in known["attribute_map"].items()}


def check_by_client(value, kind):
    """Fails for a key that the model does not have, or a value of another type."""
    if kind.startswith("dict(str, "):
        for one in value.values():
            check_by_client(one, kind.removeprefix("dict(str, ").removesuffix(")"))
    elif kind == "V1PodTemplateSpec":
        pod = {"apiVersion": "v1", "kind": "Pod", **value}
        kubernetes_validate.validate(pod, NEWEST, strict=True)
    elif kind.startswith("KubeflowOrg"):
        known = client_model(kind)
        assert value.keys() <= known.keys(), kind
        for key, one in value.items():
            check_by_client(one, known[key])
    elif kind != "V1ObjectMeta":  # which the Pods' schema knows
        assert isinstance(value, {"int": int, "str": str, "bool": bool}[kind]), (kind, value)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_plain_objects_are_valid(case, version):
    found = objects(*CASES[case])
    assert [one["kind"] for one in found] == ["NetworkPolicy", "Service"] + ["Job"] * (
        1 if case == "colocated" else 2
    )
    for one in found:
        assert kubernetes_validate.validate(one, version, strict=True) == version


@pytest.mark.parametrize("case", CASES)
def test_a_tfjob_is_valid(case):
    policy, job = objects("--kind=tfjob", *CASES[case])
    kubernetes_validate.validate(policy, NEWEST, strict=True)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    check_by_client(job, "KubeflowOrgV1TFJob")
    for replica in job["spec"]["tfReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"  # the operator looks for it, and for the port's name
        assert [port["name"] for port in container["ports"]] == ["tfjob-port"]
        assert replica["restartPolicy"] == "ExitCode"
        assert "restartPolicy" not in replica["template"]["spec"]


def test_the_validators_refuse_what_is_wrong():
    (job, _) = by_kind(*FULL)["Job"]
    job["spec"]["podFailurePolice"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolice"):
        kubernetes_validate.validate(job, NEWEST, strict=True)
    tf_job = objects("--kind=tfjob", *FULL)[1]
    tf_job["spec"]["runPolicy"]["cleanPods"] = "Running"
    with pytest.raises(AssertionError, match="RunPolicy"):
        check_by_client(tf_job, "KubeflowOrgV1TFJob")


def expanded(argument, env):
    """What Kubernetes makes of an argument: two dollars are one, $(NAME) is a variable's value if there is one."""
    return re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else env.get(found[2], found[0]),
        argument,
    )


@pytest.mark.parametrize("case", CASES)
def test_each_pod_of_the_plain_jobs_is_the_task_that_was_asked_for(case):
    wanted = plan(*CASES[case])
    tasks = []
    for job in by_kind(*CASES[case])["Job"]:
        for index in range(job["spec"]["completions"]):
            (container,) = job["spec"]["template"]["spec"]["containers"]
            assert container["command"] == ["python", "-m", "ps_train"]
            args = [
                expanded(one, {"JOB_COMPLETION_INDEX": str(index), "HOME": "/root"})
                for one in container["args"]
            ]
            found = train.make_plan(flags.parse(args)[0], {})
            assert found.config == wanted.config
            address = found.place.cluster.address(found.place.task)
            host = f"{job['metadata']['name']}-{index}"  # as Kubernetes names an Indexed Job's pods
            assert address == f"{host}.{job['spec']['template']['spec']['subdomain']}:{wanted.port}"
            tasks.append(found.place.task)
    assert len(set(tasks)) == len(tasks) == wanted.num_ps + wanted.num_workers
    assert TaskId("worker", 0) in tasks


@pytest.mark.parametrize("case", CASES)
def test_each_pod_of_a_tfjob_is_the_task_that_was_asked_for(case):
    wanted = plan("--kind=tfjob", *CASES[case])
    replicas = objects("--kind=tfjob", *CASES[case])[1]["spec"]["tfReplicaSpecs"]
    names = {"PS": "ps", "Worker": "worker"}
    hosts = {
        names[kind]: [
            f"{wanted.name}-{names[kind]}-{index}.ns.svc:{wanted.port}" for index in range(one["replicas"])
        ]
        for kind, one in replicas.items()
    }
    assert {job: len(addresses) for job, addresses in hosts.items()} == wanted.sizes
    for kind, one in replicas.items():
        args = [expanded(arg, {}) for arg in one["template"]["spec"]["containers"][0]["args"]]
        task = {"type": names[kind], "index": one["replicas"] - 1}
        text = json.dumps({"cluster": hosts, "task": task, "environment": "cloud"})
        found = train.make_plan(flags.parse(args)[0], {"TF_CONFIG": text})
        assert (str(found.place.task), found.config) == (f"{task['type']}:{task['index']}", wanted.config)


def test_what_becomes_of_a_pod_that_fails():
    for job in by_kind(*FULL)["Job"]:
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        permanent, moved = spec["podFailurePolicy"]["rules"]
        assert permanent["action"] == "FailJob" and moved["action"] == "Ignore"
        assert permanent["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
        codes = permanent["onExitCodes"]["values"]
        assert 1 in codes and max(codes) < 128  # 130, 138, 143 and SIGKILL's 137 are tried again
        assert 0 not in codes and codes == sorted(codes)  # else it is refused
        assert pod["restartPolicy"] == "Never"  # the policy needs it
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
        assert spec["backoffLimit"] == 10 * spec["completions"]
        assert pod["terminationGracePeriodSeconds"] > 60


def test_only_the_pods_reach_the_port():
    for kind in manifest.KINDS:
        found = by_kind(f"--kind={kind}", *FULL)
        (policy,) = found["NetworkPolicy"]
        selector = policy["spec"]["podSelector"]
        assert policy["spec"]["ingress"] == [
            {"from": [{"podSelector": selector}], "ports": [{"protocol": "TCP", "port": 3333}]}
        ]
        templates = [job["spec"]["template"] for job in found.get("Job", [])]
        for job in found.get("TFJob", []):
            templates += [one["template"] for one in job["spec"]["tfReplicaSpecs"].values()]
        assert len(templates) == 2
        for template in templates:
            assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
            assert template["spec"]["automountServiceAccountToken"] is False
            (container,) = template["spec"]["containers"]
            assert [port["containerPort"] for port in container["ports"]] == [3333]
        for service in found.get("Service", []):
            assert service["spec"]["selector"] == selector["matchLabels"]
            assert service["spec"]["clusterIP"] == "None"
        assert {one["metadata"]["namespace"] for group in found.values() for one in group} == {"team-a"}


def test_resources_and_volume():
    ps, worker = (job["spec"]["template"]["spec"] for job in by_kind(*FULL)["Job"])
    assert ps["containers"][0]["resources"] == {
        "requests": {"cpu": "0.5", "memory": "4Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert worker["containers"][0]["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": "2"}
    for pod in (ps, worker):
        assert pod["containers"][0]["volumeMounts"] == [{"name": "train", "mountPath": "/train/mine"}]
        assert pod["volumes"] == [{"name": "train", "persistentVolumeClaim": {"claimName": "train"}}]
    least = by_kind(*CASES["least"])["Job"][0]["spec"]["template"]["spec"]
    assert least["containers"][0]["resources"] == {} and "volumes" not in least


def test_texts_stay_texts_for_every_reader_of_yaml():
    """YAML 1.2 reads 1e3 as a number, YAML 1.1 does not; and a line break must not end the comment."""
    text = manifest.as_yaml(
        plan("--image=mine", "--namespace=1e3", "--cpus=2", "--model_params=a=x\nkind: Pod")
    )
    assert 'namespace: "1e3"' in text and 'cpu: "2"' in text
    assert all(line.startswith("# ") for line in text.partition("---\n")[0].splitlines())
    (job, _) = [one for one in yaml.safe_load_all(text) if one["kind"] == "Job"]
    assert "--model_params=a=x\nkind: Pod" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_all_that_is_wrong_is_told_at_once():
    assert problems("--job_name=ps", "--report_file=r", "--num_ps=0", "--batch_size=0", "--name=My_job", "--namespace=-a",
                    "--train_volume=A", "--cpus=0", "--memory=4", "--port=80", "--gpus=2,3") == [
        "--job_name=ps is of no use in a manifest, which gives each pod its own place. Leave it out.",
        "--report_file=r is of no use in a manifest, which gives each pod its own place. Leave it out.",
        "--num_ps=0 is out of range. Expected a whole number from 1.",
        "--batch_size=0 is out of range. Expected a whole number from 1.",
        "The command manifest needs an image for the pods, and none is given. Add --image=IMAGE, with ps_train installed in it.",
        "--name='My_job' cannot be a part of host names. Expected a small letter and then small letters, digits and '-', no '-' "
        "at the end, 54 characters at most.",
        "--namespace='-a' is not a namespace. Expected small letters, digits and '-', not at the ends, 63 characters at most.",
        "--train_volume='A' is not the name of a PersistentVolumeClaim. Expected small letters, digits, '-' and '.'.",
        "--port=80 is out of range. Expected a whole number from 1024 to 65535.",
        "--cpus='0' is not a number of processors. Expected such as 4, 0.5 or 500m.",
        "--memory='4' is not a size of memory. Expected such as 4Gi or 500Mi.",
        "--train_volume=A has no place in the containers. Expected --train_dir with a path from the root, such as "
        "--train_dir=/train/mine: the volume is mounted there.",
        "--gpus=2,3: in a container the GPUs have numbers from 0. For 2 of them write --gpus=0,1.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "start"),
    [
        (["--train_dir=/t"], "--train_dir=/t would be in a container's own files, which are gone when"),
        (["--train_volume=v", "--train_dir=t"], "--train_volume=v has no place in the containers."),
        (["--train_volume=v", "--train_dir=/"], "--train_volume=v has no place in the containers."),
        (["--kind=tfjob", "--colocate_ps", "--num_workers=1"], "--kind=tfjob with one task: the operator"),
        (["--worker_hosts=a:1"], "--worker_hosts=a:1 is of no use in a manifest"),
        (["--private_network"], "--private_network=True is of no use in a manifest"),
        (["--image=a b"], "--image='a b' is not an image."),
        (["--name=" + "a" * 55], f"--name='{'a' * 55}' cannot be a part of host names."),
        (["--name=1a"], "--name='1a' cannot be a part of host names."),
        (["--name="], "--name='' cannot be a part of host names."),
        (["--num_ps=1", "--colocate_ps"], "--num_ps=1 beside --colocate_ps"),
        (["--update=sync", "--replicas_to_aggregate=3"], "--replicas_to_aggregate=3 is more than the 2 work"),
    ],
)
def test_a_wrong_flag(args, start):
    (line,) = problems("--image=mine", *args)
    assert line.startswith(start)


def test_a_name_is_as_long_as_its_host_names_allow():
    assert plan("--image=mine", "--name=" + "a" * 54)
    found = by_kind("--image=mine", "--num_workers=100", "--name=" + "a" * 53)
    assert len(f"{found['Job'][1]['metadata']['name']}-99") == 63


def test_flags_of_this_command_alone():
    with pytest.raises(UsageError) as caught:
        flags.parse(["--image=mine", "--name=mine"])
    assert [line.split(".")[0] for line in str(caught.value).splitlines()] == [
        "--name is a flag of the command manifest",
        "--image is a flag of the command manifest",
    ]


def test_without_pyyaml(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert program.main(["manifest", "--image=mine"]) == 1
    assert capsys.readouterr() == (
        "",
        "ps_train: PyYAML is not installed, and the command manifest writes with it. Install it: pip install pyyaml, or in "
        "ps_train's checkout pip install '.[manifest]'.\n",
    )


def test_examples_are_there():
    assert [path.name for path in EXAMPLES] == ["plain.yaml", "tfjob.yaml"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_what_its_first_line_prints(path, capsys):
    text = path.read_text()
    words = shlex.split(text.splitlines()[0].removeprefix("# "))
    assert words[:4] == ["python", "-m", "ps_train", "manifest"]
    assert program.main(words[3:]) == 0
    assert capsys.readouterr().out == text
