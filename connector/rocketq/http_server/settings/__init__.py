"""The settings of a server: from flags, the environment and a file, each with its origin."""
