"""Retention: decides from facts alone which segments of the log are removed.

Whole segments are removed, the oldest first, and never the one that is being written. Three things can make
the oldest segment due for removal (RocketMQ: CleanCommitLogService):
  * age: its newest frame is older than `retention_ms`. Age does not count while the clock is doubted
    (`clock_trust`);
  * size: without the segment the log would still have `retention_bytes`;
  * the disk: from `clean_percent` on, all segments that are due by age or size go in one round instead of a
    few a round. From `force_percent` on, segments go whatever their age. From `refuse_percent` on, writes are
    refused as well; reads go on. No watermark counts while `free_bytes_enough` are free, because a large disk
    can be 90 % full and still have room for years. RocketMQ has no such rule, and so its watermarks act on
    shared disks that have room.

A segment stays in any case while it has staged messages that may still have to be published: they were
acknowledged, too.

A topic may keep less than the broker. Then the first offsets of its queues move up, and the bytes go when
their segment is removed. A topic cannot keep more, because all topics share the segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocketq_broker.store.config import RetentionPolicy
from rocketq_broker.store.disk.files import DiskUsage


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment: its first log offset, its size, and a time no frame in it is younger than."""

    start: int
    size: int
    newest_us: int


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What a round does: remove the first `remove` segments, and whether writes are refused."""

    remove: int
    refuse_writes: bool
    why: str = ""


def decide(
    policy: RetentionPolicy,
    segments: Sequence[SegmentFacts],
    now_us: int | None,
    disk: DiskUsage,
    floor: int | None = None,
) -> RetentionDecision:
    """Return how many of the oldest segments go; the last one is the writer's and stays.

    So does everything from log offset `floor` on: it is still needed. Without `now_us`, a time that is
    believed, nothing goes by age.
    """
    used = disk.used_percent if disk.free < policy.free_bytes_enough else 0
    refuse = used >= policy.refuse_percent
    removable = [each for each in segments[:-1] if floor is None or each.start + each.size <= floor]
    if used < policy.clean_percent or used >= policy.force_percent:
        removable = removable[: policy.segments_per_round]
    if used >= policy.force_percent:
        return RetentionDecision(len(removable), refuse, f"the disk is {used} % full")
    total = sum(each.size for each in segments)
    remove, why = 0, ""
    for each in removable:
        old = now_us is not None and now_us - each.newest_us > policy.retention_ms * 1000
        large = policy.retention_bytes is not None and total - each.size >= policy.retention_bytes
        if not old and not large:
            break
        remove, why = remove + 1, "age" if old else "size"
        total -= each.size
    return RetentionDecision(remove, refuse, why)
