"""The cluster and the task from TF_CONFIG, the JSON that Kubeflow, Vertex AI and Estimator jobs have in their environment.

>>> text = '{"cluster": {"ps": ["p:2222"], "master": ["m:2222"]}, "task": {"type": "master", "index": "0"}}'
>>> str(resolve({"TF_CONFIG": text}).task)
'chief:0'

`master` is another word for `chief`; without either, worker 0 is the chief. Jobs may be sparse, an object from index to
address. `evaluator` may stand in the cluster and is left out of it. Keys that are none of these are left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ps_train.cluster import FROM_TF_CONFIG, JOBS, Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.resolvers.resolved import Resolved, check_place, default_index
from ps_train.wording import shown

VARIABLE = "TF_CONFIG"
_EXAMPLE = '{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}'


def resolve(env: Mapping[str, str]) -> Resolved:
    """Raises `UsageError` with all problems; if TF_CONFIG is unset or empty both parts are None."""
    config = _load(env.get(VARIABLE, ""))
    if config.get("sparseCluster") and not config.get("cluster"):
        raise UsageError(
            "TF_CONFIG has 'sparseCluster', which shows each task only a part of the cluster. Expected 'cluster', "
            "with every task. Set enableDynamicWorker: false in the TFJob."
        )
    problems: list[str] = []
    cluster, task = None, None
    try:
        if config.get("cluster"):
            cluster = Cluster.from_dict(config["cluster"], FROM_TF_CONFIG)
    except UsageError as error:
        problems.append(str(error))
    try:
        if config.get("task"):
            task = _parse_task(config["task"], cluster)
            if not problems:
                check_place(task, cluster)
    except UsageError as error:
        problems.append(str(error))
    if problems:
        raise UsageError.from_problems(problems)
    return Resolved(cluster, task)


def _load(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"TF_CONFIG is not JSON: {error.msg} at character {error.pos} of {shown(text)}. Expected {_EXAMPLE}."
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"TF_CONFIG has a number or a nesting beyond all bounds. Expected {_EXAMPLE}."
        ) from None
    if not isinstance(config, dict):
        raise UsageError(f"TF_CONFIG is {shown(config)}. Expected an object, {_EXAMPLE}.")
    return config


def _parse_task(spec: Any, cluster: Cluster | None) -> TaskId:
    if not isinstance(spec, dict):
        raise UsageError(f"TF_CONFIG's 'task' is {shown(spec)}. Expected an object such as {_EXAMPLE_TASK}.")
    job = spec.get("type")
    if job == "master":
        job = "chief"
    if job not in JOBS:
        raise UsageError(
            f"TF_CONFIG's task type is {shown(job)}. Expected ps, worker, chief, master or evaluator."
        )
    index = spec.get("index")
    if index is None:
        index = default_index(job, cluster)
        if index is None:
            raise UsageError(
                f"TF_CONFIG's task has no index, and job {job!r} has several tasks. Add 'index'."
            )
    if isinstance(index, bool) or not re.fullmatch("[0-9]{1,9}", str(index).strip()):
        raise UsageError(f"TF_CONFIG's task index is {shown(index)}. Expected a whole number from 0.")
    return TaskId(job, int(index))


_EXAMPLE_TASK = '{"type": "worker", "index": 0}'
