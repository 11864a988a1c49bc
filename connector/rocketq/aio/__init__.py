"""The client for asyncio: the same names and arguments as the client for threads, over the same core."""
