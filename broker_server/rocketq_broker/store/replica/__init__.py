"""The store of a replica: raw frames out and in, taking and leaving office, cutting the log."""
