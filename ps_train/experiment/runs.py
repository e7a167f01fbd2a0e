"""The runs that an experiment consists of, as values: what each is started with, and whether a result is one of the same.

run = Run(point, config, num_ps=1, num_workers=2)
run.args                    # ['train', '--cluster_resolver=flags', '--num_ps=1', '--num_workers=2', '--update=sync', ...]
conflicts([run])            # a line for each folder that is somebody else's
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ps_train import command_lines
from ps_train.config import TrainConfig
from ps_train.experiment.grid import Point
from ps_train.experiment.results import DONE, read_record
from ps_train.wording import counted

FIGURES = 2  # changes with what the figures of a result mean
_PLACES = {"train_dir": None, "report_file": None, "log_dir": None}


class Run(NamedTuple):
    """One job of an experiment: a point with a seed.

    Attributes:
      point: of the grid.
      config: its settings, those of the point, its seed and its folder included.
      num_ps, num_workers: size.
      launch: flags of the command launch, which starts its tasks on hosts; none: they are a local cluster.
    """

    point: Point
    config: TrainConfig
    num_ps: int
    num_workers: int
    launch: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its train_dir."""
        assert self.config.train_dir is not None
        return self.config.train_dir

    @property
    def name(self) -> str:
        """Of its folder."""
        return os.path.basename(self.folder)

    @property
    def text(self) -> str:
        """As progress shows it."""
        return f"{self.point.text} seed={self.config.seed}"

    @property
    def args(self) -> list[str]:
        """The command line behind `python -m ps_train`."""
        return self._args(self.config)

    @property
    def args_elsewhere(self) -> list[str]:
        """The same without where its files are."""
        return self._args(dataclasses.replace(self.config, **_PLACES))  # type: ignore[arg-type]

    @property
    def settings(self) -> list[str]:
        """The same without the seed and where its files are."""
        return self._args(dataclasses.replace(self.config, seed=None, **_PLACES))  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        """Of everything that a result hangs on: settings, seed, the text of the model's file, and what its figures mean."""
        text = json.dumps([self.settings, self.config.seed, FIGURES])
        return hashlib.sha256(text.encode() + _content(self.config.model)).hexdigest()

    def _args(self, config: TrainConfig) -> list[str]:
        sizes = [f"--num_ps={self.num_ps}"] * (not config.has_no_ps) + [f"--num_workers={self.num_workers}"]
        command = ["launch", *self.launch] if self.launch else ["train", "--cluster_resolver=flags"]
        return [*command, *sizes, *config.as_flags()]

    def command(self, args: Sequence[str]) -> str:
        """A line for a shell."""
        return shlex.join([command_lines.python(), "-m", "ps_train", *args])


def _content(model: str | None) -> bytes:
    with contextlib.suppress(OSError):
        if model and model.endswith(".py"):
            with open(model, "rb") as file:
                return file.read()
    return b""


def conflicts(runs: Sequence[Run]) -> list[str]:
    """A line for each folder that is somebody else's, and for those that have the results of other settings."""
    found: list[str] = []
    differences: dict[str, list[str]] = {}
    for run in runs:
        record = read_record(run.folder)
        if (
            not record
            and os.path.isdir(run.folder)
            and any(name[0] != "." for name in os.listdir(run.folder))
        ):
            found.append(
                f"{run.folder} is there, and not of an experiment. Choose another --out, or remove it."
            )
        elif record.get("outcome") == DONE and record.get("digest") != run.digest:
            differences.setdefault(_difference(record["settings"], run.settings), []).append(run.folder)
    for difference, folders in differences.items():
        more = f" (and {counted(len(folders) - 1, 'more folder')})" if len(folders) > 1 else ""
        found.append(
            f"{folders[0]}{more} has the result of {difference}. Choose another --out, or remove what is to be run again."
        )
    return found


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    gone, come = [sorted(set(one) - set(other)) for one, other in ((old, new), (new, old))]
    if not gone and not come:
        return "another text of the model's file, or another version of ps_train"
    return f"other settings: {' '.join(gone) or 'nothing'} where there is now {' '.join(come) or 'nothing'}"
