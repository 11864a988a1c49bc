"""Long polling for the broker and the NameServer: which calls wait for what, and who wakes them."""
