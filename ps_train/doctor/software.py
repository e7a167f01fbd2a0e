"""TensorFlow and GPUs, looked at in a process of their own; and variables of the environment that change what it does.

A process of its own, as an import of TensorFlow takes seconds and on a wrong processor or driver ends the process.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ps_train import packages
from ps_train.compat import MIN_TENSORFLOW, PROXY_VARIABLES
from ps_train.doctor.findings import Finding, ok, problem, warning
from ps_train.errors import UsageError
from ps_train.resolvers import tf_config
from ps_train.wording import as_bytes, shown

IMPORT_SECS = 12.0
SMI_SECS = 10.0  # without its daemon the driver is loaded first
MIN_FREE = 0.5  # of a GPU's memory; a task takes nearly all by default
_LOOK = """
import json, tensorflow as tf
found = {"version": tf.__version__, "gpus": len(tf.config.list_physical_devices("GPU")), "cuda": tf.test.is_built_with_cuda()}
print("\\n" + json.dumps(found))
"""
_SMI = (
    "nvidia-smi",
    "--query-gpu=index,name,driver_version,memory.free,memory.total",
    "--format=csv,noheader,nounits",
)

# What a variable does here; more begin with PREFIXES.
EFFECTS = {
    "CUDA_VISIBLE_DEVICES": "only these GPUs are seen, and --gpus replaces it",
    "GLIBC_TUNABLES": "freed memory may be kept otherwise than by --tune_process",
    "GRPC_DNS_RESOLVER": "host names are resolved in another way",
    "GRPC_FAIL_FAST": "ps_train sets it itself, to true",
    "GRPC_TRACE": "each call is logged, which is slow",
    "GRPC_VERBOSITY": "gRPC writes to the logs",
    "OMP_NUM_THREADS": "it bounds the threads of some ops, beside --intra_op_threads",
    "TF_CPP_MIN_LOG_LEVEL": "TensorFlow writes more or less to the logs; ps_train has 3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "it goes before --allow_growth",
    "TF_NUM_INTEROP_THREADS": "it goes for --inter_op_threads where that is not given",
    "TF_NUM_INTRAOP_THREADS": "it goes for --intra_op_threads where that is not given",
    "TF_USE_LEGACY_KERAS": "Keras 2 is used, of the extra legacy-layers; all tasks need it then",
}
PREFIXES = {
    "GRPC_": "gRPC may behave otherwise",
    "MALLOC_": "--tune_process leaves glibc's memory as these have it",
    "TF_": "TensorFlow may behave otherwise",
}
_TERRAFORMS = (
    "TF_CLI_", "TF_VAR_", "TF_LOG", "TF_DATA_DIR", "TF_INPUT", "TF_WORKSPACE", "TF_IN_AUTOMATION", "TF_PLUGIN_", "TF_REGISTRY_",
)  # fmt: skip
_HARMLESS = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # as ps_train has it
_NO_GPU = "Expected on a machine without one."


class Gpu(NamedTuple):
    """One of this machine's; `name` is its number and model."""

    name: str
    driver: str
    free_bytes: int
    total_bytes: int


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def check(env: Mapping[str, str], run: Run = subprocess.run) -> list[Finding]:
    """All of it, within IMPORT_SECS."""
    found = check_packages()
    if not found:
        with ThreadPoolExecutor() as pool:
            found += check_tensorflow(pool.submit(list_gpus, run).result, run)
    return [*found, *check_variables(env), check_proxies(env)]


def check_packages() -> list[Finding]:
    """A line for each package that is not installed, or that a file of the user's hides; none if all are there."""
    try:
        packages.check()
    except UsageError as error:
        return [problem("packages", line, "") for line in str(error).splitlines()]
    return []


def check_tensorflow(gpus: Callable[[], list[Gpu] | None], run: Run = subprocess.run) -> list[Finding]:
    """Its version, and whether it sees the GPUs, which `gpus` gives once TensorFlow has answered; None: no driver."""
    try:
        done = run([sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=IMPORT_SECS)
    except subprocess.TimeoutExpired:
        what = f"its import has taken more than {IMPORT_SECS:g} s."
        return [
            warning("tensorflow", what, "Look at the load and the file system that Python's packages are on.")
        ]
    if done.returncode:
        return [problem("tensorflow", f"its import fails: {_why(done)}.", _remedy(done.returncode))]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return [_version(found["version"]), *_gpu_findings(gpus(), found)]


def _version(version: str) -> Finding:
    lowest = ".".join(map(str, MIN_TENSORFLOW))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MIN_TENSORFLOW:
        return problem(
            "tensorflow", f"{version} is too old.", f"Install {lowest} or later: pip install -U tensorflow."
        )
    return ok("tensorflow", f"{version}.")


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"the process died of {signal.Signals(-done.returncode).name}"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip().rstrip(".") if lines else f"status {done.returncode}"


def _remedy(returncode: int) -> str:
    if returncode == -signal.SIGILL:
        return "The processor lacks what the wheel is compiled for: use another machine, or build TensorFlow here."
    return f"Try it: {sys.executable} -c 'import tensorflow'. Then install anew: pip install --force-reinstall tensorflow."


def list_gpus(run: Run = subprocess.run) -> list[Gpu] | None:
    """The GPUs that nvidia-smi shows; None if it is not there, or finds no driver."""
    try:
        done = run(list(_SMI), capture_output=True, text=True, timeout=SMI_SECS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    found = []
    for line in done.stdout.splitlines():
        number, name, driver, free, total = (part.strip() for part in (line.split(",") + [""] * 5)[:5])
        if free.isdigit() and total.isdigit():
            found.append(Gpu(f"{number} ({name})", driver, int(free) * 2**20, int(total) * 2**20))
    return found


def _gpu_findings(gpus: list[Gpu] | None, found: Mapping[str, object]) -> list[Finding]:
    if not gpus:
        why = "nvidia-smi finds no driver or is not there" if gpus is None else "nvidia-smi lists none"
        return [ok("gpu", f"no GPU: {why}, and TensorFlow sees {found['gpus']}. {_NO_GPU}")]
    findings = []
    if not found["cuda"]:
        what = f"{len(gpus)} in this machine, and this TensorFlow is built without CUDA."
        findings.append(warning("gpu", what, "For workers with GPUs: pip install 'tensorflow[and-cuda]'."))
    elif found["gpus"] != len(gpus):
        what = f"{len(gpus)} in this machine, of which TensorFlow sees {found['gpus']}."
        findings.append(
            warning("gpu", what, "Look at CUDA_VISIBLE_DEVICES, or pip install 'tensorflow[and-cuda]'.")
        )
    for name, driver, free, total in gpus:
        what = f"GPU {name}, driver {driver}, has {as_bytes(free)} of {as_bytes(total)} free."
        if free < MIN_FREE * total:
            remedy = "Another process has the rest: end it, or bound this job by --gpu_memory_fraction or --allow_growth."
            findings.append(warning("gpu", what, remedy))
        else:
            findings.append(ok("gpu", what))
    return findings


def check_variables(env: Mapping[str, str]) -> list[Finding]:
    """A line for each variable that changes what TensorFlow or glibc does."""
    findings = []
    for name in sorted(env):
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        if name.startswith(_TERRAFORMS):
            continue
        effect = EFFECTS.get(name) or PREFIXES.get(prefix)
        if effect and name != tf_config.VARIABLE and _HARMLESS.get(name) != env[name]:
            hides = name == "CUDA_VISIBLE_DEVICES" and env[name].strip() in ("", "-1")
            effect = "no GPU is seen" if hides else effect
            findings.append(warning("environment", f"{name}={shown(env[name], 40)} is set: {effect}.",
                                    "Unset it unless it is meant; other hosts may have another value."))  # fmt: skip
    return findings or [ok("environment", "no variable changes what TensorFlow, gRPC or glibc do.")]


def check_proxies(env: Mapping[str, str]) -> Finding:
    """Proxies are of no harm to the tasks; a dataset's download goes by them or not."""
    names = sorted(name for name in env if name.lower() in PROXY_VARIABLES and env[name])
    if not names:
        return ok("proxies", "none is set.")
    return ok(
        "proxies",
        f"{', '.join(names)}: set, and ignored by the tasks, whatever no_proxy says: they talk to one another directly, and an "
        "input_fn that downloads does so without it.",
    )
