"""Parameter-server training for TensorFlow 1 style graphs on today's TensorFlow.

From the command line, `python -m ps_train` trains a model file on a local cluster or as one task of a cluster of hosts.
As a library, a legacy script with its own loop keeps its shape; the names are TensorFlow's own:

    server = ps_train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()                                # returns when the job is over
    with tf1.device(ps_train.replica_device_setter(cluster=cluster)):
        ...
        optimizer = ps_train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=2, total_num_replicas=2)
    with ps_train.MonitoredTrainingSession(server.target, is_chief, checkpoint_dir=train_dir, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)

`import ps_train` imports no TensorFlow; the names that need it bring it in on first use.
"""

import _signal  # what Python itself has loaded; `signal` takes its time
import importlib
import os
import sys


def _leave(number, _):
    os.write(2, f"ps_train: Stopped by {'SIGINT' if number == _signal.SIGINT else 'SIGTERM'}.\n".encode())
    os._exit(128 + number)


def _leave_at_signals():
    """Until a task or `main` takes over, SIGINT and SIGTERM end the process with a line and the status of a task.

    It is not in the middle of an import with a traceback then, and a scheduler sees the status that it sees later, too.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # it is not ignored
        _signal.signal(_signal.SIGINT, _leave)
    if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGTERM, _leave)


# Python's own words while it looks for the module of `python -m ps_train ARGS`: ["-m", *ARGS].
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].partition(".")[0] == __name__:
    _leave_at_signals()

# TensorFlow reads this when it is imported, which is often right after this package.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.1.0"

_HOMES = {
    "Cluster": "cluster",
    "DistributedOptimizer": "updates.rules",
    "InputContext": "model",
    "ModelError": "errors",
    "ModelSpec": "model",
    "ModeKeys": "model",
    "MonitoredTrainingSession": "library",
    "PeerLostError": "errors",
    "PsTrainError": "errors",
    "Server": "library",
    "StoppedError": "errors",
    "SyncReplicasOptimizer": "updates.sync",
    "TaskId": "cluster",
    "UsageError": "errors",
    "data": "",  # itself a module
    "global_batch_size": "task_context",
    "replica_device_setter": "placement",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _HOMES[name]:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOMES])
