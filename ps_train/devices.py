"""A task's devices: what the flags of that group say, as a value.

>>> options = DeviceOptions(towers=2)
>>> options.tower_devices(num_gpus=0)
('/device:CPU:0', '/device:CPU:1')
>>> options.tower_devices(num_gpus=4)
('/device:GPU:0', '/device:GPU:1')
"""

from __future__ import annotations

from dataclasses import dataclass

from ps_train.errors import UsageError


@dataclass(frozen=True)
class DeviceOptions:
    """The devices of a worker's server; each field is the flag of that name. A ps hides GPUs from itself whatever they say."""

    towers: int = 1
    gpus: str | None = None
    gpu_memory_fraction: float | None = None
    allow_growth: bool = False
    inter_op_threads: int | None = None
    intra_op_threads: int | None = None
    log_device_placement: bool = False
    allow_soft_placement: bool = False

    def tower_devices(self, num_gpus: int) -> tuple[str, ...]:
        """The device of each tower on its worker: GPUs if there are any, else CPU devices.

        Raises:
          UsageError: more towers than GPUs.
        """
        kind = "GPU" if num_gpus else "CPU"
        if num_gpus and self.towers > num_gpus:
            raise UsageError(
                f"--towers={self.towers} is more than the {num_gpus} GPUs of this task. Lower it, or let the task see more "
                "by --gpus; --gpus=none puts the towers on the CPU."
            )
        return tuple(f"/device:{kind}:{number}" for number in range(self.towers))


def gpus_of(setting: str, index: int, num_workers: int) -> str:
    """What is left of --gpus for one of several workers on a host, as that worker's --gpus.

    >>> [gpus_of("0,1,2", index, 2) for index in range(2)]
    ['0,2', '1']
    >>> [gpus_of("0", index, 2) for index in range(2)], gpus_of("none", 0, 1)
    (['0', '0'], 'none')
    """
    if setting == "none":
        return setting
    numbers = setting.split(",")
    return ",".join(numbers[index % len(numbers) :: num_workers])
