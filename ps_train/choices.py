"""The words and numbers that settings may have, and those that stand for `auto`."""

import re

UPDATES = ("async", "sync", "allreduce")
LOSS_POLICIES = ("fail", "continue")
NAN_POLICIES = ("stop", "skip", "ignore")
DEFAULT_CHECKPOINT_SECS = 600.0
DEFAULT_SUMMARIES_STEPS = 100
AUTO_PACK_BYTES = 128 * 1024
AUTO_FUSE_BYTES = 512 * 1024
BUCKET_BYTES = 64 * 2**20
MAX_BUCKET_BYTES = 2**30  # TensorFlow's limit of a message is 2 GB
WIRE_DTYPES = ("float32", "bfloat16", "float16", "int8")
INPUTS = ("shard", "workqueue")
PARTITIONS = ("none", "auto")
EVAL_CHECKPOINTS = ("newest", "all")
RATE_SCALES = ("none", "linear", "sqrt")
MAX_THREADS = 1024  # of a pool; a larger number is taken for a mistake
MAX_SEED = 2**31 - 1
MAX_TRACED = 1000  # global steps in one trace


def read_steps(text: str) -> tuple[int, int]:
    """`FIRST:LAST`, both included, or one number, as (first, last); raises ValueError with what is wrong."""
    match = re.fullmatch(r"([0-9]{1,18})(?::([0-9]{1,18}))?", text)
    if match is None:
        raise ValueError("is no window of steps. Expected FIRST:LAST, such as 100:105, or one number.")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last:
        raise ValueError(
            "is no window of steps. Expected a first one from 1, and a last one that is not before it."
        )
    if last - first >= MAX_TRACED:
        raise ValueError(
            f"is {last - first + 1} steps. Expected {MAX_TRACED} at most: a step is some kilobytes and more."
        )
    return first, last
