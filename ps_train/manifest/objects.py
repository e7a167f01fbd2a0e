"""The objects of a plan, as dicts; see the package for why they are these."""

from __future__ import annotations

from typing import Any

from ps_train import command_lines
from ps_train.cluster import Cluster, TaskId
from ps_train.errors import EXIT_PERMANENT
from ps_train.manifest.plan import Plan

RESTARTS = 10  # for each task of a Job, which one has in common
PERMANENT = (
    EXIT_PERMANENT,
    2,
    126,
    127,
)  # the last are Python's and the shell's: no such file, not a program
SAVE_SECS = 15  # to end a step and save, before the longest wait at the end begins
_INDEX = "$(JOB_COMPLETION_INDEX)"
_LABEL = "app.kubernetes.io"

Object = dict[str, Any]


def make_objects(plan: Plan) -> list[Object]:
    """The objects, in an order in which they can be created. Checks nothing: see `problems`."""
    if plan.kind == "tfjob":
        return [_network_policy(plan), _tf_job(plan)]
    return [_network_policy(plan), _service(plan), *(_job(plan, job) for job in plan.sizes)]


def _metadata(plan: Plan, name: str, **labels: str) -> Object:
    place = {} if plan.namespace is None else {"namespace": plan.namespace}
    return {"name": name, **place, "labels": {**_labels(plan), **labels}}


def _labels(plan: Plan) -> dict[str, str]:
    return {f"{_LABEL}/name": "ps-train", f"{_LABEL}/instance": plan.name}


def _network_policy(plan: Plan) -> Object:
    own = {"podSelector": {"matchLabels": _labels(plan)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(plan, plan.name),
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own], "ports": [{"protocol": "TCP", "port": plan.port}]}],
        },
    }


def _service(plan: Plan) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan, plan.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(plan),
            "ports": [{"name": "grpc", "port": plan.port}],
        },
    }


def _job(plan: Plan, job: str) -> Object:
    count = plan.sizes[job]
    container = f"ps-train-{job}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(plan, f"{plan.name}-{job}", **_component(job)),
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": RESTARTS * count,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": container,
                            "operator": "In",
                            "values": list(PERMANENT),
                        },
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            "template": _template(plan, job, container, "grpc", _plain_arguments(plan, job)),
        },
    }


def _tf_job(plan: Plan) -> Object:
    arguments = ["--cluster_resolver=tf_config", *plan.config.as_flags()]
    replicas = {
        {"ps": "PS", "worker": "Worker"}[job]: {
            "replicas": count,
            "restartPolicy": "ExitCode",
            "template": _template(plan, job, "tensorflow", "tfjob-port", arguments),
        }
        for job, count in plan.sizes.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": _metadata(plan, plan.name),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": replicas,
        },
    }


def _component(job: str) -> dict[str, str]:
    return {f"{_LABEL}/component": job}


def _plain_arguments(plan: Plan, job: str) -> list[str]:
    hosts = {
        name: [f"{plan.name}-{name}-{index}.{plan.name}:{plan.port}" for index in range(count)]
        for name, count in plan.sizes.items()
    }
    cluster = Cluster.from_hosts(hosts.get("ps"), hosts["worker"], None, plan.config.has_no_ps)
    first = command_lines.of_a_task(TaskId(job, 0), cluster, plan.config)
    return [first[0], f"--task_index={_INDEX}", *first[2:]]


def _template(plan: Plan, job: str, container: str, port: str, arguments: list[str]) -> Object:
    """A pod's: no token of the cluster's API, no more rights than it needs, and time to save when it is to end."""
    is_plain = plan.kind == "plain"
    pod = {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": int(plan.config.shutdown_timeout_secs) + SAVE_SECS,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(plan, job, container, port, arguments)],
    }
    if is_plain:  # the operator sets its own
        pod = {"restartPolicy": "Never", "subdomain": plan.name, **pod}
    if plan.train_volume:
        claim = {"claimName": plan.train_volume}
        pod["volumes"] = [{"name": "train", "persistentVolumeClaim": claim}]
    metadata: Object = {"labels": {**_labels(plan), **_component(job)}}
    if not is_plain:  # a proxy beside TensorFlow would break its connections, and not end
        metadata["annotations"] = {"sidecar.istio.io/inject": "false"}
    return {"metadata": metadata, "spec": pod}


def _container(plan: Plan, job: str, name: str, port: str, arguments: list[str]) -> Object:
    container = {
        "name": name,
        "image": plan.image,
        "command": ["python", "-m", "ps_train"],
        "args": [_escaped(argument) for argument in arguments],
        "ports": [{"name": port, "containerPort": plan.port}],
        "resources": _resources(plan, job),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if plan.train_volume:
        container["volumeMounts"] = [{"name": "train", "mountPath": plan.config.train_dir}]
    return container


def _escaped(argument: str) -> str:
    """For Kubernetes, which puts a variable's value in place of $(NAME) and one dollar in place of two."""
    head, index, tail = (
        argument.partition(_INDEX) if argument.startswith("--task_index=") else (argument, "", "")
    )
    return head.replace("$", "$$") + index + tail


def _resources(plan: Plan, job: str) -> Object:
    requests = {name: value for name, value in (("cpu", plan.cpus), ("memory", plan.memory)) if value}
    limits: dict[str, str] = {"memory": plan.memory} if plan.memory else {}
    if plan.num_gpus and job == "worker":
        limits["nvidia.com/gpu"] = str(plan.num_gpus)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
