"""The values that pass between ps_train and a user's model: `InputContext` in, `ModelSpec` out."""

import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps_train.errors import ModelError


class ModeKeys:
    """The values of `mode`; stands in for `tf.estimator.ModeKeys` in a ported `model_fn`.

    >>> ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT
    ('train', 'eval', 'predict')
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


def passes_of(repeat: Any) -> int | None:
    """How often data is read by an argument `repeat`: -1 for ever; None if it is out of range.

    >>> [passes_of(repeat) for repeat in (True, False, 3, 0, -1, "3")]
    [-1, 1, 3, None, None, None]
    """
    if not isinstance(repeat, int) or repeat < 0 or (repeat == 0 and repeat is not False):
        return None
    return -1 if repeat is True else int(repeat) or 1


@dataclass(frozen=True)
class InputContext:
    """What `input_fn` is told: which part of the data this task reads, and how.

    >>> context = InputContext(batch_size=64, num_shards=4, shard_index=1, seed=7)
    >>> [example for example in range(10) if example % context.num_shards == context.shard_index]
    [1, 5, 9]

    Attributes:
        mode: "train", "eval" or "predict".
        batch_size: examples per worker and step.
        num_shards: number of tasks that divide the data among them; 1 in "eval" and "predict".
        shard_index: this task's part, from 0.
        seed: this task's own stream (see `worker_seed`), or None where the job has no seed.
        params: `--model_params`, as parsed.
        work: what hands out pieces of the data, with --input=workqueue; see `pieces`.
    """

    mode: str = ModeKeys.TRAIN
    batch_size: int = 32
    num_shards: int = 1
    shard_index: int = 0
    seed: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    work: Any = None

    def pieces(self, count: int, repeat: bool | int = True, shuffle: bool = True) -> Any:
        """A `tf.data.Dataset` of the numbers, int64, of the pieces of the data that this task reads, such as files.

            paths = sorted(glob.glob("data/*.txt"))
            lines = context.pieces(len(paths)).flat_map(lambda number: tf.data.TextLineDataset(tf.constant(paths)[number]))

        With --input=shard these are each `num_shards`-th one. With --input=workqueue they come from a queue on the ps, as the reader
        asks for them, so that a fast worker reads more; each is handed out once in a pass over all. Read them one after the
        other, as `flat_map` does, and give the number of passes here, not by the dataset's `repeat`.

        A piece counts as done when the step is done that had the last of it; what a lost worker had not done comes again. What a
        `shuffle`, `prefetch` or parallel `map` has in hand then comes no more in that pass, of which a line in the log warns: the
        helpers of `ps_train.data` know of each batch, and lose nothing by `prefetch` and `map`. Two of these datasets, or a helper's,
        are not to be zipped: each gives other pieces. Read what belongs together in one function of `flat_map`.

        Args:
          count: pieces, numbered from 0; the same on all workers.
          repeat: in mode "train": True (for ever), False (one pass), or a number of passes.
          shuffle: in mode "train": whether chance orders them, anew in each pass.

        Raises:
          ModelError: what is wrong with an argument, in a line.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ModelError(f"context.pieces({count!r}): a number of pieces is expected, from 0.")
        passes = passes_of(repeat)
        if passes is None:
            raise ModelError(
                f"context.pieces(repeat={repeat!r}): True (for ever), False (one pass) or a number of passes is expected."
            )
        if self.work is not None:
            return self.work.pieces(count, passes, shuffle)
        from ps_train.compat import tf

        numbers = tf.data.Dataset.range(count).shard(self.num_shards, self.shard_index)
        if self.mode != ModeKeys.TRAIN:
            return numbers
        numbers = numbers.shuffle(count, self.seed) if shuffle and count else numbers
        return numbers.repeat(passes)


class WatchedContext(InputContext):
    """A context that notes whether it was asked for the task's part of the data.

    >>> context = WatchedContext(num_shards=2)
    >>> context.batch_size, context.is_sharding_read
    (32, False)
    >>> context.shard_index, context.is_sharding_read
    (0, True)
    """

    def __getattribute__(self, name: str) -> Any:
        if name in ("num_shards", "shard_index", "work"):
            object.__getattribute__(self, "__dict__")["_is_sharding_read"] = True
        return super().__getattribute__(name)

    @property
    def is_sharding_read(self) -> bool:
        """Whether anybody has asked for a part, by `num_shards`, `shard_index` or `work`, be it as one of all fields."""
        return self.__dict__.get("_is_sharding_read", False)


@dataclass(frozen=True)
class ModelSpec:
    """What `model_fn` returns.

    >>> ModelSpec(predictions={"digit": "a tensor"}).validate("predict").predictions
    {'digit': 'a tensor'}
    >>> ModelSpec().validate("predict")
    Traceback (most recent call last):
    ps_train.errors.ModelError: ModelSpec has no predictions, which mode 'predict' needs. Pass predictions=...

    Attributes:
        loss: scalar floating-point tensor; needed in "train" and "eval".
        optimizer: a `tf.compat.v1.train.Optimizer`, which ps_train applies. In "train", give this or:
        train_op: the op of one step, made with `ps_train.DistributedOptimizer(optimizer).minimize(...)`.
        predictions: a tensor or a structure of tensors; needed in "predict".
        metrics: name -> (value tensor, update op), as the functions in `tf.compat.v1.metrics` return them.
        training_hooks: `SessionRunHook`s added to every worker's session. They may not feed where a step has several batches
            (--accumulate_steps, --local_steps).
    """

    loss: Any = None
    optimizer: Any = None
    train_op: Any = None
    predictions: Any = None
    metrics: Mapping[str, tuple[Any, Any]] | None = None
    training_hooks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        """Notes the line of the call, for messages about what it was given."""
        caller = sys._getframe(2)  # 1 is the dataclass's __init__
        object.__setattr__(self, "_made_at", (caller.f_code.co_filename, caller.f_lineno))

    @property
    def made_at(self) -> tuple[str, int]:
        """File and line where it was made."""
        return self.__dict__["_made_at"]

    def validate(self, mode: str) -> "ModelSpec":
        """Returns self; raises ModelError, naming the field and the remedy, if `mode` cannot run with it."""
        if mode == ModeKeys.PREDICT:
            if self.predictions is None:
                raise ModelError(
                    "ModelSpec has no predictions, which mode 'predict' needs. Pass predictions=..."
                )
            return self
        _check_loss(self.loss, mode)
        _check_metrics(self.metrics)
        if mode == ModeKeys.TRAIN:
            self._check_train_fields()
        return self

    def _check_train_fields(self) -> None:
        if self.optimizer is None and self.train_op is None:
            raise ModelError(
                "ModelSpec has neither optimizer nor train_op, and mode 'train' needs one of them. "
                "Pass optimizer=tf.compat.v1.train.AdamOptimizer(1e-3), for one."
            )
        if self.optimizer is not None and self.train_op is not None:
            raise ModelError(
                "ModelSpec has both optimizer and train_op; exactly one is expected. Drop train_op, and "
                "ps_train applies the optimizer; or drop optimizer, and make train_op with "
                "ps_train.DistributedOptimizer(optimizer)."
            )
        if self.optimizer is not None:
            _check_optimizer(self.optimizer)
        if self.training_hooks is None or isinstance(self.training_hooks, (str, Mapping)):
            raise ModelError(
                f"ModelSpec.training_hooks is {describe(self.training_hooks)}; "
                "a list of SessionRunHooks is expected."
            )


def worker_seed(seed: int | None, shard_index: int) -> int | None:
    """One worker's stream of the job's seed, in [0, 2**31); the same in every process and Python version.

    >>> worker_seed(7, 0), worker_seed(7, 1), worker_seed(None, 1)
    (431379789, 1406334329, None)
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{shard_index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def _check_loss(loss: Any, mode: str) -> None:
    if loss is None:
        raise ModelError(
            f"ModelSpec has no loss, which mode '{mode}' needs. Pass loss=... (a scalar tensor)."
        )
    shape, dtype = getattr(loss, "shape", None), getattr(loss, "dtype", None)
    if not hasattr(loss, "graph") or shape is None or dtype is None:
        raise ModelError(f"ModelSpec.loss is {describe(loss)}; a scalar tensor of the graph is expected.")
    if shape.rank not in (0, None):
        raise ModelError(
            f"ModelSpec.loss has shape {tuple(shape)}; a scalar is expected. "
            "Take its mean: loss=tf.reduce_mean(loss)."
        )
    if not dtype.is_floating:
        raise ModelError(
            f"ModelSpec.loss is of type {dtype.name}; a floating-point scalar is expected. Use tf.cast."
        )


def _check_metrics(metrics: Any) -> None:
    if metrics is None:
        return
    example = 'Pass metrics={"accuracy": tf.compat.v1.metrics.accuracy(labels, predictions)}.'
    if not isinstance(metrics, Mapping):
        raise ModelError(f"ModelSpec.metrics is {describe(metrics)}; a dict is expected. {example}")
    for name, pair in metrics.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ModelError(
                f"ModelSpec.metrics[{name!r}] is {describe(pair)}; a pair (value, update_op) is expected. "
                f"{example}"
            )


def _check_optimizer(optimizer: Any) -> None:
    hint = "Pass one from tf.compat.v1.train, such as tf.compat.v1.train.AdamOptimizer(1e-3)."
    if inspect.isclass(optimizer):
        raise ModelError(
            f"ModelSpec.optimizer is the class {optimizer.__name__}; an instance is expected. {hint}"
        )
    if not (hasattr(optimizer, "compute_gradients") and hasattr(optimizer, "apply_gradients")):
        kind = "a Keras optimizer" if hasattr(optimizer, "apply_gradients") else describe(optimizer)
        raise ModelError(f"ModelSpec.optimizer is {kind}; a TensorFlow 1 optimizer is expected. {hint}")


def describe(value: Any) -> str:
    """What a value of a wrong type is called in a message: "None", "a tuple of 2", "an int"."""
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
