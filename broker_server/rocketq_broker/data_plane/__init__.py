"""The data plane: raw ASGI handlers for send, pull, offsets and find, one file for each kind of call."""
