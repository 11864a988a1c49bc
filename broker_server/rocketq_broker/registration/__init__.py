"""The broker among others: its registration with the NameServers, and the addresses of other brokers."""
