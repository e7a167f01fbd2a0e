"""The cluster and the task from TF_CONFIG, the JSON that Kubeflow, Vertex AI and Estimator jobs have in their environment.

>>> text = '{"cluster": {"ps": ["p:2222"], "master": ["m:2222"]}, "task": {"type": "master", "index": "0"}}'
>>> str(resolve({"TF_CONFIG": text}).task)
'chief:0'

`master` is another word for `chief`; without either, worker 0 is the chief. Jobs may be sparse, an object from index to
address. `evaluator` may stand in the cluster and is left out of it. Platforms add keys of their own, which are left alone;
one that may be a slip for a key that is not there is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ps_train.cluster import FROM_TF_CONFIG, JOBS, Cluster, TaskId
from ps_train.errors import UsageError
from ps_train.resolvers.resolved import Resolved, check_place, default_index
from ps_train.wording import did_you_mean, nearest, shown

VARIABLE = "TF_CONFIG"
_EXAMPLE = '{"cluster": {"ps": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}'


def resolve(env: Mapping[str, str], is_colocated: bool = False) -> Resolved:
    """Raises `UsageError` with all problems; if TF_CONFIG is unset or empty both parts are None."""
    config = _load(env.get(VARIABLE, ""))
    if config.get("sparseCluster") and not config.get("cluster"):
        raise UsageError(
            "TF_CONFIG has 'sparseCluster', which shows each task only a part of the cluster. Expected 'cluster', "
            "with every task. Set enableDynamicWorker: false in the TFJob."
        )
    problems = _slips(config, ("cluster", "task"), "TF_CONFIG")
    cluster, task = None, None
    try:
        if config.get("cluster"):
            cluster = Cluster.from_dict(config["cluster"], FROM_TF_CONFIG, is_colocated)
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
        raise UsageError(
            f"TF_CONFIG is {shown(config) if config is not None else 'null'}. Expected an object, {_EXAMPLE}, "
            "or no TF_CONFIG at all."
        )
    return config


def _slips(spec: Mapping[str, Any], keys: Sequence[str], what: str) -> list[str]:
    """A line for each key of an object that is near to one of `keys` which it does not have."""
    missing = [key for key in keys if key not in spec]
    meant = {key: nearest(key, missing) for key in spec if key not in keys}
    return [f"{what} has the key {shown(key)}. Did you mean {near}?" for key, near in meant.items() if near]


def _parse_task(spec: Any, cluster: Cluster | None) -> TaskId:
    if not isinstance(spec, dict):
        raise UsageError(f"TF_CONFIG's 'task' is {shown(spec)}. Expected an object such as {_EXAMPLE_TASK}.")
    slips = _slips(spec, ("type", "index"), "TF_CONFIG's 'task'")
    if slips:
        raise UsageError.from_problems(slips)
    job = spec.get("type")
    if "type" not in spec:
        raise UsageError(
            f"TF_CONFIG's 'task' has no 'type', only {', '.join(map(shown, spec))}. Expected such as {_EXAMPLE_TASK}."
        )
    if job == "master":
        job = "chief"
    if job not in JOBS:
        raise UsageError(
            f"TF_CONFIG's task type is {shown(job)}. {did_you_mean(str(job), (*JOBS, 'master'))}"
            "Expected ps, worker, chief, master or evaluator."
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
