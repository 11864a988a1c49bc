"""Makes a recovered store a follower, before its threads start."""

from __future__ import annotations

from collections.abc import Callable

from rocketq_broker.store.commit.confirmation import WrittenGroup
from rocketq_broker.store.commit.ends import ReplicaRule
from rocketq_broker.store.commit.log_writer import LogWriter
from rocketq_broker.store.index.key_index import KeyIndex
from rocketq_broker.store.recovery.start import StoreStart
from rocketq_broker.store.replica.following import Follower
from rocketq_broker.store.replica.operations import (
    OFFICE,
    FoundOnDisk,
    ReplicaHooks,
    ReplicaOperations,
)
from rocketq_broker.store.upkeep.housekeeping import Housekeeping


def following(
    start: StoreStart,
    writer: LogWriter,
    index: KeyIndex,
    housekeeping: Housekeeping,
    rule: ReplicaRule,
    hooks: ReplicaHooks,
    on_change: Callable[[], None],
) -> ReplicaOperations:
    """Refuse local writes, have what is not known to be confirmed wait, and return what may be asked."""
    parts, recovery, kept = start.parts, start.recovery, start.standing.kept
    writer.refuse_writes(OFFICE, hooks.refusal)
    writer.follow(True)
    rule.tell(recovery.shown_end)
    if recovery.waiting is not None:
        group = WrittenGroup(recovery.waiting, parts.log.end, parts.clock.monotonic_ms())
        writer.confirmation.add(group)
    follower = Follower(
        parts, writer, index, housekeeping, rule, recovery.replay, hooks.on_log_moved, on_change
    )
    same_boot = kept.boot_id == parts.clock.boot_id()
    found = FoundOnDisk(start.report.clean, same_boot, parts.log.end, kept.doubt)
    return ReplicaOperations(parts, writer, follower, rule, start.standing, found)
