"""The options of the source and the sink: parsed once, refused early, then frozen values.

Spark hands options over as text with the keys in lower case, adds some of its own, and checks none.
Here every key must be known *for what it is used for* (batch read, stream read, batch write, stream
write): an option that is accepted and then ignored would be hard to notice. An unknown one is
answered with the nearest known name.

Names are the Kafka connector's wherever the meaning is equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, get_args

from pyspark_rocketq.options.message_filter import Filter, parse_filter
from pyspark_rocketq.options.position_syntax import (
    AtTime,
    AtTimes,
    Edge,
    NoMatch,
    Position,
    parse_assignment,
    parse_per_queue,
    parse_position,
)
from pyspark_rocketq.options.table import Given, Use
from rocketq.errors import InvalidConfiguration
from rocketq.model import is_legal_name
from rocketq.net.retry import PERSIST_MS
from rocketq.protocol.documents.broker import WAIT_MS_MAX
from rocketq.protocol.documents.sinks import OnDecided
from rocketq.protocol.rules.reserved_names import is_reserved_group, is_reserved_topic

#: Ranges with fewer messages in total share a partition. One more task costs as much as reading some 20,000
#: rows, and a core that reads this many takes 50 ms.
SMALL_RANGE_ROWS: Final = 32_768

# --- the configurations -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Topics by name."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribedPattern:
    """All topics whose whole name matches a regular expression; later ones join."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """Single queues: for each topic, and each broker name in it (None: every broker), the queue ids."""

    queues: Mapping[str, Mapping[str | None, frozenset[int]]] = field(hash=False)


Subscription = Subscribed | SubscribedPattern | Assigned


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The highest and lowest size of a micro-batch. None means no limit."""

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None
    max_delay_ms: int = 15 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Splitting:
    """How queue ranges are cut into Spark partitions. Without a limit, each queue is one partition."""

    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    #: Ranges share a partition if they have at most this many messages in total; 0: they never do.
    small_rows: int = 0

    @property
    def is_given(self) -> bool:
        """Whether any limit on partitions is given."""
        return any(limit is not None for limit in (self.min_partitions, self.max_records, self.max_bytes))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All that a reader was told."""

    nameservers: tuple[str, ...]
    subscription: Subscription
    filter: Filter
    push_filters: bool
    starting: Position
    ending: Position
    limits: BatchLimits
    splitting: Splitting
    fail_on_data_loss: bool
    group: str | None
    commit_group_offsets: bool
    include_properties: bool
    long_poll_ms: int
    broker_wait_ms: int


class DeliveryGuarantee(StrEnum):
    """What the sink promises about a micro-batch, or about a batch write."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A write's txnAppId and txnVersion, as in Delta: a version that is committed is not written again."""

    app: str
    version: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All that a writer was told."""

    nameservers: tuple[str, ...]
    topic: str | None
    #: How a queue is chosen for a row that does not name one: a name of `queue_selectors.STRATEGIES`, and
    #: whether that strategy needs the column `key`.
    selection: str
    selection_needs_key: bool
    compression: str | None
    delivery: DeliveryGuarantee
    sink: str | None
    on_decided: OnDecided
    transaction: Transaction | None
    send_timeout_ms: int
    commit_timeout_ms: int
    max_request_bytes: int


def source_options(raw: Mapping[str, str], use: Use) -> SourceOptions:
    """Parse the options of a read; raise InvalidConfiguration or UnknownOption.

    `use` is BATCH_READ or STREAM_READ, or READ where only the schema is asked for
    and Spark does not say yet which of the two it will be.
    """
    given = Given(raw, use)
    group = given.text("groupId")
    if group is not None and not is_legal_name(group):
        raise InvalidConfiguration(
            "groupId", group, "not a legal group name", hint="Use the characters A-Z a-z 0-9 _ - % |."
        )
    if group is not None and is_reserved_group(group):
        raise InvalidConfiguration(
            "groupId", group, "this name is reserved for the system", hint="Choose another name."
        )
    return SourceOptions(
        nameservers=given.nameservers(),
        subscription=_subscription(given),
        filter=_filter(given),
        push_filters=given.boolean("pushFilters", False),
        starting=_starting(given, use, group),
        ending=_ending(given),
        limits=_limits(given),
        splitting=Splitting(
            given.integer("minPartitions", lowest=1),
            given.integer("maxRecordsPerPartition", lowest=1),
            given.size("maxBytesPerPartition"),
            given.integer_or("smallRangeRows", SMALL_RANGE_ROWS, lowest=0),
        ),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        group=group,
        commit_group_offsets=_commits(given, group),
        include_properties=given.boolean("includeProperties", False),
        long_poll_ms=given.integer_or("longPollMs", 500, lowest=0, highest=WAIT_MS_MAX),
        broker_wait_ms=given.integer_or("brokerWaitMs", PERSIST_MS, lowest=0),
    )


def sink_options(raw: Mapping[str, str], use: Use) -> SinkOptions:
    """Parse the options of a write (BATCH_WRITE or STREAM_WRITE); raise as `source_options` does."""
    from rocketq.config import REQUEST_BYTES_MAX, Compression

    given = Given(raw, use)
    topic = given.text("topic")
    if topic is not None and not is_legal_name(topic):
        raise InvalidConfiguration(
            "topic", topic, "not a legal topic name", hint="Use the characters A-Z a-z 0-9 _ - % |."
        )
    if topic is not None and is_reserved_topic(topic):
        raise InvalidConfiguration(
            "topic", topic, "this name is reserved for the system", hint="Write to another topic."
        )
    compression = given.choice("compression", ("none", *get_args(Compression)), "none")
    delivery = _delivery(given, use)
    selection, needs_key = _queue_selection(given)
    return SinkOptions(
        nameservers=given.nameservers(),
        topic=topic,
        selection=selection,
        selection_needs_key=needs_key,
        compression=None if compression == "none" else compression,
        delivery=delivery,
        sink=_sink_name(given, "sinkId"),
        on_decided=_on_decided(given),
        transaction=_transaction(given),
        send_timeout_ms=given.integer_or("sendTimeoutMs", 30_000, lowest=1),
        commit_timeout_ms=given.integer_or("commitTimeoutMs", 60_000, lowest=1),
        max_request_bytes=given.size_or("maxRequestBytes", 4 * 1024 * 1024, highest=REQUEST_BYTES_MAX),
    )


# --- the groups of options that depend on one another ---------------------------------


def _queue_selection(given: Given) -> tuple[str, bool]:
    """Return the name of the strategy that chooses queues, and whether it needs keys."""
    from rocketq.producing.selection.queue_selectors import DEFAULT_STRATEGY, STRATEGIES

    names = {_camel_case(name): name for name in STRATEGIES}
    name = names[given.choice("queueSelection", tuple(names), _camel_case(DEFAULT_STRATEGY))]
    return name, STRATEGIES[name].needs_key


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _delivery(given: Given, use: Use) -> DeliveryGuarantee:
    """Return the guarantee; the default is exactly-once for streams and named transactions only."""
    default = DeliveryGuarantee.AT_LEAST_ONCE
    is_transaction = given.text("txnAppId") is not None or given.text("txnVersion") is not None
    if use is Use.STREAM_WRITE or is_transaction:
        default = DeliveryGuarantee.EXACTLY_ONCE
    delivery = DeliveryGuarantee(given.choice("delivery", tuple(DeliveryGuarantee), default))
    if delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        for name in ("sinkId", "onDecidedBatch", "txnAppId", "txnVersion", "commitTimeoutMs"):
            if given.text(name) is not None:
                raise InvalidConfiguration(
                    name,
                    given.text(name),
                    "it is for delivery=exactly-once, and this is at-least-once",
                    hint="Leave one of the two out.",
                )
    return delivery


def _transaction(given: Given) -> Transaction | None:
    app, version = _sink_name(given, "txnAppId"), given.integer("txnVersion", lowest=0)
    if app is None and version is None:
        return None
    if app is None or version is None:
        missing = "txnAppId" if app is None else "txnVersion"
        raise InvalidConfiguration(
            missing,
            None,
            "missing beside the other half of a transaction",
            hint="txnAppId names who writes, txnVersion which write it is, as in Delta: give both.",
        )
    return Transaction(app, version)


def _on_decided(given: Given) -> OnDecided:
    """Return what happens to a number that was decided before. A txnVersion is skipped, as in Delta."""
    if given.text("txnVersion") is not None:
        return OnDecided.SKIP
    return OnDecided(given.choice("onDecidedBatch", ("fail", "skip"), "fail").upper())


def _sink_name(given: Given, name: str) -> str | None:
    text = given.text(name)
    if text is not None and not is_legal_name(text):
        raise InvalidConfiguration(
            name, text, "not a legal sink name", hint="Use 1 to 127 of the characters A-Z a-z 0-9 _ - % |."
        )
    return text


def _subscription(given: Given) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    present = [name for name in names if given.text(name) is not None]
    if len(present) != 1:
        raise InvalidConfiguration(
            present[0] if present else "subscribe",
            given.text(present[0]) if present else None,
            f"given together with {present[1]}" if present else "nothing says what to read",
            hint="Give exactly one of subscribe (topics, comma-separated), subscribePattern, assign.",
        )
    text = given.text(present[0]) or ""
    if present[0] == "assign":
        return Assigned(parse_assignment("assign", text))
    if present[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidConfiguration(
                "subscribePattern", text, f"not a regular expression: {error}"
            ) from None
        return SubscribedPattern(text)
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for topic in topics:
        if not is_legal_name(topic):
            raise InvalidConfiguration(
                "subscribe", text, f"{topic!r} is not a legal topic name", hint="Separate topics by commas."
            )
    return Subscribed(topics)


def _filter(given: Given) -> Filter:
    tags, sql = given.text("tags"), given.text("sql")
    if tags is not None and sql is not None:
        raise InvalidConfiguration(
            "tags", tags, "given together with sql", hint="Write TAGS IN ('a', 'b') AND … in sql."
        )
    return parse_filter(tags, sql)


def _starting(given: Given, use: Use, group: str | None) -> Position:
    """Where a query begins. Kafka gives these options a precedence; here two of them are an error."""
    no_match = NoMatch(given.choice("startingOffsetsByTimestampStrategy", tuple(NoMatch), NoMatch.ERROR))
    at_ms = given.integer("startingTimestamp", lowest=0)
    by_queue = given.text("startingOffsetsByTimestamp")
    text = given.text("startingOffsets")
    if given.text("startingOffsetsByTimestampStrategy") is not None and at_ms is None and by_queue is None:
        raise InvalidConfiguration(
            "startingOffsetsByTimestampStrategy", no_match.value, "no starting time is given",
            hint="It goes with startingTimestamp or startingOffsetsByTimestamp.",
        )  # fmt: skip
    _at_most_one(given, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    if at_ms is not None:
        return AtTime(at_ms, no_match)
    if by_queue is not None:
        return AtTimes(parse_per_queue("startingOffsetsByTimestamp", by_queue, lowest=0), no_match)
    if text is None:
        return Edge.EARLIEST if use is Use.BATCH_READ else Edge.LATEST
    refused = {}
    if use is Use.BATCH_READ:
        refused[Edge.LATEST] = "a batch that begins at the end is empty"
    position = parse_position("startingOffsets", text, refused)
    if position is Edge.GROUP and group is None:
        raise InvalidConfiguration(
            "startingOffsets", text, "there is no group to take offsets from", hint="Set groupId too."
        )
    return position


def _ending(given: Given) -> Position:
    _at_most_one(given, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    at_ms = given.integer("endingTimestamp", lowest=0)
    by_queue = given.text("endingOffsetsByTimestamp")
    if at_ms is not None:
        return AtTime(at_ms, NoMatch.LATEST)
    if by_queue is not None:
        return AtTimes(parse_per_queue("endingOffsetsByTimestamp", by_queue, lowest=0), NoMatch.LATEST)
    text = given.text("endingOffsets")
    if text is None:
        return Edge.LATEST
    refused = {
        Edge.EARLIEST: "a batch that ends at its beginning is empty",
        Edge.GROUP: "a group's offset is where reading goes on, not where it ends",
    }
    return parse_position("endingOffsets", text, refused)


def _limits(given: Given) -> BatchLimits:
    max_rows = given.integer("maxOffsetsPerTrigger", lowest=1)
    min_rows = given.integer("minOffsetsPerTrigger", lowest=1)
    if max_rows is not None and min_rows is not None and min_rows > max_rows:
        raise InvalidConfiguration(
            "minOffsetsPerTrigger", min_rows, f"it is above maxOffsetsPerTrigger, {max_rows}"
        )
    if min_rows is None and given.text("maxTriggerDelay") is not None:
        raise InvalidConfiguration(
            "maxTriggerDelay", given.text("maxTriggerDelay"), "nothing delays a trigger",
            hint="It goes with minOffsetsPerTrigger.",
        )  # fmt: skip
    delay_ms = given.duration_ms("maxTriggerDelay", BatchLimits().max_delay_ms)
    return BatchLimits(max_rows, min_rows, given.size("maxBytesPerTrigger"), delay_ms)


def _commits(given: Given, group: str | None) -> bool:
    commits = given.boolean("commitGroupOffsets", group is not None)
    if commits and group is None:
        raise InvalidConfiguration(
            "commitGroupOffsets", "true", "there is no group to report offsets to", hint="Set groupId too."
        )
    return commits


def _at_most_one(given: Given, *names: str) -> None:
    present = [name for name in names if given.text(name) is not None]
    if len(present) > 1:
        raise InvalidConfiguration(
            present[0], given.text(present[0]), f"given together with {present[1]}", hint="Keep one of them."
        )
