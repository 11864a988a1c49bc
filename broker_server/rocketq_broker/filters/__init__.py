"""Filters on Arrow columns: which messages of a batch a consumer wants.

    expressions.parse_filter(tag, sql)    a Filter, or None if every message is wanted
    tags.TagFilter, sql.SqlFilter         the two kinds; both cached by their text

A filter knows nothing of queues, disks or HTTP. It says which tag hashes can match, so that a
queue's units can be passed over unread, and gives an exact mask for the batches that were read.
"""
