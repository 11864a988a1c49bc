"""Consuming: fetch threads, the fetch buffer, and the records that a consumer hands out."""
