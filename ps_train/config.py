"""What a run is asked to do: `TrainConfig`, a frozen value with a field for each flag that is not about the cluster.

>>> config = TrainConfig(update="sync", train_steps=200, model_params=parse_model_params("units=64,dropout=0.1"))
>>> config.model_params
{'units': 64, 'dropout': 0.1}
>>> config.problems(num_workers=2)
[]

`problems` finds everything that is wrong, so that one message can tell it together with the cluster's problems.
`as_flags` writes the value back as a command line, which is how a launcher hands it to its tasks.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ps_train.errors import UsageError
from ps_train.wording import did_you_mean, shown

UPDATES = ("async", "sync", "allreduce")
LOSS_POLICIES = ("fail", "continue")
NAN_POLICIES = ("stop", "skip", "ignore")
BUILTIN_MODEL = "ps_train.builtin_model"
DEFAULT_CHECKPOINT_SECS = 600.0
AUTO_PACK_BYTES = 128 * 1024
AUTO_FUSE_BYTES = 512 * 1024
BUCKET_BYTES = 64 * 2**20
MAX_BUCKET_BYTES = 2**30  # TensorFlow's limit of a message is 2 GB
WIRE_DTYPES = ("float32", "bfloat16", "float16", "int8")
PARTITIONS = ("none", "auto")
RATE_SCALES = ("none", "linear", "sqrt")
_NOT_WITH_ALLREDUCE = (
    "colocate_ps", "first_ps_bytes", "replicas_to_aggregate", "on_worker_loss", "partition", "wire_dtype", "prefetch", "topk",
    "accumulate_steps", "local_steps", "autotune", "profile_steps",
)  # fmt: skip
MAX_SEED = 2**31 - 1

ParamValue = int | float | bool | str


class Params(dict[str, ParamValue]):
    """A dict that cannot be changed, in the order of the flag. Copy it with `dict(params)` to change the copy."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("model_params cannot be changed. Change a copy: dict(params).")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        """Equal params have equal hashes, whatever their order."""
        return hash(frozenset(dict.items(self)))

    def __reduce__(self) -> tuple[type[Params], tuple[dict[str, ParamValue]]]:
        """Pickles and copies by value; dict's own way would set the items one by one."""
        return (Params, (dict(self),))


def _noting_all(name: str) -> Any:
    def method(self: WatchedParams, *args: Any) -> Any:
        self._asked.update(dict.keys(self))
        return getattr(Params, name)(self, *args)

    return method


class WatchedParams(Params):
    """Params that note which keys they are asked for; all of them, once they are iterated, copied or passed on whole.

    >>> params = WatchedParams(units=3, lerning_rate=0.5)
    >>> params["units"], params.get("learning_rate", 0.1)
    (3, 0.1)
    >>> params.unread()
    ["--model_params has 'lerning_rate', which was not read while the graph was built. Did you mean learning_rate?"]
    >>> params.unread(may_be_read=lambda key: key == "lerning_rate")
    []
    >>> _ = dict(params)
    >>> params.unread()
    []
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: set[Any] = set()

    def unread(self, may_be_read: Callable[[str], bool] = lambda key: False) -> list[str]:
        """A line for each key that nobody has asked for, with the guess of one that somebody has.

        Args:
          may_be_read: of a key: whether it may be asked for later, as while the data is read, or elsewhere.
        """
        given = set(dict.keys(self))
        read = sorted(key for key in self._asked if isinstance(key, str))
        wanted = [key for key in read if key not in given]
        known = f"Read were: {', '.join(read)}." if read else "Leave it out."
        return [
            f"--model_params has {key!r}, which was not read while the graph was built. "
            + (did_you_mean(key, wanted).strip() or known)
            for key in dict.keys(self)
            if key not in self._asked and not may_be_read(key)
        ]

    def __getitem__(self, key: str) -> ParamValue:
        self._asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's."""
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(key)
        return super().__contains__(key)

    keys, values, items, copy = (
        _noting_all("keys"),
        _noting_all("values"),
        _noting_all("items"),
        _noting_all("copy"),
    )
    __iter__, __reversed__ = _noting_all("__iter__"), _noting_all("__reversed__")
    __or__, __ror__, __reduce__ = _noting_all("__or__"), _noting_all("__ror__"), _noting_all("__reduce__")


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run, the same in every task. Each field is the flag of that name."""

    model: str | None = None
    """Path of a .py file or dotted name of a module with `input_fn` and `model_fn`; None: the built-in example."""
    model_params: Params = dataclasses.field(default_factory=Params)
    """Given to `input_fn` and `model_fn` as `params`."""
    batch_size: int = 32
    """Examples per worker and step."""
    train_steps: int | None = None
    """Global steps in total, over all workers and restarts; None: until the workers' data is used up."""
    update: str = "async"
    """How gradients are applied: `async` (each worker's at once), `sync` (aggregated), `allreduce` (the same, without ps)."""
    replicas_to_aggregate: int | None = None
    """Sync: gradients per update; None: one of each worker; fewer makes the others backup workers."""
    train_dir: str | None = None
    """Directory of checkpoints and event files; None: nothing is saved."""
    save_checkpoint_steps: int | None = None
    """Global steps between checkpoints; None: no limit by steps."""
    save_checkpoint_secs: float | None = None
    """Seconds between checkpoints; None: 600, unless `save_checkpoint_steps` is given. See `checkpoint_secs`."""
    keep_checkpoint_max: int = 5
    """How many checkpoints to keep; 0: all."""
    startup_timeout_secs: float = 300.0
    """How long, in seconds, a task waits for the others to come up."""
    peer_timeout_secs: float = 60.0
    """How long, in seconds, a peer may be gone before it counts as lost."""
    shutdown_timeout_secs: float = 30.0
    """How long, in seconds, a task waits for the others at its end."""
    stall_secs: float = 30.0
    """How long, in seconds, no step may complete before a task logs what it waits for."""
    on_worker_loss: str = "fail"
    """Sync, a worker is gone for `peer_timeout_secs`: `fail` ends the job with 138, `continue` goes on without it."""
    on_nan: str = "stop"
    """NaN or Inf in loss or gradients: `stop` ends the job with 1, `skip` drops the step, `ignore` does not look."""
    pack_bytes: str = "auto"
    """Size, in bytes, up to which variables and gradients of one ps travel together; `auto`: 131072; 0: each by itself."""
    fuse_bytes: str = "auto"
    """Size, in bytes, up to which variables of one ps that are updated alike become one; `auto`: 524288; 0: none does."""
    bucket_bytes: int = BUCKET_BYTES
    """Size, in bytes, of what is joined, at most: with several, one is on its way while another is computed."""
    first_ps_bytes: str = "auto"
    """With `colocate_ps`: bytes of variables that the first worker takes before the others get any; `auto`: by the cluster."""
    partition: str = "none"
    """Large variables: each on one ps (`none`), or split over the ps tasks (`auto`)."""
    wire_dtype: str = "float32"
    """Type in which trainable variables and gradients travel: `float32` (as they are), `bfloat16`, `float16` or `int8`."""
    prefetch: bool = False
    """Async: a worker pulls the next step's variables while it computes, without its own last update."""
    topk: float = 1.0
    """Fraction of a gradient's elements, the largest, that is sent; what is left out is added to the next gradient."""
    accumulate_steps: int = 1
    """Batches of a worker's step, whose mean gradient is pushed."""
    local_steps: int = 1
    """Batches of a worker's step, by which it trains a copy of its own, whose difference is pushed."""
    max_staleness: int | None = None
    """Async: a gradient whose variables have had more updates of others since is dropped; None: none is."""
    scale_by_staleness: bool = False
    """Async: the learning rate is divided by the gradient's staleness."""
    scale_rate: str = "none"
    """The learning rate is multiplied by the number of workers (`linear`), its square root (`sqrt`), or not (`none`)."""
    max_lead: int | None = None
    """Async: how many steps a worker may be ahead of the slowest before it waits; None: any number."""
    warmup_steps: int = 0
    """Async: the chief trains alone up to this global step."""
    autotune: bool = False
    """Try what the flags allow of pack_bytes, wire_dtype and prefetch for some steps each, and keep the fastest."""
    tune_process: bool = True
    """Freed memory stays with the process, for the next step; threads that share processors with other tasks do not spin."""
    towers: int = 1
    """Copies of the model on a worker, each with batches of its own on a device of its own; their mean gradient is pushed."""
    gpus: str | None = None
    """Numbers of this host's GPUs for a worker, with commas; several workers of a local cluster divide them; `none`; None: all."""
    gpu_memory_fraction: float | None = None
    """Part of each GPU's memory that a task takes; None: TensorFlow takes nearly all."""
    allow_growth: bool = False
    """GPU memory is taken as it is needed."""
    inter_op_threads: int | None = None
    """Threads of a task that run ops side by side; None: as TensorFlow chooses."""
    intra_op_threads: int | None = None
    """Threads of a task that one op may use; None: as TensorFlow chooses."""
    log_device_placement: bool = False
    """A worker prints the device of every op."""
    allow_soft_placement: bool = False
    """An op whose device there is not, or that has no kernel there, runs on the CPU."""
    seed: int | None = None
    """Graph-level seed, from which each worker's stream is derived; None: another one each run."""
    profile_steps: int = 0
    """How many steps a worker traces, spread over the run, to tell where the time goes; 0: none."""
    report_file: str | None = None
    """Where the task writes its JSON report at its end."""
    log_dir: str | None = None
    """Local cluster: directory of a log file per task."""
    colocate_ps: bool = False
    """Each worker's process holds a part of the variables; there are no ps tasks of their own."""
    private_network: bool = False
    """Local cluster: the tasks run in a network namespace of their own, so that nobody else reaches them."""
    log_every_secs: float = 10.0
    """Seconds between progress lines."""
    evaluate: bool | None = None
    """Local cluster: evaluate on held-out data at the end; None: for the built-in example only."""
    eval_steps: int | None = None
    """Batches per evaluation; None: until the evaluation data is used up."""
    debug: bool = False
    """Show the traceback of an error in the model."""

    @property
    def has_no_ps(self) -> bool:
        """Whether the workers hold the variables, each a part of them or all."""
        return self.colocate_ps or self.update == "allreduce"

    @property
    def pack_limit(self) -> int:
        """`pack_bytes` as a number."""
        return AUTO_PACK_BYTES if self.pack_bytes == "auto" else int(self.pack_bytes)

    @property
    def fuse_limit(self) -> int:
        """`fuse_bytes` as a number."""
        return AUTO_FUSE_BYTES if self.fuse_bytes == "auto" else int(self.fuse_bytes)

    @property
    def checkpoint_secs(self) -> float | None:
        """Seconds between checkpoints with the default filled in; None: by steps only.

        With both periods given, a checkpoint is due when the first of them is over.
        """
        if self.save_checkpoint_secs is None and self.save_checkpoint_steps is None:
            return DEFAULT_CHECKPOINT_SECS
        return self.save_checkpoint_secs

    def problems(self, num_workers: int | None = None) -> list[str]:
        """A line for each value that is out of its range; `num_workers` is the number of training tasks, if known."""
        found = []
        for name in (
            "batch_size",
            "accumulate_steps",
            "local_steps",
            "towers",
            "inter_op_threads",
            "intra_op_threads",
            "train_steps",
            "replicas_to_aggregate",
            "max_lead",
            "save_checkpoint_steps",
            "eval_steps",
        ):
            found += _out_of_range(name, getattr(self, name), minimum=1)
        found += _out_of_range("bucket_bytes", self.bucket_bytes, minimum=1, maximum=MAX_BUCKET_BYTES)
        for name in ("keep_checkpoint_max", "profile_steps", "max_staleness", "warmup_steps"):
            found += _out_of_range(name, getattr(self, name), minimum=0)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_secs") and not (value is None and field.default is None):
                found += _not_a_duration(field.name, value)
        found += _out_of_range("seed", self.seed, minimum=0, maximum=MAX_SEED)
        for name in ("pack_bytes", "fuse_bytes", "first_ps_bytes"):
            size = getattr(self, name) or ""  # None for an empty flag
            if size != "auto" and not re.fullmatch("[0-9]{1,12}", size):
                found.append(
                    f"--{name}={shown(size, 40)[1:-1]} is not a size. Expected a whole number of bytes, or auto."
                )
        if not 0 < self.topk <= 1:
            found.append(
                f"--topk={self.topk:g} is not a part of a gradient's elements. Expected a number above 0, up to 1 for all."
            )
        if self.prefetch and self.update == "sync":
            found.append(
                "--prefetch has no meaning in sync, where a step's variables exist when the step before is over. "
                "Leave it out, or train with --update=async."
            )
        if self.first_ps_bytes != "auto" and not self.has_no_ps:
            found.append(
                "--first_ps_bytes is for --colocate_ps: ps tasks of their own share the variables evenly. Leave it out."
            )
        if self.colocate_ps and self.on_worker_loss == "continue":
            found.append(
                "--on_worker_loss=continue cannot be kept with --colocate_ps, where a part of the variables is lost with a "
                "worker. Leave out one of the two."
            )
        if self.colocate_ps and self.accumulate_steps > 1 and self.update == "async":
            found.append(
                f"--accumulate_steps={self.accumulate_steps} with --colocate_ps needs --update=sync: in async a worker's own part "
                "of the variables changes between the batches of a step. Leave out one of the two."
            )
        found += self._allreduce_problems() + self._device_problems() + self._staleness_problems()
        if self.local_steps > 1:
            found += self._local_problems()
        if self.profile_steps:
            found += self._profile_problems()
        if self.update not in UPDATES:
            found.append(f"--update={self.update} is not an update rule. Expected async, sync or allreduce.")
        for name, choices in (
            ("on_worker_loss", LOSS_POLICIES),
            ("on_nan", NAN_POLICIES),
            ("partition", PARTITIONS),
            ("wire_dtype", WIRE_DTYPES),
            ("scale_rate", RATE_SCALES),
        ):
            if getattr(self, name) not in choices:
                found.append(f"--{name}={getattr(self, name)} is unknown. Expected {', '.join(choices)}.")
        for name in ("train_dir", "log_dir", "report_file"):
            found += _not_a_path(name, getattr(self, name))
        found += _not_a_checkpoint_directory(self.train_dir)
        return found + self._aggregation_problems(num_workers)

    def _allreduce_problems(self) -> list[str]:
        if self.update != "allreduce":
            return []
        named = {"profile_steps": "profile_steps (or bench)"}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in _NOT_WITH_ALLREDUCE if getattr(self, name) != defaults[name]]
        found = [
            f"--{named.get(name, name)} is not for --update=allreduce, where each worker has all variables and takes part in every step. Leave "
            "it out."
            for name in given
        ]
        if self.on_nan == "skip":
            found.append(
                "--on_nan=skip is not for --update=allreduce: the others wait for a gradient of each worker. Take stop or ignore."
            )
        return found

    def _device_problems(self) -> list[str]:
        found = []
        if self.gpus is not None and not re.fullmatch(r"none|\d+(,\d+)*", self.gpus):
            found.append(
                f"--gpus={shown(self.gpus, 40)[1:-1]} is no list of GPUs. Expected numbers with commas, such as 0,1, or none."
            )
        fraction = self.gpu_memory_fraction
        if fraction is not None and not 0 < fraction <= 1:
            found.append(
                f"--gpu_memory_fraction={fraction:g} is no part of a GPU's memory. Expected a number above 0, up to 1."
            )
        return found

    def _staleness_problems(self) -> list[str]:
        if self.update == "async":
            return []
        given = {
            "max_staleness": self.max_staleness is not None,
            "scale_by_staleness": self.scale_by_staleness,
            "max_lead": self.max_lead is not None,
            "warmup_steps": self.warmup_steps > 0,
        }
        return [
            f"--{name} is for --update=async: in {self.update} every gradient is of the newest variables. Leave it out."
            for name, is_given in given.items()
            if is_given
        ]

    def _profile_problems(self) -> list[str]:
        found = []
        if self.autotune:
            found.append(
                "--autotune changes how the steps go that --profile_steps (or bench) measures. Leave out one of the two: profile "
                "with the flags that a run with --autotune has logged."
            )
        for name in ("accumulate_steps", "local_steps"):
            if (count := getattr(self, name)) > 1:
                found.append(
                    f"--{name}={count} makes {count} runs of the graph a step, of which --profile_steps (or bench) traces one. "
                    f"Leave out one of the two: without --{name} it tells where a batch's time goes."
                )
        return found

    def _local_problems(self) -> list[str]:
        found = []
        if self.accumulate_steps > 1:
            found.append(
                f"--local_steps={self.local_steps} and --accumulate_steps={self.accumulate_steps} exclude one another: a "
                "worker trains with each batch, or adds up their gradients. Leave one out; --batch_size makes a batch larger."
            )
        if self.prefetch:
            found.append(
                f"--prefetch has no meaning with --local_steps={self.local_steps}, where a worker pulls once for so many "
                "batches. Leave one out."
            )
        return found

    def _aggregation_problems(self, num_workers: int | None) -> list[str]:
        wanted = self.replicas_to_aggregate
        if wanted is None or self.update == "allreduce":
            return []
        if self.update == "async":
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

    def as_flags(self) -> list[str]:
        """The command line of this value: `--name=value` for each field that is not at its default."""
        args = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "model_params":
                if value:
                    args.append(f"--model_params={format_model_params(value)}")
            elif value != field.default:
                args.append(f"--{field.name}={_as_text(value)}")
        return args


def parse_model_params(text: str | None) -> Params:
    """`"units=64,rate=1e-3,name=a:b"` as a dict; raises `UsageError` with all problems.

    `true` and `false` in any case become bool, decimal numbers int or float, everything else stays text. A value may
    contain `=` and `:` but no comma; blanks around keys and values are dropped.
    """
    params: dict[str, ParamValue] = {}
    problems = []
    for item in (text or "").split(",") if (text or "").strip() else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            problems.append(
                f"--model_params has {_quoted(item)}, which has no '='. Expected key=value,key=value; "
                "a value cannot contain a comma."
            )
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            problems.append(
                f"--model_params has the key {_quoted(key)}. "
                "Expected a letter or '_' and then letters, digits, '_', '.' or '-'."
            )
        elif key in params:
            problems.append(f"--model_params has the key {_quoted(key)} twice. Expected each key once.")
        else:
            params[key] = _parse_value(value)
    if problems:
        raise UsageError.from_problems(problems)
    return Params(params)


def format_model_params(params: dict[str, ParamValue]) -> str:
    """The inverse of `parse_model_params`."""
    return ",".join(f"{key}={_as_text(value)}" for key, value in params.items())


def _parse_value(text: str) -> ParamValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return float(text)
    return text


def _as_text(value: ParamValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


def _out_of_range(name: str, value: int | None, minimum: int, maximum: int | None = None) -> list[str]:
    if value is None or (value >= minimum and (maximum is None or value <= maximum)):
        return []
    upto = "" if maximum is None else f" to {maximum}"
    return [f"--{name}={value} is out of range. Expected a whole number from {minimum}{upto}."]


def _not_a_path(name: str, value: str | None) -> list[str]:
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
