"""Allocation: which member of a consumer group consumes which queue. Pure functions, no I/O."""
