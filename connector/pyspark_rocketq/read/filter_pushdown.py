"""What a batch read need not read, since Spark's WHERE says so: pure.

Spark hands over the parts of a condition that are joined by AND and simple: a column compared with
a literal. Each is either taken on *wholly*, and then Spark does not look again, or handed back.

    topic, broker, queue    choose queues, by any comparison
    offset, timestamp       bound the range of each queue; the brokers say which offset a time means
    tag = …, tag IN (…)     are asked of the brokers, joined with the options `tags` or `sql`

Only a row of which a condition is TRUE comes; one that is UNKNOWN of a null does not. All these columns
but `tag` are never null, so their negations are plain ones; a negated tag is handed back. An IN over
offsets or times narrows the range to its ends and is handed back as well.

Store times never go back within a queue, which is what makes a range of times a range of offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.datasource import Filter as SparkFilter

from pyspark_rocketq.options.message_filter import Filter
from pyspark_rocketq.read.partitions import QueueRange
from pyspark_rocketq.read.row_schema import COLUMNS
from rocketq.model import MessageQueue
from rocketq.protocol.filters.tags import parse_tags

_NEVER_NULL: Final = frozenset(column.name for column in COLUMNS if column.always)
_PLACE_TYPES: Final[Mapping[str, type]] = {"topic": str, "broker": str, "queue": int}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

#: How a column's value is held against a literal.
_COMPARISONS: Final[Mapping[type, Callable[[Any, Any], bool]]] = {
    EqualTo: lambda value, literal: value == literal,
    EqualNullSafe: lambda value, literal: value == literal,
    GreaterThan: lambda value, literal: value > literal,
    GreaterThanOrEqual: lambda value, literal: value >= literal,
    LessThan: lambda value, literal: value < literal,
    LessThanOrEqual: lambda value, literal: value <= literal,
    In: lambda value, literals: value in literals,
    StringStartsWith: lambda value, literal: value.startswith(literal),
    StringEndsWith: lambda value, literal: value.endswith(literal),
    StringContains: lambda value, literal: literal in value,
}


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` up to, not including, `high`; None is without a bound."""

    low: int | None = None
    high: int | None = None

    def __and__(self, other: Span) -> Span:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Span(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class PlaceTest:
    """A comparison of `topic`, `broker` or `queue` with a literal, or the opposite of one."""

    column: str
    compare: Callable[[Any, Any], bool] = field(repr=False)
    literal: Any
    negated: bool = False

    def holds(self, queue: MessageQueue) -> bool:
        return self.compare(getattr(queue, self.column), self.literal) is not self.negated


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is left to read. `times_us` are microseconds since 1970."""

    places: tuple[PlaceTest, ...] = ()
    offsets: Span = Span()
    times_us: Span = Span()
    #: Whether a condition is TRUE of no row at all.
    nothing: bool = False

    def reads(self, queue: MessageQueue) -> bool:
        """Whether rows of this queue may be wanted."""
        return not self.nothing and all(test.holds(queue) for test in self.places)

    def asked_times(self) -> frozenset[int]:
        """Return the times whose offset `narrowed` needs to know."""
        return frozenset(at for at in (self.times_us.low, self.times_us.high) if at is not None)

    def narrowed(self, one: QueueRange, offset_at: Callable[[int], int]) -> QueueRange:
        """Cut a range to what is wanted of it, perhaps to nothing.

        `offset_at` gives the first offset stored at or after a time, the queue's end if there is none.
        """
        if not self.reads(one.queue):
            return replace(one, end=one.begin)
        low, high = self.times_us.low, self.times_us.high
        of_times = Span(None if low is None else offset_at(low), None if high is None else offset_at(high))
        wanted = self.offsets & of_times
        begin = one.begin if wanted.low is None else max(one.begin, wanted.low)
        end = one.end if wanted.high is None else min(one.end, wanted.high)
        return replace(one, begin=begin, end=end) if begin < end else replace(one, end=one.begin)


def push(filters: Sequence[SparkFilter], asked: Filter) -> tuple[Narrowing, Filter, list[SparkFilter]]:
    """Return what the filters leave to read, what to ask the brokers instead of `asked`, and the filters
    that Spark has to look at itself (of those given, by identity).
    """
    narrowing, back, by_tag = Narrowing(), [], []
    for one in filters:
        if _column(one) == "tag":
            by_tag.append(one)
            continue
        taken, wholly = _take(one)
        narrowing = _joined(narrowing, taken)
        if not wholly:
            back.append(one)
    tags, back_by_tag = _tags(by_tag)
    if tags is None:
        return narrowing, asked, [*back, *back_by_tag]
    if asked.tags is not None:
        tags &= frozenset(parse_tags(asked.tags))
    if not tags:
        return replace(narrowing, nothing=True), asked, [*back, *back_by_tag]
    chosen = asked.among(tags)
    if chosen is None:
        return narrowing, asked, [*back, *by_tag]
    return narrowing, chosen, [*back, *back_by_tag]


def _take(one: SparkFilter) -> tuple[Narrowing, bool]:
    """Return what a filter leaves to read, and whether that is all it says."""
    column, nothing_said = _column(one), (Narrowing(), False)
    if column is None:
        return nothing_said
    plain = one.child if isinstance(one, Not) else one
    negated = plain is not one
    if isinstance(plain, IsNotNull | IsNull):
        if column not in _NEVER_NULL:
            return nothing_said
        return Narrowing(nothing=isinstance(plain, IsNull) is not negated), True
    if column in _PLACE_TYPES:
        return _take_place(column, plain, negated) or nothing_said
    if column in ("offset", "timestamp") and not negated:
        return _take_span(column, plain) or nothing_said
    return nothing_said


def _take_place(column: str, plain: SparkFilter, negated: bool) -> tuple[Narrowing, bool] | None:
    kind, literals = _PLACE_TYPES[column], _literals(plain)
    compare = _COMPARISONS.get(type(plain))
    if compare is None or literals is None or not all(_is(kind, literal) for literal in literals):
        return None
    literal = literals if isinstance(plain, In) else literals[0]
    return Narrowing(places=(PlaceTest(column, compare, literal, negated),)), True


def _take_span(column: str, plain: SparkFilter) -> tuple[Narrowing, bool] | None:
    literals = _literals(plain)
    numbers = [number for literal in literals or () if (number := _number(column, literal)) is not None]
    if not numbers or len(numbers) != len(literals or ()):
        return None
    low, high = min(numbers), max(numbers)
    match plain:
        case EqualTo() | EqualNullSafe() | In():
            span = Span(max(0, low), high + 1)
        case GreaterThan():
            span = Span(low=low + 1)
        case GreaterThanOrEqual():
            span = Span(low=max(0, low))
        case LessThan():
            span = Span(high=max(0, high))
        case LessThanOrEqual():
            span = Span(high=high + 1)
        case _:
            return None
    narrowing = Narrowing(offsets=span) if column == "offset" else Narrowing(times_us=span)
    return narrowing, not isinstance(plain, In)


def _tags(by_tag: Sequence[SparkFilter]) -> tuple[frozenset[str] | None, list[SparkFilter]]:
    """Return the tags that filters on `tag` allow together, None for any, and the filters to hand back."""
    allowed: frozenset[str] | None = None
    back = []
    for one in by_tag:
        literals = _literals(one)
        if isinstance(one, EqualTo | EqualNullSafe | In) and literals and all(_is(str, x) for x in literals):
            allowed = frozenset(literals) if allowed is None else allowed & frozenset(literals)
        else:
            back.append(one)
    if allowed is not None:
        # What has one of these tags has a tag.
        back = [one for one in back if not isinstance(one, IsNotNull)]
    return allowed, back


def _joined(one: Narrowing, other: Narrowing) -> Narrowing:
    return Narrowing(
        one.places + other.places,
        one.offsets & other.offsets,
        one.times_us & other.times_us,
        one.nothing or other.nothing,
    )


def _column(one: SparkFilter) -> str | None:
    """Return the column a filter is about; None for a field within one."""
    plain = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(plain, "attribute", ())
    return path[0] if len(path) == 1 else None


def _literals(plain: SparkFilter) -> tuple[Any, ...] | None:
    """Return what a column is compared with; None if the filter is none that compares."""
    if type(plain) not in _COMPARISONS:
        return None
    value = getattr(plain, "value", None)
    return tuple(value) if isinstance(plain, In) and value is not None else (value,)


def _is(kind: type, literal: Any) -> bool:
    # A truth value is an int to Python only.
    return isinstance(literal, kind) and not isinstance(literal, bool)


def _number(column: str, literal: Any) -> int | None:
    """Return a literal as an offset, or as microseconds since 1970; None if it is neither."""
    if column == "offset":
        return literal if _is(int, literal) else None
    if isinstance(literal, datetime) and literal.tzinfo is not None:
        # No message is older than the epoch, and the brokers know no time before it.
        return max(-1, (literal - _EPOCH) // _MICROSECOND)
    return None
