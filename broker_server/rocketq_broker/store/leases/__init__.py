"""Decisions about messages that are leased one by one, their clock, and their dead letters."""
