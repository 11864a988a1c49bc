"""Sends in each of their forms, up to the log writer's inbox."""
