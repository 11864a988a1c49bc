"""The commands that send, read and look up messages, in each of their states."""
