"""The commands for this machine: servers, their state and settings, the console, what may be wrong."""
