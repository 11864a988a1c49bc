"""The key index: messages by key, in sorted files behind the log."""
