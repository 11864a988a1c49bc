"""Messages that consumers give back: their copies for retry topics and dead letter topics."""
