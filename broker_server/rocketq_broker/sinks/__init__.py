"""Exactly-once sinks in the background: which work is due, and the threads that do it."""
