"""Which messages a read asks the brokers for: all, or those of one tag or SQL expression.

The brokers look, so what does not match never crosses the network (docs/filters.md). A
filter changes no offset: what it leaves out counts as read, in limits, in the checkpoint and in
the group's progress.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rocketq.errors import InvalidFilter
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.filters.tags import parse_tags


@dataclass(frozen=True, slots=True)
class Filter:
    """What a pull says: tags (`a || b`), an SQL expression, or neither; what is there has parsed."""

    tags: str | None = None
    sql: str | None = None

    @property
    def wants_all(self) -> bool:
        return self.tags is None and self.sql is None

    def among(self, tags: Collection[str]) -> Filter | None:
        """Return a filter that also demands one of these tags (at least one), or None if none can say it.

        Not every text is a tag, and an expression has bounds.
        """
        try:
            for tag in tags:
                if parse_tags(tag) != (tag,):
                    return None
            if self.sql is not None:
                listed = ", ".join("'" + tag.replace("'", "''") + "'" for tag in sorted(tags))
                # The line break ends a comment that the user's expression may end in.
                narrowed = f"({self.sql}\n) AND TAGS IN ({listed})"
                parse_sql(narrowed)
                return Filter(sql=narrowed)
            if self.tags is not None:
                tags = set(tags) & set(parse_tags(self.tags))
            joined = " || ".join(sorted(tags))
            return Filter(tags=joined) if parse_tags(joined) else None
        except InvalidFilter:
            return None


def parse_filter(tags: str | None, sql: str | None) -> Filter:
    """Return the filter of the options `tags` and `sql`, at most one of them given; raise InvalidFilter."""
    try:
        if tags is not None and not parse_tags(tags):
            # `*` is every message, so there is nothing to look at.
            tags = None
        if sql is not None:
            parse_sql(sql)
    except InvalidFilter as error:
        error.facts["option"] = "sql" if tags is None else "tags"
        raise
    return Filter(tags, sql)
