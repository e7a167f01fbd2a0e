"""Whether this process can write where the flags say, told before anything starts; makes nothing.

>>> problems(TrainConfig(train_dir="/dev/null"))
['--train_dir=/dev/null is a file. Expected a directory.']
"""

from __future__ import annotations

import os

from ps_train.config import TrainConfig


def problems(config: TrainConfig, is_saving: bool = True, is_local: bool = False) -> list[str]:
    """A line for each flag that names a place which cannot be used.

    Args:
      config: the settings.
      is_saving: this process writes to `train_dir`: a chief, an evaluation, a local cluster.
      is_local: it starts a local cluster, which writes to `log_dir`.
    """
    found = _directory_problem("train_dir", config.train_dir, is_saving)
    if is_local:
        found += _directory_problem("log_dir", config.log_dir, is_written=True)
    found += _directory_problem("record", config.record, is_written=True)
    return found + _file_problem("report_file", config.report_file)


def _directory_problem(flag: str, path: str | None, is_written: bool) -> list[str]:
    if not path or "://" in path:
        return []
    if os.path.exists(path) and not os.path.isdir(path):
        return [f"--{flag}={path} is a file. Expected a directory."]
    return _obstacle(flag, path, path) if is_written else []


def _file_problem(flag: str, path: str | None) -> list[str]:
    if not path or "://" in path:
        return []
    if os.path.isdir(path):
        return [f"--{flag}={path} is a directory. Expected a file."]
    return _obstacle(flag, path, os.path.dirname(path) or os.curdir)


def _obstacle(flag: str, path: str, directory: str) -> list[str]:
    """Why nothing can be written in `directory`, which is made if it is missing: its nearest part that exists decides."""
    nearest = os.path.abspath(directory)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        return [f"The directory {directory} cannot be made: Not a directory. Choose another --{flag}."]
    if not os.access(nearest, os.W_OK | os.X_OK):
        return [
            f"--{flag}={path} cannot be written: {nearest} is not writable for this user. "
            "Choose another place, or change its permissions."
        ]
    return []
