"""Filters on Arrow columns: they decide which messages of a batch a consumer wants.

    expressions.parse_filter(tag, sql)    returns a Filter, or None if every message is wanted
    tags.TagFilter, sql.SqlFilter         the two kinds of filter

A filter knows nothing of queues, disks or HTTP. It gives the hashes of the tags that a wanted message can
have, so that the store skips the units of other messages. For the batches that the store has read, the filter
returns an exact mask. Parsed filters are cached by their text.
"""
