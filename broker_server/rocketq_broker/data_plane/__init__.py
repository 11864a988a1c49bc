"""The data plane: raw ASGI handlers for send, pull, offsets, find and fetch, a file for each."""
