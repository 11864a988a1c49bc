"""The streaming source: offsets, limits of a micro-batch, and the planner of one running query."""
