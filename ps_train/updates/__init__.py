"""Update rules: what happens to a worker's gradients. `async` applies them as they come, `sync` in rounds."""

DISTRIBUTED = "ps_train/distributed_optimizers"
"""Graph collection of the optimizers whose updates follow the job's rule."""

SYNC_OPTIMIZERS = "ps_train/sync_optimizers"
"""Graph collection of the synchronous optimizers, in the order of their making."""
