"""Bringing a store back after a stop or a crash, and salvaging one that is damaged."""
