"""Which queue a message goes to, and which brokers are avoided."""
