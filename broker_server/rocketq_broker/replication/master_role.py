"""The master's view of its group in one epoch: how far each replica has come, and who counts.

*Who counts for the confirmed end*: every replica of the registered in-sync set, and of the one that is
proposed. A replica that is to join counts before the proposal is sent, one that is to leave counts until
the register has answered. So whichever of the two sets is registered, nothing is confirmed that a member of
it lacks. An answer that is lost leaves both counting until a later version of the record is read.

*Who may join*: a replica whose log is held up to the confirmed end and up to where this epoch began.
Without the second rule a replica could join that still has frames of an earlier master which nobody else
has.

*Who must leave* (RocketMQ's rule): a replica that has not caught up for a time. It has caught up when a
fetch says that it holds what the master had at the fetch before. So a slave that is only some frames behind
a busy master stays, and one that falls back further and further goes.

*Under asynchronous replication* the master confirms what it holds itself, and nobody counts. The in-sync set
says who may become master. So a replica may join that has caught up a moment ago: it lacks at most what the
master has written since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rocketq_broker.replication.group_record import ReplicaId

#: Under asynchronous replication a replica may join that has caught up within this time.
JOINS_WITHIN_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Progress:
    """What the fetches of one replica said, in this epoch."""

    held: int
    caught_up_ms: int
    #: When it fetched last, and where the master's log ended then.
    fetched_ms: int
    end_at_fetch: int


@dataclass(frozen=True, slots=True)
class MasterRole:
    """One epoch in office. `registered` is the in-sync set of the record, `proposed` what was asked for."""

    me: ReplicaId
    epoch: int
    #: Where this epoch begins in the log.
    start: int
    since_ms: int
    min_in_sync: int
    registered: frozenset[ReplicaId]
    proposed: frozenset[ReplicaId] = frozenset()
    replicas: Mapping[ReplicaId, Progress] = field(default_factory=dict)
    #: Whether slaves must hold a frame before it is confirmed: synchronous replication.
    waits: bool = True

    @property
    def counted(self) -> frozenset[ReplicaId]:
        """Who must hold a frame before it is confirmed."""
        return self.registered | self.proposed

    def confirm_offset(self, own_held: int, confirmed: int) -> int:
        """Return the confirmed end: it never falls, and stands while too few replicas are in sync."""
        if not self.waits:
            return max(confirmed, own_held)
        if len(self.registered) < self.min_in_sync:
            return confirmed
        others = (self.held_by(replica) for replica in self.counted if replica != self.me)
        return max(confirmed, min(own_held, *others)) if len(self.counted) > 1 else max(confirmed, own_held)

    def held_by(self, replica: ReplicaId) -> int:
        """How far a replica is known to hold the log in this epoch; 0 before its first fetch."""
        progress = self.replicas.get(replica)
        return progress.held if progress is not None else 0

    def heard(self, replica: ReplicaId, held: int, log_end: int, now_ms: int) -> MasterRole:
        """Take a fetch of a replica whose log agrees with this one."""
        before = self.replicas.get(replica)
        if before is None:
            now = Progress(held, now_ms if held >= log_end else self.since_ms, now_ms, log_end)
        else:
            caught_up_ms = before.caught_up_ms
            if held >= log_end:
                caught_up_ms = now_ms
            elif held >= before.end_at_fetch:
                caught_up_ms = max(caught_up_ms, before.fetched_ms)
            now = Progress(max(before.held, held), caught_up_ms, now_ms, log_end)
        return replace(self, replicas={**self.replicas, replica: now})

    def may_join(self, replica: ReplicaId, confirmed: int, now_ms: int) -> bool:
        """Whether a replica that is not in sync holds enough to be."""
        held = self.held_by(replica)
        has_enough = held >= confirmed if self.waits else self.behind_ms(replica, now_ms) <= JOINS_WITHIN_MS
        return replica not in self.counted and has_enough and held >= self.start

    def fallen_behind(self, now_ms: int, limit_ms: int) -> frozenset[ReplicaId]:
        """Return the in-sync replicas that have not caught up for longer than the limit."""
        return frozenset(
            replica
            for replica in self.registered
            if replica != self.me and self.behind_ms(replica, now_ms) > limit_ms
        )

    def behind_ms(self, replica: ReplicaId, now_ms: int) -> int:
        """Return how long ago a replica had caught up."""
        return now_ms - self._caught_up_ms(replica)

    def _caught_up_ms(self, replica: ReplicaId) -> int:
        progress = self.replicas.get(replica)
        return progress.caught_up_ms if progress is not None else self.since_ms
