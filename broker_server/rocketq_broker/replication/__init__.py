"""Replication: who is master of a broker group, who is in sync, and what is confirmed. Decisions without
I/O."""
