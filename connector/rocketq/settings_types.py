"""The settings that `Client` and `AsyncClient` take as keywords, as types that a type checker knows.

A type checker cannot take the keywords of a call from a dataclass, so each configuration has its fields here
a second time. A test holds both equal, names and types.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from rocketq.config import Acknowledgement, Compression, GroupStart, Reset, Start


class ProducerSettings(TypedDict, total=False):
    """The fields of `ProducerConfig`, which says what each does."""

    timeout_ms: int
    retries: int
    compression: Compression | None
    auto_create_topics: bool
    auto_create_queues: int
    unique_ids: bool
    idempotent: bool
    move_unanswered: bool
    fault_avoidance: bool
    slice_bytes: int
    request_bytes: int
    linger_ms: int
    batch_bytes: int
    batch_messages: int
    buffer_bytes: int
    sender_threads: int


class PullConsumerSettings(TypedDict, total=False):
    """The fields of `PullConsumerConfig`, which says what each does."""

    tags: str | None
    sql: str | None
    start: Start
    start_fallback: Reset
    start_timestamp_us: int | None
    offset_reset: Reset
    prefetch_bytes: int
    pull_bytes: int
    hold_ms: int
    retry_ms: int


class SimpleConsumerSettings(TypedDict, total=False):
    """The fields of `SimpleConsumerConfig`, which says what each does."""

    invisible_ms: int
    wait_ms: int
    start: GroupStart
    start_timestamp_us: int | None
    new_filter: bool
    ordered: bool


class ConsumerSettings(TypedDict, total=False):
    """The fields of `ConsumerConfig`, which says what each does."""

    start: GroupStart
    start_timestamp_us: int | None
    offset_reset: Reset
    ack: Acknowledgement
    ordered: bool
    broadcasting: bool
    offsets_file: str | Path | None
    max_attempts: int | None
    suspend_ms: int | None
    consume_timeout_ms: int | None
    commit_ms: int
    rebalance_ms: int
    hand_over_ms: int
    heartbeat_ms: int
    watch_ms: int
    session_timeout_ms: int | None
    queue_messages: int
    queue_bytes: int
    queue_span: int
    buffer_messages: int
    buffer_bytes: int
    pull_bytes: int
    hold_ms: int
    retry_ms: int


class TopicChanges(TypedDict, total=False):
    """The fields of `AlterTopicRequest`: what `alter_topic` changes."""

    read_queues: int | None
    write_queues: int | None
    perm: int | None
    message_bytes_max: int | None
    retention_ms: int | None
    retention_bytes: int | None
    remove_brokers: tuple[str, ...]
    force: bool
