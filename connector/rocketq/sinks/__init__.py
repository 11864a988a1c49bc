"""The exactly-once sink, from the side of its writers."""
