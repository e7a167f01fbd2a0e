"""The only `import tensorflow` of the package, made on first use, and the list of every private TensorFlow name in use.

    from ps_train.compat import tf1        # imports TensorFlow here, not at `import ps_train`

The import is quiet: TensorFlow 2.21 writes a handful of lines to file descriptor 2 before its own log level applies
(oneDNN, missing CUDA); they are held back during the import and shown only if it fails. Graph mode is switched on,
since everything here builds TF1 graphs.

Private or undocumented TensorFlow things that ps_train relies on, unchanged since TensorFlow 1.15 or the version named:

- the gRPC methods `/tensorflow.MasterService/{CreateSession,RunStep,CloseSession}` and their field numbers
  (tensorflow/core/protobuf/master.proto), in `board` and `messages`: the only calls that can be given a deadline;
- the environment variable `GRPC_FAIL_FAST`, read when a server starts, in `server`;
- `Graph._original_op`, `Dataset._variant_tensor`, `_inputs` and `_functions`, in `inputs`: an error of the input leads to
  the user's line;
- `Operation._original_op`, in `explain`: the op of the model that one of its gradient belongs to;
- `Operation._remove_all_control_inputs` and `_add_control_inputs`, in `failing`, `fusing`, `prefetch` and
  `rewiring`: what an op waits for;
- `Graph.as_graph_element`, replaced on a graph, in `fusing` and `rewiring`: `Session.run` calls it for each fetch;
- `Operation._update_input` and `_get_control_flow_context`, in `transport` and `rewiring`: another tensor for an op's input, which
  a session that has run does not see;
- the paths `tensorflow/python/client/session.py` and `ops/script_ops.py`, in `stacks`: what a thread is blocked in;
- `StopAtStepHook._last_step` and `_num_steps`, in `library`: a script's target;
- `Variable._get_save_slice_info`, in `restoring` and `placement`: the whole variable that a partition belongs to;
- `register_dispatchable_type` of tensorflow/python/util/dispatch.py (2.6), here, for `split_variable`: `dispatch_for_api` is
  public, but heeds only types that are composite tensors or were registered so;
- `_opt`, `_replicas_to_aggregate`, `_total_num_replicas`, `_variable_averages`, `_variables_to_average`, `_global_step` and
  `_gradients_applied` of TensorFlow's SyncReplicasOptimizer, in `updates.sync`, which is one;
- `Graph._get_function` and `cached_definition` (2.11) of what it gives, in `updates.allreduce`: the constants of a branch;
- the attribute `_as_graph_element`, in `split_variable`: what `Session.run` fetches for an object.
"""

import contextlib
import importlib.metadata
import os
import re
import sys
import tempfile

from ps_train.errors import UsageError

MIN_TENSORFLOW = (2, 21)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


def import_tensorflow():
    """Imports TensorFlow once, quietly, in graph mode; returns the module.

    Raises:
      UsageError: it is too old; not even imported if its metadata tell so, as an old one may fail in many ways.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # another name, such as tensorflow-cpu
        check_version(importlib.metadata.version("tensorflow"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            import tensorflow
        except Exception as error:  # not KeyboardInterrupt, whose reason is known
            os.dup2(stderr, 2)
            held.seek(0)
            sys.stderr.write(held.read().decode(errors="replace"))
            if isinstance(error, AttributeError):  # `from ps_train.compat import tf` would swallow it
                raise ImportError(f"tensorflow cannot be imported: {error}") from error
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    check_version(tensorflow.__version__)
    tensorflow.compat.v1.disable_eager_execution()
    tensorflow.get_logger().setLevel(os.environ.get("PS_TRAIN_TF_LOG_LEVEL", "ERROR"))
    tensorflow.get_logger().propagate = False
    return tensorflow


def check_version(version):
    """Raises UsageError for a TensorFlow older than MIN_TENSORFLOW.

    >>> check_version("2.21.0-rc1")
    >>> check_version("1.15.5")
    Traceback (most recent call last):
    ps_train.errors.UsageError: TensorFlow 1.15.5 is installed for ...
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_TENSORFLOW:
        wanted = ".".join(map(str, MIN_TENSORFLOW))
        raise UsageError(
            f"TensorFlow {version} is installed for {sys.executable}, and ps_train needs {wanted} or later. Run "
            f"{sys.executable} -m pip install 'tensorflow>={wanted}', or activate the environment of ps_train."
        )


def register_dispatchable(kind):
    """Class decorator: `tf.experimental.dispatch_for_api` calls what it is told to for arguments of this class."""
    from tensorflow.python.util import dispatch

    return dispatch.register_dispatchable_type(kind)


def __getattr__(name):
    if name not in ("tf", "tf1"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "tf" not in globals():
        globals()["tf"] = import_tensorflow()
        globals()["tf1"] = globals()["tf"].compat.v1
    return globals()[name]
