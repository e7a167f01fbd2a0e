"""The words and numbers that settings may have, and those that stand for `auto`."""

UPDATES = ("async", "sync", "allreduce")
LOSS_POLICIES = ("fail", "continue")
NAN_POLICIES = ("stop", "skip", "ignore")
DEFAULT_CHECKPOINT_SECS = 600.0
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
