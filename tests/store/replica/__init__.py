"""Tests of a store that is a replica."""
