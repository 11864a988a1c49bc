"""What can go wrong below the broker's services.

StoreError
├── StoreLocked         another process holds the directory
├── CorruptLog          good data has rotted; nothing was dropped
├── MissingSegment      the log has a hole where a file should be
├── UnreadableLog       the key index passed over a part of the log that cannot be read
├── CorruptSnapshot     the snapshot is damaged (recovery goes on without it)
├── CorruptQueue        a ConsumeQueue does not lead to its messages; it can be built anew
├── CorruptIndex        an index file is damaged; it is built anew
├── CorruptStanding     what a replica knows of itself is damaged
├── ReplicaNotSalvaged  a salvaged log would differ from those of the other members
├── ShipmentMisplaced   frames of another member do not continue this log
├── SegmentGone         retention removed what was about to be read
└── LogFailed           a write or sync failed; the store stopped acknowledging
"""

from __future__ import annotations

from rocketq.errors import RocketqError


class StoreError(RocketqError):
    """Base of the store's errors."""

    code = "STORE_ERROR"
    status = 500


class StoreLocked(StoreError):
    """The data directory is in use."""

    code = "STORE_LOCKED"

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"The data directory {directory} is in use by a broker that runs, or by salvage.",
            hint="Stop that process first. Each broker has a directory of its own (--data-dir).",
            facts={"directory": directory},
        )


class CorruptLog(StoreError):
    """A frame that was once on disk is damaged."""

    code = "CORRUPT_LOG"

    def __init__(self, segment: str, log_offset: int, why: str, evidence: str) -> None:
        super().__init__(
            f"The log is damaged at offset {log_offset}, in segment {segment}: {why}. "
            f"This is not a torn tail: {evidence}.",
            hint="Restore the segment from a copy, or salvage the log: docs/salvage.md. Nothing was changed.",
            facts={"segment": segment, "log_offset": log_offset, "why": why, "evidence": evidence},
        )


class MissingSegment(StoreError):
    """A segment's file is absent, or its size leaves a hole before the next one."""

    code = "MISSING_SEGMENT"

    def __init__(self, expected: int, found: str) -> None:
        super().__init__(
            f"The log has a hole: a segment should begin at offset {expected}, the next file is {found}.",
            hint="Put the missing file back, or salvage the log (docs/salvage.md); nothing was changed.",
            facts={"expected": expected, "found": found},
        )


class UnreadableLog(StoreError):
    """The indexer or a search met frames that cannot be read; both go on with what follows."""

    code = "UNREADABLE_LOG"

    def __init__(self, log_begin: int, log_end: int, why: str) -> None:
        super().__init__(
            f"The log cannot be read from offset {log_begin} to {log_end}: {why}. "
            "The key index does not cover this range, and each search that concerns it says so.",
            hint="Put the segment back from a copy, or run rocketq_broker.salvage (docs/operations.md).",
            facts={"log_begin": log_begin, "log_end": log_end, "why": why},
        )


class CorruptSnapshot(StoreError):
    """The snapshot file does not hold what was written to it."""

    code = "CORRUPT_SNAPSHOT"

    def __init__(self, why: str) -> None:
        super().__init__(f"The snapshot is damaged: {why}.", facts={"why": why})


class CorruptQueue(StoreError):
    """A unit of a ConsumeQueue is missing or leads astray; the log itself may be whole."""

    code = "CORRUPT_QUEUE"

    def __init__(self, directory: str, offset: int, why: str, block_first: int = 0) -> None:
        self.directory = directory
        self.offset = offset
        #: The first offset of the damaged block of units.
        self.block_first = block_first
        super().__init__(
            f"{directory} does not lead to the message at queue offset {offset}: {why}.",
            hint="Stop the broker, remove its folder consumequeue, start it: queues are built from the log.",
            facts={"directory": directory, "offset": offset, "why": why},
        )


class CorruptStanding(StoreError):
    """The file with a replica's group, epoch and incarnation does not hold what was written to it."""

    code = "CORRUPT_STANDING"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The file state/standing of this replica is damaged: {why}.",
            hint="Start the broker with an empty --data-dir: it copies the log of the group's master.",
            facts={"why": why},
        )


class ReplicaNotSalvaged(StoreError):
    """The directory is that of a replica: a salvaged log would differ from those of the other members."""

    code = "REPLICA_NOT_SALVAGED"
    status = 409

    def __init__(self, group: str) -> None:
        super().__init__(
            f"The directory is that of a replica of group {group!r}, "
            "and a salvaged log would differ from those of the other members.",
            hint="Start the broker: it heals the log from another member. If that fails, empty the "
            "directory, and the broker copies the log. If no other member is left, --leave-group salvages "
            "it; it is the log of no group then, and can be run with --broker-id 0.",
            facts={"group": group},
        )


class ShipmentMisplaced(StoreError):
    """Frames that were fetched begin elsewhere than this log ends, or are cut where no append ends."""

    code = "SHIPMENT_MISPLACED"
    status = 409

    def __init__(self, at: int, end: int, why: str) -> None:
        super().__init__(
            f"Frames from log offset {at} on cannot follow this log, which ends at {end}: {why}.",
            hint="Fetch again from the end of this log; nothing was written.",
            facts={"at": at, "end": end, "why": why},
        )


class LogFailed(StoreError):
    """The disk refused a write or a sync, so what is durable is no longer known."""

    code = "LOG_FAILED"

    def __init__(self, action: str, why: str) -> None:
        super().__init__(
            f"The log could not {action}: {why}. The broker acknowledges nothing more and stops.",
            hint="Check the disk; after a restart, recovery decides what was stored.",
            facts={"action": action, "why": why},
        )


class SegmentGone(StoreError):
    """A log offset lies below the log's begin."""

    code = "SEGMENT_GONE"

    def __init__(self, log_offset: int, begin: int) -> None:
        super().__init__(
            f"Log offset {log_offset} was removed by retention; the log begins at {begin}.",
            hint="Look the queue's first offset up again.",
            facts={"log_offset": log_offset, "begin": begin},
        )


class CorruptIndex(StoreError):
    """An index file does not hold what was written to it; it is derived and can be built anew."""

    code = "CORRUPT_INDEX"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"The index file {path} is damaged: {why}.", facts={"path": path, "why": why})
