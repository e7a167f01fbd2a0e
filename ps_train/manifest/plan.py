"""What a manifest is to run, and what Kubernetes would not take of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from ps_train import command_lines
from ps_train.config import TrainConfig
from ps_train.wording import shown

KINDS = ("plain", "tfjob")


class Plan(NamedTuple):
    """What to run; `num_ps` is 0 where the workers hold the variables, what is None is left to Kubernetes."""

    kind: str
    name: str
    image: str
    num_ps: int
    num_workers: int
    config: TrainConfig
    namespace: str | None = None
    port: int = command_lines.PORT
    train_volume: str | None = None
    cpus: str | None = None
    memory: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Tasks of each job that has some."""
        return {job: count for job, count in (("ps", self.num_ps), ("worker", self.num_workers)) if count > 0}

    @property
    def num_gpus(self) -> int:
        """Of each worker."""
        return len(self.config.gpus.split(",")) if self.config.gpus not in (None, "none") else 0


def problems(plan: Plan) -> list[str]:
    """A line for each part that Kubernetes or the job could not use."""
    return _name_problems(plan) + _amount_problems(plan) + _directory_problems(plan) + _gpu_problems(plan)


def _name_problems(plan: Plan) -> list[str]:
    longest = 63 - max(
        len(f"-{job}-{count - 1}") for job, count in {**plan.sizes, "worker": plan.num_workers}.items()
    )
    found = []
    if not _is_label(plan.name, "[a-z]") or len(plan.name) > longest:
        found.append(
            f"--name={shown(plan.name)} cannot be a part of host names. Expected a small letter and then small letters, digits "
            f"and '-', no '-' at the end, {longest} characters at most."
        )
    if plan.namespace is not None and not _is_label(plan.namespace, "[a-z0-9]"):
        found.append(
            f"--namespace={shown(plan.namespace)} is not a namespace. Expected small letters, digits and '-', not at the ends, "
            "63 characters at most."
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", plan.image):
        found.append(
            f"--image={shown(plan.image)} is not an image. Expected such as registry.example/mine:1, with ps_train installed."
        )
    volume = plan.train_volume
    if volume is not None and (
        len(volume) > 253 or not all(_is_label(part, "[a-z0-9]") for part in volume.split("."))
    ):
        found.append(
            f"--train_volume={shown(volume)} is not the name of a PersistentVolumeClaim. Expected small letters, digits, '-' "
            "and '.'."
        )
    return found


def _is_label(text: str, first: str) -> bool:
    """Whether it is a DNS label, of RFC 1035 if it is to begin with a letter, else of RFC 1123."""
    return len(text) <= 63 and re.fullmatch(rf"{first}([-a-z0-9]*[a-z0-9])?", text) is not None


def _amount_problems(plan: Plan) -> list[str]:
    found = []
    if not 1024 <= plan.port <= 65535:  # below it a container needs rights that these do not have
        found.append(f"--port={plan.port} is out of range. Expected a whole number from 1024 to 65535.")
    if plan.cpus is not None and not re.fullmatch(
        r"[1-9][0-9]*m|(?=.*[1-9])[0-9]+(\.[0-9]{1,3})?", plan.cpus
    ):
        found.append(
            f"--cpus={shown(plan.cpus)} is not a number of processors. Expected such as 4, 0.5 or 500m."
        )
    if plan.memory is not None and not re.fullmatch(r"[1-9][0-9]*(\.[0-9]+)?([KMGT]i|[kMGT])", plan.memory):
        found.append(f"--memory={shown(plan.memory)} is not a size of memory. Expected such as 4Gi or 500Mi.")
    return found


def _directory_problems(plan: Plan) -> list[str]:
    directory, volume = plan.config.train_dir, plan.train_volume
    if directory and not volume:
        return [
            f"--train_dir={directory} would be in a container's own files, which are gone when it is started again. Add "
            "--train_volume=PVC, a PersistentVolumeClaim that all nodes can write (ReadWriteMany)."
        ]
    if volume and not re.match("/.*[^/.]", directory or ""):
        return [
            f"--train_volume={volume} has no place in the containers. Expected --train_dir with a path from the root, such as "
            "--train_dir=/train/mine: the volume is mounted there."
        ]
    return []


def _gpu_problems(plan: Plan) -> list[str]:
    gpus, count = plan.config.gpus, plan.num_gpus
    numbers = ",".join(map(str, range(count)))
    if not count or gpus == numbers:
        return []
    return [
        f"--gpus={gpus}: in a container the GPUs have numbers from 0. For {count} of them write --gpus={numbers}."
    ]
