"""Talking to servers: the HTTP transport, the typed calls to brokers and NameServers, and the route cache."""
