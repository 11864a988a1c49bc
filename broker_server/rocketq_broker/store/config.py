"""The store's settings, checked once when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rocketq.errors import InvalidConfiguration
from rocketq.model import FlushMode
from rocketq.protocol.sizes import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What to keep: at most this old (ms), this much (bytes, None: any), and the disk's watermarks (%)."""

    retention_ms: int = 72 * 3600 * 1000
    retention_bytes: int | None = None
    #: RocketMQ: diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio, diskSpaceWarningLevelRatio.
    clean_percent: int = 75
    force_percent: int = 85
    refuse_percent: int = 90
    free_bytes_enough: int = 16 << 30
    #: Segments removed in one round (RocketMQ: deleteFileBatchMax).
    segments_per_round: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.clean_percent <= self.force_percent <= self.refuse_percent <= 100:
            raise InvalidConfiguration(
                "watermarks",
                (self.clean_percent, self.force_percent, self.refuse_percent),
                "they must ascend from above 0 to at most 100",
            )
        for name in ("retention_ms", "retention_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfiguration(name, value, "must be at least 1")


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """When undecided transactions are checked, and how many there may be; times in milliseconds."""

    #: The first check comes so long after the begin (RocketMQ: transactionTimeOut).
    timeout_ms: int = 6_000
    #: Each further check comes so long after the one before (RocketMQ: transactionCheckInterval).
    check_interval_ms: int = 30_000
    #: A transaction that is undecided after so many checks is parked (RocketMQ: transactionCheckMax).
    checks_max: int = 15
    #: One that nobody asked to check is parked after so long, and a parked one is rolled back after as long
    #: again (RocketMQ: fileReservedTime).
    kept_ms: int = 72 * 3600 * 1000
    #: Open transactions of one producer group before further ones are refused with SYSTEM_BUSY.
    group_max: int = 10_000

    def __post_init__(self) -> None:
        for name in ("timeout_ms", "check_interval_ms", "checks_max", "kept_ms", "group_max"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(f"transactions.{name}", getattr(self, name), "must be at least 1")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where the store lies and how it behaves; sizes in bytes, times in milliseconds."""

    directory: Path
    broker: str = "broker-a"
    flush: FlushMode = FlushMode.ASYNC
    #: New frames carry at least this epoch; one that the log already has is never undercut.
    epoch: int = 0
    #: RocketMQ: mappedFileSizeCommitLog.
    segment_bytes: int = 1 << 30
    #: Async flush writes back at least this often (RocketMQ: flushIntervalCommitLog).
    flush_interval_ms: int = 500
    #: Sync flush answers FLUSH_DISK_TIMEOUT once a sync takes longer (RocketMQ: syncFlushTimeout).
    flush_timeout_ms: int = 5_000
    #: A replica answers senders once its slaves take longer (RocketMQ: slaveTimeout).
    slave_timeout_ms: int = 3_000
    #: A snapshot is due after this time or this much log, so that recovery replays little.
    snapshot_interval_ms: int = 3_000
    snapshot_log_bytes: int = 256 << 20
    #: What may wait for the writer before senders are told SYSTEM_BUSY.
    queued_bytes_max: int = 256 << 20
    #: What one group commit takes at most.
    group_bytes_max: int = 32 << 20
    #: What one group commit copies of decided batches, beyond the first frame (`publishing`).
    publish_bytes_max: int = 16 << 20
    #: Batches below this size are merged with others of their queue in the same group.
    merge_bytes: int = 16 << 10
    open_files_max: int = 512
    #: Units of one ConsumeQueue file (RocketMQ: mappedFileSizeConsumeQueue / 20).
    queue_file_units: int = 300_000
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    retention_interval_ms: int = 10_000
    #: The indexer looks for new log at least this often; a commit wakes it at once.
    index_interval_ms: int = 500
    topics_max: int = 10_000
    queues_max: int = 50_000
    #: An append that waited longer than this for the writer is refused with SYSTEM_BUSY
    #: (RocketMQ: waitTimeMillsInSendQueue, there 200 ms).
    queue_wait_ms_max: int = 2_000
    transactions: TransactionPolicy = field(default_factory=TransactionPolicy)
    #: Messages of one queue that a group may have leased one by one (RocketMQ: popInflightMessageThreshold).
    leased_messages_max: int = 20_000

    def __post_init__(self) -> None:
        if not 4096 <= self.segment_bytes <= 1 << 40:
            raise InvalidConfiguration("segment_bytes", self.segment_bytes, "must be from 4096 to 2^40")
        if not 0 <= self.merge_bytes <= FRAME_BYTES_MAX // 4:
            raise InvalidConfiguration(
                "merge_bytes", self.merge_bytes, f"must be from 0 to {FRAME_BYTES_MAX // 4}"
            )
        for name in (
            "flush_interval_ms", "snapshot_interval_ms", "snapshot_log_bytes", "queued_bytes_max",
            "group_bytes_max", "publish_bytes_max", "queue_file_units", "retention_interval_ms",
            "topics_max", "queues_max", "queue_wait_ms_max", "index_interval_ms", "flush_timeout_ms",
            "slave_timeout_ms", "leased_messages_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidConfiguration(name, getattr(self, name), "must be at least 1")
        if not 0 <= self.epoch < 1 << 32:
            raise InvalidConfiguration("epoch", self.epoch, "must be from 0 to 2^32 - 1")
        if self.open_files_max < 8:
            raise InvalidConfiguration("open_files_max", self.open_files_max, "must be at least 8")
