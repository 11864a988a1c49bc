"""Retention: what of the log must go, decided from facts alone.

Segments go whole and oldest first, never the one being written. Three things can
condemn the oldest (RocketMQ: CleanCommitLogService):
  * age: its newest frame is older than `retention_ms`; not while the clock is doubted (`clock_record`);
  * size: without it the log would still hold `retention_bytes`;
  * the disk: from `clean_percent` on, all that age and size condemn goes at once
    instead of a few segments a round; from `force_percent` on, segments go whatever
    their age; and from `refuse_percent` on, writes are refused as well, while
    reads go on. A large disk can be 90 % full and have room for years, so no
    watermark counts while `free_bytes_enough` are free: RocketMQ has no such
    rule, and its users learn of the watermarks on shared disks.

Whatever condemns it, a segment stays while it holds staged messages that may still have
to be published: they, too, were acknowledged.

A topic may keep less than the broker: then its queues' first offsets move up,
and the bytes go when their segment does. It cannot keep more, since all topics
share the segments.
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
