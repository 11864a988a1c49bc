"""The acceptor of registers: what a NameServer keeps of them, and what it answers to proposers."""
