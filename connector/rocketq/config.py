"""What a client can be told, as frozen values that refuse what cannot work.

They are built once, by the caller or by `Client`; nothing here reads the
environment. Durations are milliseconds (`_ms`), sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from rocketq.errors import InvalidConfiguration
from rocketq.model import PULL_BYTES_MAX
from rocketq.protocol.documents.broker import WAIT_MS_MAX
from rocketq.protocol.documents.groups import HEARTBEAT_MS, SESSION_TIMEOUT_MS_MIN, WATCH_MS
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.filters.tags import parse_tags
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX
from rocketq.setting_names import refuses_unknown

Compression = Literal["lz4", "zstd"]
Start = Literal["group", "earliest", "latest", "time"]
Reset = Literal["earliest", "latest", "error"]
GroupStart = Literal["earliest", "latest", "time"]
Acknowledgement = Literal["auto", "manual"]

#: Bounds of the wait of an ordered consumer (RocketMQ: ConsumeMessageOrderlyService).
SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000

#: What the producer puts into one request at most; the server's own limit is 16 MiB.
REQUEST_BYTES_MAX = 12 * 1024 * 1024


def _positive(config: Any, *but: str) -> None:
    """Refuse every integer field below 1; those in `but` may be 0."""
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        lowest = 0 if field.name in but else 1
        if value < lowest:
            raise InvalidConfiguration(field.name, value, f"it must be at least {lowest}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(a) for a in allowed)
        raise InvalidConfiguration(
            name, value, "it is none of the known values", hint=f"Use one of {listed}."
        )


@refuses_unknown
@dataclass(frozen=True, slots=True)
class TransportConfig:
    """How connections are made and how long a call may take."""

    #: Idle connections kept for each server; more may be open at a moment.
    pool_size: int = 16
    connect_timeout_ms: int = 3_000
    #: The whole call, when the caller says nothing else (RocketMQ: 3 s).
    timeout_ms: int = 3_000
    #: What a held call is given beyond its hold.
    hold_margin_ms: int = 5_000

    def __post_init__(self) -> None:
        _positive(self)


@refuses_unknown
@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Which messages' ways a client records, and how (`rocketq.tracing`)."""

    #: The share of the messages that is recorded: 0.01 is one in a hundred. A message with the property
    #: TRACE_ON is recorded, or not, as that says.
    rate: float = 1.0
    #: Only messages of these topics; None: of all.
    topics: tuple[str, ...] | None = None
    #: How many records may wait to be sent; more are dropped and counted (RocketMQ: 2,048 contexts).
    buffer_records: int = 8_192
    #: How long a record waits for others (RocketMQ: 5 s), and how many are sent at once.
    linger_ms: int = 1_000
    batch_records: int = 1_000
    #: How long one attempt to send records may take, and how long closing waits for the last ones.
    timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        _positive(self, "linger_ms", "rate")
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate <= 1:
            raise InvalidConfiguration(
                "rate", self.rate, "it must be from 0 to 1", hint="0.01 records one message in a hundred."
            )
        if isinstance(self.topics, str):
            raise InvalidConfiguration("topics", self.topics, "it is text", hint="Give a tuple of names.")


@refuses_unknown
@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """How messages are sent.

    `timeout_ms` covers all attempts of one send (for `send_batch`, of one
    request); `retries` counts the attempts after the first.
    """

    timeout_ms: int = 3_000
    retries: int = 2
    compression: Compression | None = None
    #: Create a missing topic on every master, where the brokers allow it.
    auto_create_topics: bool = True
    auto_create_queues: int = 4
    #: Give each message that is sent alone, or submitted, an id of its own (`SendResult.unique_id`).
    unique_ids: bool = True
    #: Number the sends, so that a broker stores one once that comes again (docs/client.md).
    idempotent: bool = True
    #: Let a send in any order go to another broker when its broker has failed to answer twice, although that
    #: may have stored it (`SendResult.may_be_duplicate`). Off, such a send fails.
    move_unanswered: bool = True
    #: Send slower brokers less: RocketMQ's latency tables. Off, only retries avoid a broker.
    fault_avoidance: bool = True
    #: `send_batch` cuts its data into slices and requests of about these sizes; a slice is never
    #: larger than a request.
    slice_bytes: int = 1024 * 1024
    request_bytes: int = 4 * 1024 * 1024
    #: `submit`: how long a message may wait for company, and what closes a batch early.
    linger_ms: int = 5
    batch_bytes: int = 256 * 1024
    batch_messages: int = 4_096
    #: `submit` blocks while this much waits to be sent, at most `timeout_ms` long.
    buffer_bytes: int = 32 * 1024 * 1024
    sender_threads: int = 4

    def __post_init__(self) -> None:
        _positive(self, "retries", "linger_ms")
        _one_of("compression", self.compression, (None, *get_args(Compression)))
        if self.batch_messages > BATCH_MESSAGES_MAX:
            raise InvalidConfiguration(
                "batch_messages", self.batch_messages, f"a batch holds at most {BATCH_MESSAGES_MAX}"
            )
        for name in ("request_bytes", "batch_bytes"):
            if getattr(self, name) > REQUEST_BYTES_MAX:
                why = f"a request may have {REQUEST_BYTES_MAX} bytes"
                raise InvalidConfiguration(name, getattr(self, name), why)
        if self.batch_bytes > self.buffer_bytes:
            raise InvalidConfiguration(
                "batch_bytes", self.batch_bytes, "a batch could never fill: it is larger than buffer_bytes"
            )


@refuses_unknown
@dataclass(frozen=True, slots=True)
class PullConsumerConfig:
    """How a pull consumer reads messages.

    `start` says where a queue begins: at the group's committed offset (or
    `start_fallback` where it has none), at its first or next message, or at the
    first message stored at or after `start_timestamp_us`. `tags` or `sql` has the
    brokers send matching messages only (docs/filters.md); positions pass over the others.
    """

    tags: str | None = None
    sql: str | None = None
    start: Start = "group"
    start_fallback: Reset = "earliest"
    start_timestamp_us: int | None = None
    #: What happens when the wanted offset is gone: go on there, or raise from poll.
    offset_reset: Reset = "earliest"
    #: Memory for messages fetched ahead; one pull may overshoot it by one frame.
    prefetch_bytes: int = 32 * 1024 * 1024
    pull_bytes: int = 4 * 1024 * 1024
    #: How long a broker or NameServer holds a call while there is nothing new.
    hold_ms: int = 15_000
    #: The wait after a failed call, before the next.
    retry_ms: int = 500

    def __post_init__(self) -> None:
        _positive(self, "start_timestamp_us")
        _one_of("start", self.start, ("group", "earliest", "latest", "time"))
        _one_of("start_fallback", self.start_fallback, ("earliest", "latest", "error"))
        _one_of("offset_reset", self.offset_reset, ("earliest", "latest", "error"))
        _check_start_time(self.start, self.start_timestamp_us)
        if self.tags is not None and self.sql is not None:
            raise InvalidConfiguration(
                "tags", self.tags, "given together with sql", hint="Write TAGS IN ('a', 'b') AND … in sql."
            )
        if self.tags is not None:
            parse_tags(self.tags)
        if self.sql is not None:
            parse_sql(self.sql)
        _check_pull_bytes(self.pull_bytes)


@refuses_unknown
@dataclass(frozen=True, slots=True)
class SimpleConsumerConfig:
    """How a consumer leases messages one by one; `start` is as in ConsumerConfig.

    All receivers of a group have the same filters. With `new_filter` those of this consumer count from now
    on. With `ordered` a queue gives no message while others of it are leased; all receivers of a group say
    the same, or its settings do.
    """

    #: How long a received message stays hidden from others (RocketMQ: 60 s).
    invisible_ms: int = 60_000
    #: How long a receive waits for messages.
    wait_ms: int = 15_000
    start: GroupStart = "earliest"
    start_timestamp_us: int | None = None
    new_filter: bool = False
    ordered: bool = False

    def __post_init__(self) -> None:
        _positive(self, "start_timestamp_us", "wait_ms")
        _one_of("start", self.start, ("earliest", "latest", "time"))
        _check_start_time(self.start, self.start_timestamp_us)


@refuses_unknown
@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a member of a consumer group consumes.

    `start` says where a queue begins in which the group has no stored offset: at its first or next
    message, or at the first message stored at or after `start_timestamp_us`. A stored offset always counts.
    """

    start: GroupStart = "earliest"
    start_timestamp_us: int | None = None
    #: What happens when the wanted offset is gone: go on there, or raise from poll.
    offset_reset: Reset = "earliest"
    #: "auto": a message is acknowledged when the next is asked for. "manual": only by ack and commit.
    ack: Acknowledgement = "auto"
    #: A message that fails holds its queue: it is tried again before any message behind it.
    ordered: bool = False
    #: Each member reads all queues, and keeps its offsets in `offsets_file`.
    broadcasting: bool = False
    offsets_file: str | Path | None = None
    #: How often a message is handed out at most, before it becomes a dead letter; None: as often as the
    #: group's settings say (`retries_max`), with `ordered` or `broadcasting` without limit.
    max_attempts: int | None = None
    #: With `ordered`: the wait before the next attempt; None: 1 s (RocketMQ: suspendCurrentQueueTimeMillis).
    suspend_ms: int | None = None
    #: Of a listener: a function that takes longer for a message is overdue; None: 15 minutes (RocketMQ:
    #: consumeTimeout). The message is tried again as if it had raised; with `ordered` it is only told of.
    consume_timeout_ms: int | None = None
    #: How often offsets are stored (RocketMQ: persistConsumerOffsetInterval).
    commit_ms: int = 5_000
    #: How often queues are shared out again although nothing changed (RocketMQ: 20 s).
    rebalance_ms: int = 20_000
    #: How long a queue that goes to another member waits for messages that are being handled.
    hand_over_ms: int = 5_000
    heartbeat_ms: int = HEARTBEAT_MS
    #: How long a broker holds the watch that tells of members, at most; and half a session timeout at most.
    watch_ms: int = WATCH_MS
    #: After this time without a call the broker takes the member for gone; None: the broker's own.
    session_timeout_ms: int | None = None
    #: Limits of a queue, and of all queues: beyond them nothing is fetched. One pull may overshoot each.
    #: RocketMQ has 1,000 messages, 100 MiB and a span of 2,000, and 10,000 messages for all queues. It pulls
    #: 32 messages at a time; here one frame can have thousands, so the counts are a hundred times as high.
    queue_messages: int = 100_000
    queue_bytes: int = 100 * 1024 * 1024
    queue_span: int = 200_000
    buffer_messages: int = 1_000_000
    buffer_bytes: int = 64 * 1024 * 1024
    pull_bytes: int = 4 * 1024 * 1024
    #: How long a broker or NameServer holds a call while there is nothing new.
    hold_ms: int = 15_000
    #: The wait after a failed call, before the next.
    retry_ms: int = 500

    def __post_init__(self) -> None:
        _positive(self, "start_timestamp_us", "hand_over_ms")
        _one_of("start", self.start, ("earliest", "latest", "time"))
        _one_of("offset_reset", self.offset_reset, ("earliest", "latest", "error"))
        _one_of("ack", self.ack, ("auto", "manual"))
        _check_start_time(self.start, self.start_timestamp_us)
        _check_pull_bytes(self.pull_bytes)
        if self.broadcasting and self.offsets_file is None:
            raise InvalidConfiguration(
                "offsets_file", None, "a broadcasting member keeps its own offsets", hint="Say in which file."
            )
        if self.offsets_file is not None and not self.broadcasting:
            raise InvalidConfiguration(
                "offsets_file",
                str(self.offsets_file),
                "the brokers keep the offsets of members that share queues",
                hint="Leave it out, or give broadcasting=True.",
            )
        if self.broadcasting and self.ordered:
            raise InvalidConfiguration(
                "ordered",
                True,
                "a message that fails holds its queue for the group, and broadcasting members share no queue",
                hint="Leave out ordered or broadcasting.",
            )
        if self.watch_ms > WAIT_MS_MAX:
            why = f"a broker holds a call for at most {WAIT_MS_MAX} ms"
            raise InvalidConfiguration("watch_ms", self.watch_ms, why)
        self._check_suspension()
        if self.session_timeout_ms is not None and self.session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
            why = f"it must be at least {SESSION_TIMEOUT_MS_MIN}"
            raise InvalidConfiguration("session_timeout_ms", self.session_timeout_ms, why)

    def _check_suspension(self) -> None:
        if self.suspend_ms is None:
            return
        if not self.ordered:
            raise InvalidConfiguration(
                "suspend_ms", self.suspend_ms, "only an ordered consumer waits with its queue",
                hint="Leave it out, or give ordered=True.",
            )  # fmt: skip
        if not SUSPEND_MS_MIN <= self.suspend_ms <= SUSPEND_MS_MAX:
            why = f"it must be between {SUSPEND_MS_MIN} and {SUSPEND_MS_MAX}"
            raise InvalidConfiguration("suspend_ms", self.suspend_ms, why)


def _check_start_time(start: str, start_timestamp_us: int | None) -> None:
    if (start == "time") != (start_timestamp_us is not None):
        raise InvalidConfiguration(
            "start_timestamp_us",
            start_timestamp_us,
            f"it goes with start='time' and with nothing else, and start is {start!r}",
        )


def _check_pull_bytes(pull_bytes: int) -> None:
    if pull_bytes > PULL_BYTES_MAX:
        raise InvalidConfiguration(
            "pull_bytes", pull_bytes, f"one pull may ask for at most {PULL_BYTES_MAX} bytes"
        )
