"""Reading ranges of MessageQueues into Arrow batches, for batches and streams alike."""
