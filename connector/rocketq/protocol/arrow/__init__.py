"""Arrow IPC streams: read with bounds, and written without copying the batches."""
