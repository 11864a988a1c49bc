"""A replica at work: its thread, and its calls to the register and the master (RocketMQ: HAService)."""
