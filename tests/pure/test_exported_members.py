"""What `import ps_train` gives, pinned: a change here is a change for users."""

import subprocess
import sys

import pytest

import ps_train

PUBLIC = [
    "Cluster",
    "DistributedOptimizer",
    "InputContext",
    "ModeKeys",
    "ModelError",
    "ModelSpec",
    "MonitoredTrainingSession",
    "PeerLostError",
    "PsTrainError",
    "Server",
    "StoppedError",
    "SyncReplicasOptimizer",
    "TaskId",
    "UsageError",
    "data",
    "global_batch_size",
    "replica_device_setter",
]
NEED_TENSORFLOW = {
    "DistributedOptimizer", "MonitoredTrainingSession", "Server", "SyncReplicasOptimizer", "replica_device_setter",
}  # fmt: skip


def test_public_names():
    assert sorted(ps_train.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(ps_train))


def test_version():
    assert ps_train.__version__.count(".") == 2


def test_unknown_name():
    with pytest.raises(AttributeError) as raised:
        ps_train.Sevrer  # noqa: B018
    assert str(raised.value) == "module 'ps_train' has no attribute 'Sevrer'"


def run(code):
    """Standard output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_import_brings_no_tensorflow():
    """Nor do the names that do not need it, which a launcher or a test of a model's input uses."""
    names = [name for name in PUBLIC if name not in NEED_TENSORFLOW]
    heavy = "('tensorflow', 'keras', 'numpy', 'grpc')"
    code = f"import sys, ps_train\nfor n in {names}: getattr(ps_train, n)\nprint(*[m for m in {heavy} if m in sys.modules])"
    assert run(code) == []


def test_each_name_is_there_before_any_other():
    """Whichever is used first: lazy imports have no order that works by chance."""
    for name in PUBLIC:
        if name not in NEED_TENSORFLOW:
            assert run(f"from ps_train import {name} as x; print(x.__name__.rpartition('.')[-1])") == [name]
