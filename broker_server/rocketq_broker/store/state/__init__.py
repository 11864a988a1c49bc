"""All state machines together: the state, its snapshot, and the decisions about topics and groups."""
