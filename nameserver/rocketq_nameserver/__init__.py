"""The NameServer: which topics there are, on which brokers, at which addresses."""
