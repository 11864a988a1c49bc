"""The asynchronous twins of `rocketq.producing`."""
