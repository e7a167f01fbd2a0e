"""What is wrong with settings: values out of range, and those that contradict each other.

find_problems(TrainConfig(batch_size=0))      # ["--batch_size=0 is out of range. Expected a whole number from 1."]
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from ps_train.addresses import listen_address
from ps_train.choices import (
    EVAL_CHECKPOINTS,
    INPUTS,
    LOSS_POLICIES,
    MAX_BUCKET_BYTES,
    MAX_SEED,
    MAX_THREADS,
    NAN_POLICIES,
    PARTITIONS,
    RATE_SCALES,
    UPDATES,
    WIRE_DTYPES,
    read_steps,
)
from ps_train.errors import UsageError
from ps_train.wording import shown

_NOT_WITH_ALLREDUCE = (
    "colocate_ps", "first_ps_bytes", "replicas_to_aggregate", "on_worker_loss", "partition", "wire_dtype", "prefetch", "topk",
    "accumulate_steps", "local_steps", "autotune", "profile_steps", "trace_steps",
)  # fmt: skip
_NOT_WITH_RECORD = (
    "colocate_ps", "prefetch", "accumulate_steps", "local_steps", "max_lead", "autotune", "towers", "profile_steps", "trace_steps",
)  # fmt: skip


def find_problems(config: Any, num_workers: int | None = None) -> list[str]:
    """A line for each value that is out of its range, or contradicts another.

    Args:
      config: the TrainConfig, which asks this.
      num_workers: the number of training tasks, if known.
    """
    found = _range_problems(config) + _place_problems(config)
    found += _allreduce_problems(config) + _device_problems(config) + _staleness_problems(config)
    if config.local_steps > 1:
        found += _local_problems(config)
    if config.profile_steps:
        found += _profile_problems(config)
    if config.trace_steps is not None:
        found += _trace_problems(config)
    if config.record:
        found += _record_problems(config)
    found += _choice_problems(config) + _page_problems(config)
    for name in ("train_dir", "log_dir", "report_file", "record"):
        found += _not_a_path(name, getattr(config, name))
    found += _not_a_checkpoint_directory(config.train_dir)
    return found + _aggregation_problems(config, num_workers)


def _range_problems(config: Any) -> list[str]:
    found = []
    for name in (
        "batch_size",
        "accumulate_steps",
        "local_steps",
        "towers",
        "train_steps",
        "replicas_to_aggregate",
        "max_lead",
        "save_checkpoint_steps",
        "eval_steps",
    ):
        found += _out_of_range(name, getattr(config, name), minimum=1)
    for name in ("inter_op_threads", "intra_op_threads"):
        found += _out_of_range(name, getattr(config, name), minimum=1, maximum=MAX_THREADS)
    found += _out_of_range("bucket_bytes", config.bucket_bytes, minimum=1, maximum=MAX_BUCKET_BYTES)
    for name in (
        "keep_checkpoint_max",
        "save_summaries_steps",
        "profile_steps",
        "max_staleness",
        "warmup_steps",
    ):
        found += _out_of_range(name, getattr(config, name), minimum=0)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name.endswith("_secs") and not (value is None and field.default is None):
            found += _not_a_duration(field.name, value)
    found += _out_of_range("seed", config.seed, minimum=0, maximum=MAX_SEED)
    for name in ("pack_bytes", "fuse_bytes", "first_ps_bytes"):
        size = getattr(config, name) or ""  # None for an empty flag
        if size != "auto" and not re.fullmatch("[0-9]{1,12}", size):
            found.append(
                f"--{name}={shown(size, 40)[1:-1]} is not a size. Expected a whole number of bytes, or auto."
            )
    if not 0 < config.topk <= 1:
        found.append(
            f"--topk={config.topk:g} is not a part of a gradient's elements. Expected a number above 0, up to 1 for all."
        )
    return found


def _place_problems(config: Any) -> list[str]:
    """Of what depends on where the variables are, or when they are there."""
    found = []
    if config.prefetch and config.update == "sync":
        found.append(
            "--prefetch has no meaning in sync, where a step's variables exist when the step before is over. "
            "Leave it out, or train with --update=async."
        )
    if config.first_ps_bytes != "auto" and not config.has_no_ps:
        found.append(
            "--first_ps_bytes is for --colocate_ps: ps tasks of their own share the variables evenly. Leave it out."
        )
    if config.colocate_ps and config.on_worker_loss == "continue":
        found.append(
            "--on_worker_loss=continue cannot be kept with --colocate_ps, where a part of the variables is lost with a "
            "worker. Leave out one of the two."
        )
    if config.colocate_ps and config.accumulate_steps > 1 and config.update == "async":
        found.append(
            f"--accumulate_steps={config.accumulate_steps} with --colocate_ps needs --update=sync: in async a worker's own part "
            "of the variables changes between the batches of a step. Leave out one of the two."
        )
    return found


def _choice_problems(config: Any) -> list[str]:
    found = []
    if config.update not in UPDATES:
        found.append(f"--update={config.update} is not an update rule. Expected async, sync or allreduce.")
    for name, choices in (
        ("input", INPUTS),
        ("eval_checkpoints", EVAL_CHECKPOINTS),
        ("on_worker_loss", LOSS_POLICIES),
        ("on_nan", NAN_POLICIES),
        ("partition", PARTITIONS),
        ("wire_dtype", WIRE_DTYPES),
        ("scale_rate", RATE_SCALES),
    ):
        if getattr(config, name) not in choices:
            found.append(f"--{name}={getattr(config, name)} is unknown. Expected {', '.join(choices)}.")
    return found


def _allreduce_problems(config: Any) -> list[str]:
    if config.update != "allreduce":
        return []
    named = {"profile_steps": "profile_steps (or bench)"}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    given = [name for name in _NOT_WITH_ALLREDUCE if getattr(config, name) != defaults[name]]
    found = [
        f"--{named.get(name, name)} is not for --update=allreduce, where each worker has all variables and takes part in every step. Leave "
        "it out."
        for name in given
    ]
    if config.input == "workqueue":
        found.append(
            "--input=workqueue is not for --update=allreduce: the queue is on a ps, and there is none. Leave it out: each worker "
            "reads a fixed part."
        )
    if config.on_nan == "skip":
        found.append(
            "--on_nan=skip is not for --update=allreduce: the others wait for a gradient of each worker. Take stop or ignore."
        )
    return found


def _device_problems(config: Any) -> list[str]:
    found = []
    if config.gpus is not None and not re.fullmatch(r"none|\d+(,\d+)*", config.gpus):
        found.append(
            f"--gpus={shown(config.gpus, 40)[1:-1]} is no list of GPUs. Expected numbers with commas, such as 0,1, or none."
        )
    fraction = config.gpu_memory_fraction
    if fraction is not None and not 0 < fraction <= 1:
        found.append(
            f"--gpu_memory_fraction={fraction:g} is no part of a GPU's memory. Expected a number above 0, up to 1."
        )
    return found


def _staleness_problems(config: Any) -> list[str]:
    if config.update == "async":
        return []
    given = {
        "max_staleness": config.max_staleness is not None,
        "scale_by_staleness": config.scale_by_staleness,
        "max_lead": config.max_lead is not None,
        "warmup_steps": config.warmup_steps > 0,
    }
    return [
        f"--{name} is for --update=async: in {config.update} every gradient is of the newest variables. Leave it out."
        for name, is_given in given.items()
        if is_given
    ]


def _profile_problems(config: Any) -> list[str]:
    found = []
    if config.autotune:
        found.append(
            "--autotune changes how the steps go that --profile_steps (or bench) measures. Leave out one of the two: profile "
            "with the flags that a run with --autotune has logged."
        )
    for name in ("accumulate_steps", "local_steps"):
        if (count := getattr(config, name)) > 1:
            found.append(
                f"--{name}={count} makes {count} runs of the graph a step, of which --profile_steps (or bench) traces one. "
                f"Leave out one of the two: without --{name} it tells where a batch's time goes."
            )
    return found


def _record_problems(config: Any) -> list[str]:
    if config.update != "async":
        return [
            f"--record is for --update=async: a run in {config.update} with a --seed does not depend on timing. Leave it out."
        ]
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    found = [
        f"--record does not know --{name}: a step is to be one run with one batch, and ps tasks apart. Leave out one of the two."
        for name in _NOT_WITH_RECORD
        if getattr(config, name) != defaults[name]
    ]
    if config.input == "workqueue":
        found.append(
            "--record does not know --input=workqueue, where timing decides who reads what. Leave out one of the two."
        )
    return found


def _trace_problems(config: Any) -> list[str]:
    found = []
    try:
        read_steps(config.trace_steps)
    except ValueError as error:
        found.append(f"--trace_steps={shown(config.trace_steps, 40)[1:-1]} {error}")
    if config.profile_steps:
        found.append(
            "--trace_steps and --profile_steps (or bench) both trace steps. Leave out one of the two."
        )
    if config.autotune:
        found.append(
            "--autotune changes how the steps go that --trace_steps shows. Leave out one of the two: trace with the flags that a "
            "run with --autotune has logged."
        )
    return found


def _local_problems(config: Any) -> list[str]:
    found = []
    if config.accumulate_steps > 1:
        found.append(
            f"--local_steps={config.local_steps} and --accumulate_steps={config.accumulate_steps} exclude one another: a "
            "worker trains with each batch, or adds up their gradients. Leave one out; --batch_size makes a batch larger."
        )
    if config.prefetch:
        found.append(
            f"--prefetch has no meaning with --local_steps={config.local_steps}, where a worker pulls once for so many "
            "batches. Leave one out."
        )
    return found


def _page_problems(config: Any) -> list[str]:
    if config.status_port is None:
        return []
    try:
        listen_address(config.status_port)
    except UsageError:
        return [
            f"--status_port={shown(config.status_port, 40)[1:-1]} is no place to listen. Expected a port such as 8080, 0 for a free "
            "one, or host:port."
        ]
    if config.private_network:
        return [
            "--status_port with --private_network: no browser reaches a page in there. Leave out one of the two."
        ]
    return []


def _aggregation_problems(config: Any, num_workers: int | None) -> list[str]:
    wanted = config.replicas_to_aggregate
    if wanted is None or config.update == "allreduce":
        return []
    if config.update == "async":
        return [
            f"--replicas_to_aggregate={wanted} has no meaning in async, where each gradient is applied by itself. "
            "Add --update=sync or leave it out."
        ]
    if num_workers is not None and wanted > num_workers:
        return [
            f"--replicas_to_aggregate={wanted} is more than the {num_workers} "
            f"{'worker' if num_workers == 1 else 'workers'}: an update would wait for gradients that "
            f"no worker computes. Expected 1 to {num_workers}."
        ]
    return []


def _out_of_range(name: str, value: int | None, minimum: int, maximum: int | None = None) -> list[str]:
    if value is None or (value >= minimum and (maximum is None or value <= maximum)):
        return []
    upto = "" if maximum is None else f" to {maximum}"
    return [f"--{name}={value} is out of range. Expected a whole number from {minimum}{upto}."]


def _not_a_path(name: str, value: str | None) -> list[str]:
    if any(
        "\udc80" <= letter <= "\udcff" for letter in value or ""
    ):  # bytes as Python reads them from a command line
        named = (value or "").encode(errors="surrogateescape").decode(errors="backslashreplace")
        return [
            f"--{name}={named} is no UTF-8, which TensorFlow's paths are. Expected a path in that encoding."
        ]
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", value or ""):
        return []
    return [
        f"--{name}={value} is a URL. Expected a path that this host can see, such as one on a mount of that storage."
    ]


def _not_a_checkpoint_directory(value: str | None) -> list[str]:
    """TensorFlow takes the name of a checkpoint for a glob when it reads and deletes, and not when it writes."""
    found = sorted(set(value or "") & set("[]*?\\"))
    if not found:
        return []
    return [
        f"--train_dir={value} has {' '.join(found)} in its name: TensorFlow would save there and not restore from it. "
        "Expected a name without [ ] * ? and backslash."
    ]


def _not_a_duration(name: str, value: Any) -> list[str]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and value > 0 and math.isfinite(value):
        return []
    text = f"{value:g}" if is_number else shown(value)
    return [f"--{name}={text} is not a time to wait. Expected a number of seconds above 0."]
