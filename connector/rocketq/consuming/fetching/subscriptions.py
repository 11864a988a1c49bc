"""What a consumer wants of a topic: everything, some tags, or what an SQL filter says.

mq.consumer("billing", ["orders", "refunds"])
mq.consumer("billing", {"orders": Sql("amount > 40"), "refunds": Tag("card || cash"), "audit": None})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rocketq.errors import InvalidConfiguration
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.filters.tags import parse_tags
from rocketq.protocol.rules.reserved_names import check_name


@dataclass(frozen=True, slots=True)
class Tag:
    """Messages with one of these tags: `Tag("paid || refunded")`. Raises InvalidFilter."""

    expression: str

    def __post_init__(self) -> None:
        parse_tags(self.expression)


@dataclass(frozen=True, slots=True)
class Sql:
    """Messages of which an SQL filter is true: `Sql("amount > 40")`. Raises InvalidFilter."""

    expression: str

    def __post_init__(self) -> None:
        parse_sql(self.expression)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The filter of one topic as a pull names it; both None: every message."""

    tag: str | None = None
    sql: str | None = None


#: A topic, several, or several with the filter of each.
Topics: TypeAlias = str | Sequence[str] | Mapping[str, "Tag | Sql | None"]


def filters_of(topics: Topics, common: Tag | Sql | None = None) -> dict[str, MessageFilter]:
    """Return the filter of each topic, `common` where topics come without filters.

    Raises InvalidConfiguration or InvalidName.
    """
    if common is not None and isinstance(topics, Mapping):
        why = "topics has a filter for each topic already"
        raise InvalidConfiguration("filter", common, why, hint="Leave it out.")
    if isinstance(topics, str):
        topics = (topics,)
    given: Mapping[str, Tag | Sql | None] = (
        topics if isinstance(topics, Mapping) else dict.fromkeys(topics, common)
    )
    if not given:
        raise InvalidConfiguration("topics", [], "it names no topic")
    for topic in given:
        check_name("topic", topic)
    return {topic: filter_of(wanted) for topic, wanted in given.items()}


def filters_from(topics: Sequence[str], tags: str | None, sql: str | None) -> dict[str, Tag | Sql | None]:
    """Return every topic with the same filter: of tags, of SQL, or none.

    Raises InvalidConfiguration for both, and InvalidFilter.
    """
    if tags is not None and sql is not None:
        raise InvalidConfiguration(
            "tags", tags, "given together with sql", hint="Write TAGS IN ('a', 'b') AND … in sql."
        )
    common = Tag(tags) if tags is not None else Sql(sql) if sql is not None else None
    return dict.fromkeys(topics, common)


def filter_of(wanted: Tag | Sql | None) -> MessageFilter:
    """Return a filter as a pull names it; raise InvalidConfiguration for a value of another type."""
    if wanted is None:
        return MessageFilter()
    if isinstance(wanted, Tag):
        return MessageFilter(tag=wanted.expression)
    if isinstance(wanted, Sql):
        return MessageFilter(sql=wanted.expression)
    raise InvalidConfiguration(
        "filter", wanted, "it is no filter", hint='Give Tag("paid || refunded"), Sql("amount > 40"), or None.'
    )
