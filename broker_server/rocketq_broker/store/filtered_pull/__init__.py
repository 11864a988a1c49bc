"""Pulling through a filter: which messages can match, and the scan that finds those that do."""
