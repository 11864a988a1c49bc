"""The timer's files and frames: the index of delayed messages by due time, and reading what is due."""
