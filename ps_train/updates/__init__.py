"""Update rules: what happens to a worker's gradients. `async` applies them as they come, `sync` in rounds."""
