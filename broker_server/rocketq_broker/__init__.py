"""The broker: an HTTP service (`app`) around a message store (`store`)."""
