"""Group commit: the inbox, the log writer thread, the plan of one commit, the three ends of the log."""
