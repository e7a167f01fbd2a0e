"""How workers (and their towers) divide data among them, as a value: the same on each, every record in exactly one part.

    plan_files([10, 10, 9], num_shards=2, shard_index=0)     # by record: two files against one are not even
    plan_files([9] * 12, num_shards=2, shard_index=0)        # by file: (0, 2, 4, 6, 8, 10)

By file, worker k of n reads each n-th file from the k-th on. By record, it reads of file number f each n-th record from number
(k - f) mod n on, so that many short files are even, too. Nothing but names, their order and sizes decides, so files have to be
the same on every host.

With --input=workqueue there are pieces, which workers take from a queue as they need them (`ps_train.work`). A piece is a file
where there are enough of fair sizes, else each n-th record of all files, or each n-th row. How many depends on the files and,
coarsely, on the number of workers, so that the position in a checkpoint mostly stays one after a change of that.
"""

from typing import Any, NamedTuple

from ps_train.errors import ModelError
from ps_train.logs import log
from ps_train.wording import counted, did_you_mean, imbalance, shown

WAYS = ("auto", "file", "record", "none")
FAIR = 1.25  # the largest shard over the mean, up to which sharding is by file
FAIR_PIECE = 4.0  # the largest file over the mean, up to which files are pieces
PER_WORKER = 4  # pieces, at least
MIN_PIECES = 16
ROW_PIECES = 4  # times as many where a piece costs nothing, as rows do
GROUP = 4  # files that are read in turns, at most


class Plan(NamedTuple):
    """One worker's part.

    Attributes:
      way: 'file', 'record' or 'none'.
      files: numbers of the files that it reads, in ascending order.
      num_shards, shard_index: of the records in them; 1 and 0 if it takes all.
      reader: of the work queue, whose pieces are files (way 'file') or one of `num_shards` parts of all records (way 'record');
        None: there is none.
    """

    way: str
    files: tuple
    num_shards: int
    shard_index: int
    reader: Any = None


def plan_files(sizes, num_shards, shard_index, way="auto"):
    """A worker's Plan for files of these sizes in bytes.

    >>> plan_files([9, 9, 9, 9], num_shards=2, shard_index=1).files
    (1, 3)
    >>> plan_files([100, 9, 9, 9], num_shards=2, shard_index=1)
    Plan(way='record', files=(0, 1, 2, 3), num_shards=2, shard_index=1, reader=None)
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


def share_files(sizes, context, way, order):
    """`plan_files` of what `input_fn` gets, or pieces of a work queue, said in the log."""
    plan = plan_files(sizes, context.num_shards, context.shard_index, way)
    if context.work is not None and way != "none":
        return _queue_files(sizes, context, way, order)
    log.info("%s", describe_files(plan, len(sizes), context))
    return plan


def share_rows(rows, what, context, way, order):
    """A worker's part of rows, an array or a list, said in the log: each n-th `what`, or all if `way` is 'none'.

    Returns:
      (part, reader): with a reader of the work queue the part is all, and each n-th row of it is one of its n pieces.
    """
    if context.work is not None and way != "none" and len(rows):
        count = min(len(rows), ROW_PIECES * _num_pieces(context.num_shards))
        log.info("%s, %d %ss in all", describe_pieces(count, what, context), len(rows), what)
        return rows, context.work.reader(count, order.passes, bool(order.buffer))
    part = rows if way == "none" else rows[context.shard_index :: context.num_shards]
    log.info("%s", describe_rows(len(part), len(rows), what, context))
    return part, None


def _queue_files(sizes, context, way, order):
    count, num_shards = _num_pieces(context.num_shards), context.num_shards
    is_fair = len(sizes) >= count and max(sizes) <= FAIR_PIECE * sum(sizes) / len(sizes)
    by_file = way == "file" or (way == "auto" and is_fair)
    count = len(sizes) if by_file else count
    group = max(1, min(GROUP, count // (2 * PER_WORKER * num_shards))) if by_file else 1
    log.info("%s", describe_pieces(count, "file" if by_file else "record", context))
    reader = context.work.reader(count, order.passes, bool(order.buffer), group)
    return Plan("file" if by_file else "record", tuple(range(len(sizes))), 1 if by_file else count, 0, reader)


def _num_pieces(num_shards):
    """A power of two, which changes seldom.

    >>> [_num_pieces(num_shards) for num_shards in (1, 4, 5, 8, 100)]
    [16, 16, 32, 32, 512]
    """
    return max(MIN_PIECES, 2 ** (PER_WORKER * num_shards - 1).bit_length())


def describe_pieces(count, what, context):
    """The line in the log, such as `input: 24 pieces, by file, from the work queue on ps:0`."""
    return f"input: {counted(count, 'piece')}, by {what}, from the work queue on {context.work.ps}"


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
