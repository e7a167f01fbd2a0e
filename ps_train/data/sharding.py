"""How workers (and their towers) divide data among them, as a value: the same on each, every record in exactly one part.

    plan_files([10, 10, 9], num_shards=2, shard_index=0)     # by record: two files against one are not even
    plan_files([9] * 12, num_shards=2, shard_index=0)        # by file: (0, 2, 4, 6, 8, 10)

By file, worker k of n reads each n-th file from the k-th on. By record, it reads of file number f each n-th record from number
(k - f) mod n on, so that many short files are even, too. Nothing but names, their order and sizes decides, so files have to be
the same on every host.
"""

from typing import NamedTuple

from ps_train.errors import ModelError
from ps_train.logs import log
from ps_train.wording import counted, did_you_mean, imbalance, shown

WAYS = ("auto", "file", "record", "none")
FAIR = 1.25  # the largest shard over the mean, up to which sharding is by file


class Plan(NamedTuple):
    """One worker's part.

    Attributes:
      way: 'file', 'record' or 'none'.
      files: numbers of the files that it reads, in ascending order.
      num_shards, shard_index: of the records in them; 1 and 0 if it takes all.
    """

    way: str
    files: tuple
    num_shards: int
    shard_index: int


def plan_files(sizes, num_shards, shard_index, way="auto"):
    """A worker's Plan for files of these sizes in bytes.

    >>> plan_files([9, 9, 9, 9], num_shards=2, shard_index=1).files
    (1, 3)
    >>> plan_files([100, 9, 9, 9], num_shards=2, shard_index=1)
    Plan(way='record', files=(0, 1, 2, 3), num_shards=2, shard_index=1)
    """
    if way not in WAYS:
        hint = did_you_mean(str(way), WAYS)
        raise ModelError(
            f"shard_by={shown(way)} is unknown; one of {', '.join(map(repr, WAYS))} is expected. {hint}".strip()
        )
    everything = tuple(range(len(sizes)))
    if num_shards == 1 or way == "none":
        return Plan("none", everything, 1, 0)
    if way == "file" or (way == "auto" and _is_fair(sizes, num_shards)):
        return Plan("file", everything[shard_index::num_shards], 1, 0)
    return Plan("record", everything, num_shards, shard_index)


def _is_fair(sizes, num_shards):
    parts = [sum(sizes[shard::num_shards]) for shard in range(num_shards)]
    return len(sizes) >= num_shards and imbalance(parts) <= FAIR


def share_files(sizes, context, way):
    """`plan_files` of what `input_fn` gets, said in the log."""
    plan = plan_files(sizes, context.num_shards, context.shard_index, way)
    log.info("%s", describe_files(plan, len(sizes), context))
    return plan


def share_rows(rows, what, context, way):
    """A worker's part of rows, an array or a list, said in the log: each n-th `what`, or all if `way` is 'none'."""
    part = rows if way == "none" else rows[context.shard_index :: context.num_shards]
    log.info("%s", describe_rows(len(part), len(rows), what, context))
    return part


def describe_files(plan, num_files, context):
    """The line in the log.

    >>> from ps_train.model import InputContext
    >>> context = InputContext(num_shards=2, shard_index=0)
    >>> describe_files(plan_files([9] * 24, 2, 0), 24, context)
    'input: 12 files of 24, by file, shard 1 of 2'
    >>> describe_files(plan_files([9], 2, 0), 1, context)
    'input: each 2nd record of 1 file, by record, shard 1 of 2'
    """
    total = counted(num_files, "file")
    if plan.way == "file":
        return f"input: {counted(len(plan.files), 'file')} of {num_files}, by file, {_shard(context)}"
    if plan.way == "record":
        return f"input: each {_ordinal(plan.num_shards)} record of {total}, by record, {_shard(context)}"
    every = f"; each of {context.num_shards} shards is all of it" if context.num_shards > 1 else ""
    return f"input: {total}{every}"


def describe_rows(count, total, what, context):
    """The same for data that is divided by row.

    >>> from ps_train.model import InputContext
    >>> describe_rows(749, 1497, "row", InputContext(num_shards=2, shard_index=0))
    'input: 749 rows of 1497, by row, shard 1 of 2'
    """
    if context.num_shards == 1 or count == total > 0:
        every = f"; each of {context.num_shards} shards is all of it" if context.num_shards > 1 else ""
        return f"input: {counted(total, what)}{every}"
    return f"input: {counted(count, what)} of {total}, by {what}, {_shard(context)}"


def _shard(context):
    return f"shard {context.shard_index + 1} of {context.num_shards}"


def _ordinal(number):
    return (
        f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 * (number % 100 not in (11, 12, 13)), 'th') }"
    )
