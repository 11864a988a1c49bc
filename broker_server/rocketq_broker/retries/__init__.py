"""Messages that consumers send back: their copies for retry topics and dead letter topics."""
