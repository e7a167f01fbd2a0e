"""What-if: a job on other clusters, simulated; see `simulate`, with its `inputs`, the search of `sizes` and the `table`."""
