"""The CommitLog, the ConsumeQueues over it, and looking frames up by queue offset or time."""
