"""Decisions about transactional messages, and what is written of those that stay undecided."""
