"""Exactly-once sinks as a state machine: changes, the folded table, and the decisions that make changes."""
