"""The broker's process: the way from the writer thread to the event loop, and the memory settings."""
