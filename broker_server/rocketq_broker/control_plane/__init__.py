"""The control plane: FastAPI routes for topics, groups, sinks and who runs the broker."""
