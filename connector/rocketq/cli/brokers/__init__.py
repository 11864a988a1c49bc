"""The commands that operate brokers: who is alive, duty, clocks, replicas."""
