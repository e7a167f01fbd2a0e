"""Update rules: what happens to a worker's gradients. `async` applies them as they come, `sync` in rounds."""

SYNC_OPTIMIZERS = "ps_train/sync_optimizers"
"""Graph collection of the synchronous optimizers, in the order of their making."""
