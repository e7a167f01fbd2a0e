"""What a run is asked to do: `TrainConfig`, a frozen value with a field for each flag that is not about the cluster.

>>> config = TrainConfig(update="sync", train_steps=200, model_params=Params(units=64, dropout=0.1))
>>> config.problems(num_workers=2)
[]

`problems` finds everything that is wrong, so that one message can tell it together with the cluster's problems.
`as_flags` writes the value back as a command line, which is how a launcher hands it to its tasks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ps_train.choices import (
    AUTO_FUSE_BYTES,
    AUTO_PACK_BYTES,
    BUCKET_BYTES,
    DEFAULT_CHECKPOINT_SECS,
    DEFAULT_SUMMARIES_STEPS,
    read_steps,
)
from ps_train.contradictions import find_problems
from ps_train.params import Params, as_text, format_model_params

BUILTIN_MODEL = "ps_train.builtin_model"


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run, the same in every task. Each field is the flag of that name."""

    model: str | None = None
    """Path of a .py file or dotted name of a module with `input_fn` and `model_fn`; None: the built-in example."""
    model_params: Params = dataclasses.field(default_factory=Params)
    """Given to `input_fn` and `model_fn` as `params`."""
    batch_size: int = 32
    """Examples per worker and step."""
    input: str = "shard"
    """How workers divide the data: a fixed part each (`shard`), or pieces as they need them from a queue on the ps (`workqueue`)."""
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
    save_summaries_steps: int | None = None
    """Global steps between what the chief writes for TensorBoard; None: 100, unless `save_summaries_secs` is given; 0: never."""
    save_summaries_secs: float | None = None
    """Seconds between that; None: no limit by time."""
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
    trace_steps: str | None = None
    """Global steps, FIRST:LAST, both included, or one, of which a trace of all tasks is written; None: no trace."""
    status_port: str | None = None
    """`port`, on loopback, or `host:port` of a page that shows the running job; the launcher's, or that of a task on its own."""
    report_file: str | None = None
    """Where the task writes its JSON report at its end."""
    log_dir: str | None = None
    """Local cluster: directory of a log file per task."""
    colocate_ps: bool = False
    """Each worker's process holds a part of the variables; there are no ps tasks of their own."""
    private_network: bool = False
    """Local cluster: the tasks run in a network namespace of their own, so that nobody else reaches them."""
    record: str | None = None
    """Async: directory in which each task writes down what a replay needs."""
    log_every_secs: float = 10.0
    """Seconds between progress lines."""
    evaluate: bool | None = None
    """Local cluster: evaluate on held-out data at the end; None: for the built-in example only."""
    eval_steps: int | None = None
    """Batches per evaluation; None: until the evaluation data is used up."""
    eval_checkpoints: str = "newest"
    """What the command eval and `evaluate` look at: the newest checkpoint, or `all` that there are, the oldest first."""
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
    def trace_window(self) -> tuple[int, int] | None:
        """`trace_steps` as numbers."""
        return None if self.trace_steps is None else read_steps(self.trace_steps)

    @property
    def checkpoint_secs(self) -> float | None:
        """Seconds between checkpoints with the default filled in; None: by steps only.

        With both periods given, a checkpoint is due when the first of them is over.
        """
        if self.save_checkpoint_secs is None and self.save_checkpoint_steps is None:
            return DEFAULT_CHECKPOINT_SECS
        return self.save_checkpoint_secs

    @property
    def summaries_steps(self) -> int | None:
        """`save_summaries_steps` with the default filled in; None: by time only."""
        if self.save_summaries_secs is None and self.save_summaries_steps is None:
            return DEFAULT_SUMMARIES_STEPS
        return self.save_summaries_steps

    def problems(self, num_workers: int | None = None) -> list[str]:
        """A line for each value that is out of its range; `num_workers` is the number of training tasks, if known."""
        return find_problems(self, num_workers)

    def as_flags(self) -> list[str]:
        """The command line of this value: `--name=value` for each field that is not at its default."""
        args = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "model_params":
                if value:
                    args.append(f"--model_params={format_model_params(value)}")
            elif value != field.default:
                args.append(f"--{field.name}={as_text(value)}")
        return args
