"""Pulling ahead of the caller: threads, their buffers, where a queue starts."""
