"""The invariants I1 to I7 (docs/design.md, "Replication"), checked while a simulation runs.

I1 one master an epoch · I2 what is acknowledged lies on every in-sync and eligible replica · I3 the same
epoch at the same place means the same log before it · I4 no replica cuts below its confirmed end · I5 who
counts includes who is registered · I6 an epoch is on disk before it is spoken · I7 readers see what stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rocketq_broker.replication.group_record import GroupRecord, ReplicaId, fault_of
from rocketq_broker.replication.master_role import MasterRole
from tests.replication.simulated_log import SimFrame, SimLog

if TYPE_CHECKING:
    from tests.replication.simulated_broker import SimBroker


class Violation(Exception):
    """An invariant does not hold."""


class _Link(NamedTuple):
    frame: SimFrame
    #: End and epoch of the frame before it.
    before: tuple[int, int]


class Invariants:
    """What was ever written, acknowledged and read, in all lives of all replicas."""

    def __init__(self) -> None:
        self.masters: dict[int, ReplicaId] = {}
        self.links: dict[tuple[int, int], _Link] = {}
        #: The frames that were acknowledged, by their end, and the last of them.
        self.acked: dict[int, SimFrame] = {}
        self.last_acked: SimFrame | None = None
        self.read: dict[int, SimFrame] = {}
        #: The record and the last acknowledged frame for which every broker was checked.
        self._checked: tuple[GroupRecord | None, SimFrame | None] = (None, None)

    def took_office(self, epoch: int, who: ReplicaId) -> None:
        if self.masters.setdefault(epoch, who) != who:
            raise Violation(f"I1 two masters in epoch {epoch}")

    def registered(self, before: GroupRecord | None, after: GroupRecord) -> None:
        if fault_of(after):
            raise Violation(f"record: {fault_of(after)}")
        if before is None:
            return
        if after.epoch < before.epoch or (after.epoch == before.epoch and after.master != before.master):
            raise Violation(f"I1 the record goes from epoch {before.epoch} to {after.epoch}")

    def appended(self, log: SimLog, frame: SimFrame) -> None:
        link = _Link(frame, (frame.start, log.lineage.epoch_before(frame.start)))
        if self.links.setdefault((frame.end, frame.epoch), link) != link:
            raise Violation("I3 two logs have an epoch at one place and differ before it")

    def cuts(self, broker: SimBroker, end: int) -> None:
        if end < broker.replica.confirmed.end:
            raise Violation("I4 a replica cuts below its confirmed end")

    def speaks(self, broker: SimBroker) -> None:
        if broker.standing.epoch < broker.replica.standing.epoch:
            raise Violation("I6 an epoch is spoken that is not on disk")

    def acknowledged(self, frame: SimFrame) -> None:
        """Take a frame that a sender was told is stored; it must follow all that were told so before."""
        known = self.acked.get(frame.end)
        if known is not None and known != frame:
            raise Violation("I2 two messages were acknowledged at one place")
        self.acked[frame.end] = frame
        last = self.last_acked
        if last is None:
            self.last_acked = frame
            return
        newer, older = (frame, last) if frame.end >= last.end else (last, frame)
        place = (newer.end, newer.epoch)
        while place[0] > older.end:
            place = self.links[place].before
        if place != (older.end, older.epoch):
            raise Violation("I2 an acknowledged message is not before a later one")
        self.last_acked = newer

    def saw(self, frames: Iterable[SimFrame]) -> None:
        for frame in frames:
            if self.read.setdefault(frame.end, frame) != frame:
                raise Violation("I7 two readers saw different messages at one place")

    def hold(self, record: GroupRecord | None, brokers: dict[int, SimBroker], changed: SimBroker) -> None:
        """Check what must hold after every step, of the broker that it changed; of all if it changed more."""
        if record is None:
            return
        if record is self._checked[0] and self.last_acked is self._checked[1]:
            self._hold(record, changed)
            return
        for broker in brokers.values():
            self._hold(record, broker)
        self._checked = (record, self.last_acked)

    def _hold(self, record: GroupRecord, broker: SimBroker) -> None:
        role = broker.replica.role
        is_present = isinstance(role, MasterRole) and broker.is_up and role.epoch == record.epoch
        if is_present and not role.counted >= record.in_sync:  # type: ignore[union-attr]
            raise Violation("I5 a registered replica does not count")
        last, log = self.last_acked, broker.log
        if last is None or last.end <= log.lineage.begin:
            return
        if log.held >= last.end and log.by_end.get(last.end) == last:
            return
        me = ReplicaId(broker.number, broker.incarnation)
        if (me in record.in_sync or me in record.eligible) and broker.is_intact():
            raise Violation("I2 a replica that counts lacks what is acknowledged")

    def lost(self, log: SimLog) -> None:
        """Compare what was acknowledged and read with what is left in the end."""
        for what, frames in (("I2 acknowledged", self.acked), ("I7 read", self.read)):
            for end, frame in frames.items():
                if end > log.lineage.begin and log.by_end.get(end) != frame:
                    raise Violation(f"{what}, and lost in the end")
