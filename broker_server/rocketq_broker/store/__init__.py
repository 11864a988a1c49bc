"""The message store: one log, the queues over it, and the state folded from it.

Nothing in this package knows of HTTP, asyncio or the network.
"""
