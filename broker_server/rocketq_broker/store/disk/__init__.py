"""The seam to the disk: files as the store sees them, and the cache of open ones."""
