"""State machines of the log: their protocol, topics, and the offsets of groups."""
