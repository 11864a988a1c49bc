"""Group commit: the inbox, the log writer thread, the plan of one group, the three ends of the log."""
