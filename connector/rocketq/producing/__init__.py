"""Producing: from a caller's messages to acknowledged requests."""
