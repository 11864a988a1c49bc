"""A whole cluster on this machine, each server a child process: for tests, notebooks and `rocketq up`."""
