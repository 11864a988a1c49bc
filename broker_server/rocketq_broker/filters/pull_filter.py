"""The filter that a pull asks for: by tag, by SQL, or none."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.errors import InvalidRequest
from rocketq.protocol.filters.limits import CACHED_MAX
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.filters.tags import parse_tags
from rocketq_broker.filters.sql import SqlFilter
from rocketq_broker.filters.tags import TagFilter


class Filter(Protocol):
    """Which messages are wanted. Filters have no state, so one serves any number of threads."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """The hashes of the tags that a wanted message has, sorted; None if any tag, or none, may do."""
        ...

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message of a batch of `message/1` whether it is wanted."""
        ...


def parse_filter(tag: str | None, sql: str | None) -> Filter | None:
    """Return the filter of a pull; None if every message is wanted.

    An empty tag expression, like `*`, wants every message; an empty SQL expression is an error.
    Raise InvalidFilter if the expression does not parse, InvalidRequest if there are two.
    """
    if tag is not None and sql is not None:
        raise InvalidRequest(
            "tag and sql", "only one filter can be given", hint="Write TAGS IN ('a', 'b') AND … in sql."
        )
    if sql is not None:
        return _sql_filter(sql)
    return None if tag is None else _tag_filter(tag)


@lru_cache(maxsize=CACHED_MAX)
def _sql_filter(expression: str) -> SqlFilter:
    return SqlFilter(parse_sql(expression))


@lru_cache(maxsize=CACHED_MAX)
def _tag_filter(expression: str) -> TagFilter | None:
    tags = parse_tags(expression)
    return TagFilter(tags) if tags else None
