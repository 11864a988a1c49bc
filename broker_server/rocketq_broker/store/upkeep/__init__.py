"""Upkeep: write-back, snapshots, and retention."""
