"""Trying one request until it is stored or its time is over."""
