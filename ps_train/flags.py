"""The command line's flags: defined once, grouped for --help, and turned into `TrainConfig` and `ClusterFlags`.

    values, words = parse(["--update=sync", "--train_steps=200", "eval"])
    config_from_flags(values).update      # 'sync'
    words                                 # ['eval']

They live on a `FlagValues` of their own and never on absl's global FLAGS, so that a script that uses ps_train as a
library can define flags of the same names. A flag of a `TrainConfig` field has the field's name and default.
"""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags

from ps_train.choices import (
    EVAL_CHECKPOINTS,
    INPUTS,
    LOSS_POLICIES,
    NAN_POLICIES,
    PARTITIONS,
    RATE_SCALES,
    UPDATES,
    WIRE_DTYPES,
)
from ps_train.cluster import JOBS
from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.manifest import KINDS as MANIFEST_KINDS
from ps_train.params import Params, parse_model_params
from ps_train.resolvers import CHOICES, ClusterFlags
from ps_train.wording import did_you_mean, shown


class Seconds(float):
    """The kind of a flag that is a number of seconds, or stands alone for `WATCH_SECS`."""


class FlagSpec(NamedTuple):
    """One flag: `kind` is int, float, bool, str, Seconds, the tuple of allowed words, or list: text that may be given several times."""

    name: str
    kind: type | tuple[str, ...]
    default: Any
    meaning: str


WATCH_SECS = 2.0
_FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}


def _field(name: str, kind: type | tuple[str, ...], meaning: str) -> FlagSpec:
    default = _FIELDS[name].default
    return FlagSpec(name, kind, None if default is dataclasses.MISSING else default, meaning)


GROUPS: dict[str, tuple[FlagSpec, ...]] = {
    "Model and training": (
        _field(
            "model", str, "path of a .py file or dotted module with input_fn and model_fn [built-in digits]"
        ),
        _field(
            "model_params", str, "key=value,key=value given to both as params; numbers and booleans parsed"
        ),
        _field("batch_size", int, "examples per worker and step"),
        _field("input", INPUTS, "how workers divide the data: shard, or workqueue: pieces as they need them"),
        _field(
            "train_steps", int, "global steps in total, over all workers and restarts [until data is used up]"
        ),
        _field("update", UPDATES, "how gradients are applied: async, sync, or allreduce (no ps)"),
        FlagSpec("sync_replicas", bool, None, "legacy spelling of --update=sync; --nosync_replicas: async"),
        _field(
            "replicas_to_aggregate", int, "sync: gradients per update; fewer = backup workers [all workers]"
        ),
        _field("on_worker_loss", LOSS_POLICIES, "sync, a worker is lost: fail, or continue without it"),
        _field("on_nan", NAN_POLICIES, "NaN or Inf in loss or gradients: stop, skip the step, or ignore"),
        _field(
            "pack_bytes", str, "variables and gradients up to this size travel together; 0: each by itself"
        ),
        _field(
            "fuse_bytes", str, "variables up to this size that are updated alike become one; 0: none does"
        ),
        _field("bucket_bytes", int, "the most that is joined: smaller ones overlap with computing"),
        _field("first_ps_bytes", str, "--colocate_ps: what the first worker holds before the others do"),
        _field("partition", PARTITIONS, "large variables: each on one ps, or auto: split over them"),
        _field("wire_dtype", WIRE_DTYPES, "type in which trainable variables and gradients travel"),
        _field("prefetch", bool, "async: pull the next step's variables while this one computes"),
        _field("topk", float, "fraction of a gradient's elements, the largest, that is sent"),
        _field("accumulate_steps", int, "batches of a worker's step, whose mean gradient is pushed"),
        _field("local_steps", int, "batches that a worker trains a copy of its own with before it pushes"),
        _field("max_staleness", int, "async: drop a gradient that more updates of others came before [none]"),
        _field("scale_by_staleness", bool, "async: divide the learning rate by the gradient's staleness"),
        _field("scale_rate", RATE_SCALES, "multiply the learning rate by the workers, or their square root"),
        _field("max_lead", int, "async: steps that a worker may be ahead of the slowest [any number]"),
        _field("warmup_steps", int, "async: the chief trains alone up to this global step"),
        _field("autotune", bool, "try transports for some steps each at the start, and keep the fastest"),
        _field(
            "tune_process", bool, "freed memory is kept for the next step; no spinning on shared processors"
        ),
        _field("towers", int, "copies of the model on a worker, with a device and batches of its own each"),
        _field("seed", int, "graph-level seed; each worker's stream is derived from it [another each run]"),
    ),
    "This task's place in a cluster": (
        FlagSpec(
            "job_name", JOBS, None, "ps, worker, chief or evaluator; without it a local cluster is started"
        ),
        FlagSpec("task_index", int, None, "index in the job, from 0"),
        FlagSpec("ps_hosts", str, None, "comma-separated host:port of the ps tasks"),
        FlagSpec("worker_hosts", str, None, "comma-separated host:port of the workers"),
        FlagSpec("chief_host", str, None, "host:port of the chief [worker 0 is the chief]"),
        _field("colocate_ps", bool, "each worker holds a part of the variables; no ps tasks of their own"),
        FlagSpec("cluster_resolver", CHOICES, "auto", "where the cluster comes from: " + ", ".join(CHOICES)),
        FlagSpec(
            "port_base",
            int,
            None,
            "srun, mpirun, launch: a host's first task listens there [by the job's number]",
        ),
    ),
    "Devices": (
        _field("gpus", str, "numbers of the GPUs that a worker uses, as 0,1, or none [all]"),
        _field("gpu_memory_fraction", float, "part of each GPU's memory that a task takes [nearly all]"),
        _field("allow_growth", bool, "take GPU memory as it is needed"),
        _field("inter_op_threads", int, "threads of a task that run ops side by side [TensorFlow's choice]"),
        _field("intra_op_threads", int, "threads of a task that one op may use [TensorFlow's choice]"),
        _field("log_device_placement", bool, "a worker prints the device of every op"),
        _field("allow_soft_placement", bool, "ops whose device there is not run on the CPU"),
    ),
    "Local cluster": (
        FlagSpec(
            "num_ps", int, 1, "ps tasks to start on this host; of the tasks of srun or mpirun, how many"
        ),
        FlagSpec("num_workers", int, 2, "how many workers to start on this host"),
        _field("log_dir", str, "directory of a log file per task"),
        _field(
            "private_network", bool, "a network of its own: nobody else reaches the tasks, nor they anybody"
        ),
        _field("evaluate", bool, "evaluate on held-out data at the end [for the built-in model only]"),
    ),
    "Launching, with the command launch; the first five with experiment, too": (
        FlagSpec("hosts", str, None, "host:slots,host:slots, reached by ssh; a slot is a task"),
        FlagSpec("hostfile", str, None, "the same in a file: on each line a host, and slots=N or nothing"),
        FlagSpec("remote_dir", str, None, "working directory of the tasks on other hosts [this one]"),
        FlagSpec("remote_python", str, None, "interpreter of ps_train there [this one]"),
        FlagSpec("ssh", str, None, "the program, with options of yours, as 'ssh -p 2222' [ssh]"),
        FlagSpec("chief", bool, False, "a script's cluster has a chief beside its workers"),
        FlagSpec("evaluator", bool, False, "a script has an evaluator, too"),
        FlagSpec("max_restarts", int, 0, "times that all tasks are started again after a retryable end"),
    ),
    "Checkpoints and reports": (
        _field("train_dir", str, "directory of checkpoints and event files [nothing is saved]"),
        _field("save_checkpoint_steps", int, "global steps between checkpoints"),
        _field("save_checkpoint_secs", float, "seconds between checkpoints [600, if no steps are given]"),
        _field("keep_checkpoint_max", int, "checkpoints to keep; 0: all"),
        _field("save_summaries_steps", int, "global steps between events for TensorBoard; 0: none [100]"),
        _field("save_summaries_secs", float, "seconds between events for TensorBoard [by steps]"),
        _field("eval_steps", int, "batches per evaluation [until the data is used up]"),
        _field("eval_checkpoints", EVAL_CHECKPOINTS, "eval, --evaluate: the newest, or all, oldest first"),
        _field("report_file", str, "JSON that this task writes at its end"),
        _field("record", str, "async: directory in which each task writes what the command replay needs"),
        FlagSpec("until", int, None, "replay: the global step at which it ends [the end of the record]"),
        _field("log_every_secs", float, "seconds between progress lines"),
        _field("debug", bool, "show the traceback of an error in the model"),
    ),
    "Failures to rehearse, with the command chaos; each may be given several times": (
        FlagSpec(
            "kill",
            list,
            None,
            "TASK@STEP or TASK@STEP:SECSs: SIGKILL from that step on; again after 1 s, or never",
        ),
        FlagSpec("term", list, None, "the same with SIGTERM"),
        FlagSpec("stop", list, None, "TASK@STEP:SECSs: SIGSTOP, and so much later SIGCONT"),
    ),
    "Experiments, with the command experiment; --grid may be given several times": (
        FlagSpec("grid", list, None, "flag=value,value flag=value,value: the points are all combinations"),
        FlagSpec("seeds", int, None, "runs of each point, with --seed and those after it [3, from 1]"),
        FlagSpec("evaluations", int, None, "of each run, as it goes; 1: at its end alone [10]"),
        FlagSpec(
            "out", str, None, "directory of runs, tables, plots and report.html; replay: of its checkpoint"
        ),
    ),
    "Bounds of every wait, in seconds": (
        _field("startup_timeout_secs", float, "for the other tasks to come up"),
        _field("peer_timeout_secs", float, "for a peer that is gone to come back"),
        _field("shutdown_timeout_secs", float, "for the others at the end"),
    ),
    "Watching a job": (
        _field("stall_secs", float, "no step for so many seconds: log once what this task waits for"),
        _field("profile_steps", int, "steps that a worker traces to tell where the time goes; 0: none"),
        _field("trace_steps", str, "global steps FIRST:LAST, both included: one trace of all tasks [none]"),
        FlagSpec("summary", bool, False, "trace: each step's time by parts, and its critical path"),
        FlagSpec("bench_secs", float, None, "bench: seconds of training that are measured [15]"),
        FlagSpec(
            "json", bool, False, "status, bench, doctor, plan, trace, replay: JSON in place of the table"
        ),
        FlagSpec("watch", Seconds, None, "status: look again every so many seconds, 2 if not given"),
        _field(
            "status_port",
            str,
            "a page that shows the running job: port, on loopback, or host:port; 0: a free one",
        ),
    ),
    "Other clusters simulated, with the command plan": (
        FlagSpec(
            "bench_report", str, None, "what bench --report_file wrote, or a report with --profile_steps"
        ),
        FlagSpec(
            "compute_ms", float, None, "a step's time on the worker, without links and ps [as measured]"
        ),
        FlagSpec("compute_cv", float, None, "its standard deviation over its mean [as measured, or 0]"),
        FlagSpec("megabytes", float, None, "that a step pulls and pushes each, in float32 [as measured]"),
        FlagSpec(
            "update_ms", float, None, "in which one ps alone would apply a gradient [as measured, or 0]"
        ),
        FlagSpec("link_mbit", float, None, "of each host's link in each direction [as measured]"),
        FlagSpec("ps_link_mbit", float, None, "of a ps's link [as --link_mbit]"),
        FlagSpec("latency_ms", float, None, "of a message, one way [as measured, or 0]"),
        FlagSpec(
            "overlap", bool, False, "tensors travel while their step computes, as with little --bucket_bytes"
        ),
        FlagSpec("slow_workers", int, None, "workers that compute --slow_factor times as long [0]"),
        FlagSpec("slow_factor", float, None, "see --slow_workers [2]"),
    ),
    "Kubernetes, with the command manifest": (
        FlagSpec("kind", MANIFEST_KINDS, None, "plain: Jobs and a Service; tfjob: Kubeflow's TFJob [plain]"),
        FlagSpec("name", str, None, "the job's name, of which those of its pods are made [ps-train]"),
        FlagSpec("namespace", str, None, "where the objects belong [that of kubectl]"),
        FlagSpec("image", str, None, "the pods' image, with ps_train installed"),
        FlagSpec("port", int, None, "every pod listens there [2222]"),
        FlagSpec("train_volume", str, None, "PersistentVolumeClaim that is mounted at --train_dir"),
        FlagSpec("cpus", str, None, "processors that each pod asks for, such as 4 or 500m [none]"),
        FlagSpec("memory", str, None, "memory that each pod asks for and is bounded by, such as 4Gi [none]"),
    ),
    "Command line": (
        FlagSpec("flagfile", str, None, "read flags from this file, one per line"),
        FlagSpec("undefok", str, None, "comma-separated flags that may be given though they do not exist"),
        FlagSpec("help", bool, False, "print this and end"),
        FlagSpec("version", bool, False, "print the version and end"),
    ),
}


NAMES = frozenset(spec.name for specs in GROUPS.values() for spec in specs)
OF_SOME_COMMANDS = {
    "kill": ("chaos",),
    "term": ("chaos",),
    "stop": ("chaos",),
    **dict.fromkeys(("grid", "seeds", "evaluations"), ("experiment",)),
    "out": ("experiment", "replay"),
    "until": ("replay",),
    "bench_secs": ("bench",),
    "summary": ("trace",),
    "json": ("status", "bench", "doctor", "plan", "trace", "replay"),
    "watch": ("status",),
    **dict.fromkeys(
        (
            "bench_report",
            "compute_ms",
            "compute_cv",
            "megabytes",
            "update_ms",
            "link_mbit",
            "ps_link_mbit",
            "latency_ms",
            "overlap",
            "slow_workers",
            "slow_factor",
        ),
        ("plan",),
    ),  # fmt: skip
    "kind": ("manifest",),
    "name": ("manifest",),
    "namespace": ("manifest",),
    "image": ("manifest",),
    "port": ("manifest",),
    "train_volume": ("manifest",),
    "cpus": ("manifest",),
    "memory": ("manifest",),
    **dict.fromkeys(
        ("hosts", "hostfile", "remote_dir", "remote_python", "ssh"),
        ("launch", "experiment"),
    ),
    **dict.fromkeys(
        ("chief", "evaluator", "max_restarts"),
        ("launch",),
    ),
}


def make_flags(problems: list[str] | None = None) -> flags.FlagValues:
    """A fresh set of all flags at their defaults.

    A value that cannot be read raises `UsageError`, or is appended to `problems` if a list is given.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)  # flags may follow the command
    for spec in (spec for group in GROUPS.values() for spec in group):
        parser = _Parser(spec, problems)
        if spec.kind is list:
            flag: flags.Flag[Any] = flags.MultiFlag(parser, None, spec.name, spec.default, spec.meaning)
        else:
            flag = flags.Flag(
                parser, None, spec.name, spec.default, spec.meaning, boolean=spec.kind in (bool, Seconds)
            )  # fmt: skip
        flags.DEFINE_flag(flag, values)
    return values


def parse(args: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """Flags and the remaining words of a command line without its program name; all problems in one `UsageError`."""
    problems: list[str] = []
    values = make_flags(problems)
    args, script = _split_off_script(args)
    try:
        rest = values(["ps_train", *args], known_only=True)[1:]
    except flags.CantOpenFlagFileError as error:
        reason = re.sub(r"(?s).*\[Errno \d+\] ", "", str(error))
        raise UsageError(f"--flagfile cannot be read: {reason}. Check its path.") from None
    except UnicodeDecodeError:
        raise UsageError(
            "--flagfile is not a text file. Expected one flag per line, as --name=value."
        ) from None
    except (flags.Error, ValueError, RecursionError) as error:
        raise UsageError(_plain(error)) from None
    words = [word for word in rest if not re.match("-+[^-]", word) and word != "--"]
    problems += [_unknown(word, values) for word in rest if re.match("-+[^-]", word)]
    problems += _of_another_command(values, words)
    if problems and not values["help"].value:
        raise UsageError.from_problems(problems)
    return values, words + script


def _split_off_script(args: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """What is before the command of a script, with launch, and that: -- and its words, flags of its own among them."""
    if "--" not in args or "launch" not in args[: args.index("--")]:
        return args, []
    index = args.index("--")
    return args[:index], list(args[index:])


def config_from_flags(values: flags.FlagValues) -> TrainConfig:
    """The settings; raises `UsageError` for values that contradict each other. Ranges are `TrainConfig.problems`."""
    settings: dict[str, Any] = {name: values[name].value for name in _FIELDS}
    settings = {name: None if value == "" else value for name, value in settings.items()}
    problems = []
    try:
        settings["model_params"] = parse_model_params(settings["model_params"])
    except UsageError as error:
        problems.append(str(error))
        settings["model_params"] = Params()
    sync_replicas = values["sync_replicas"].value
    if sync_replicas is not None:
        wanted = "sync" if sync_replicas else "async"
        if not values["update"].using_default_value and settings["update"] != wanted:
            problems.append(
                f"--update={settings['update']} contradicts --{'' if sync_replicas else 'no'}sync_replicas, "
                f"which is the legacy spelling of --update={wanted}. Keep one."
            )
        settings["update"] = wanted
    if problems:
        raise UsageError.from_problems(problems)
    return TrainConfig(**settings)


def cluster_flags(values: flags.FlagValues) -> ClusterFlags:
    """The flags that place this process in a cluster."""
    names = [field.name for field in dataclasses.fields(ClusterFlags)]
    given: dict[str, Any] = {
        name: values[name].value for name in names if not values[name].using_default_value
    }
    if values["update"].value == "allreduce":
        given["colocate_ps"] = True
    return ClusterFlags(**given)


def help_lines() -> list[str]:
    """A line or two for each flag, by groups."""
    lines = []
    for title, specs in GROUPS.items():
        lines += ["", f"{title}:"]
        for spec in specs:
            name = (
                f"  --[no]{spec.name}"
                if spec.kind is bool and spec.default is not False
                else f"  --{spec.name}"
            )
            default = "" if spec.default in (None, False) else f" ({_number(spec.default)})"
            meaning = textwrap.wrap(spec.meaning + default, 76)
            lines.append(f"{name:<26}{meaning[0]}")
            lines += [" " * 26 + more for more in meaning[1:]]
    return lines


class _Parser(flags.ArgumentParser):
    """Reads one flag's value and names the flag in what it says about it."""

    def __init__(self, spec: FlagSpec, problems: list[str] | None) -> None:
        self._spec = spec
        self._problems = problems

    def parse(self, argument: Any) -> Any:
        if not isinstance(argument, str):
            return argument
        kind = self._spec.kind
        if not argument and isinstance(kind, tuple) and self._spec.default is None:
            return None  # legacy scripts have --job_name= for a run in one process
        try:
            return _read_word(argument, kind) if isinstance(kind, tuple) else _READERS[kind](argument)
        except ValueError as error:
            problem = f"--{self._spec.name}={argument} {error}"
        if self._problems is None:
            raise UsageError(problem)
        self._problems.append(problem)
        return None


def _read_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise ValueError("is not a whole number. Expected digits.")
    return int(text)


def _read_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError("is not a number. Expected one such as 60 or 0.5.")
    return number


def _read_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError("is not a boolean. Expected true or false.")
    return word in ("true", "t", "1")


def _read_seconds(text: str) -> Seconds | None:
    if text in ("true", "false"):  # as absl has it for a flag that stands alone, and for --no
        return Seconds(WATCH_SECS) if text == "true" else None
    number = _read_float(text)
    if not 0 < number < math.inf:
        raise ValueError("is not a time to wait. Expected a number of seconds above 0.")
    return Seconds(number)


def _read_word(text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(
            f"is not a choice. {did_you_mean(text, allowed)}Expected one of {', '.join(allowed)}."
        )
    return text


_READERS: dict[type, Callable[[str], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: str,
    Seconds: _read_seconds,
    list: str,
}


def _unknown(word: str, values: flags.FlagValues) -> str:
    name = word.lstrip("-").partition("=")[0]
    first, blank, value = name.partition(" ")
    if blank and first in values:
        return (
            f"{shown(word)} is one word: in a flagfile a value follows '='. Write --{first}={value.strip()}."
        )
    boolean_names = [f"no{flag}" for flag in values if values[flag].boolean]
    guess = did_you_mean(name, [*values, *boolean_names], prefix="--")
    return f"Unknown flag --{name}. {guess}See --help for all flags."


def _of_another_command(values: flags.FlagValues, words: Sequence[str]) -> list[str]:
    """A line for each flag that only some commands have, and the line has another one."""
    return [
        f"--{name} is a flag of the command {' or '.join(known)}. Write python -m ps_train {known[0]}, or leave it out."
        for name, known in OF_SOME_COMMANDS.items()
        if values[name].value and not set(known) & set(words)
    ]


def _plain(error: Exception) -> str:
    """What absl says about a malformed command line, in our words."""
    missing = re.fullmatch(r"Missing value for flag (-+\S+)|(-+flagfile) with no argument", str(error))
    if missing:
        name = missing[1] or missing[2]
        return f"{name} is given without a value. Write {name}=VALUE."
    argument = re.fullmatch(r"(?s)(-+no\w+)=.* does not take an argument", str(error))
    if argument:
        return f"{argument[1]} takes no value. Write it alone."
    return f"The command line cannot be read: {shown(str(error), 200)}. See --help."


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
