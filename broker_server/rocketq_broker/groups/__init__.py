"""Members of consumer groups: their sessions, what counts when they differ, and the progress of groups."""
