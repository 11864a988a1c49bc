"""The record of a broker group: the one value that decides who is master, in which epoch, and who is in
sync.

It lies in a register (`rocketq_broker.meta_register`) that replaces it by compare-and-set only. A change is
made of one version of the record and takes effect only if that version is still the present one. So all
changes of a group are in one order, whoever proposes them.

The in-sync set (RocketMQ: SyncStateSet) has the replicas that hold all that is confirmed and that must hold
a message before it is confirmed. The eligible replicas (Kafka: ELR, eligible leader replicas) left the
in-sync set when it became smaller than `min_in_sync`. Nothing is confirmed while it is that small, so they
too hold all that is confirmed, and one of them may become master if every in-sync replica is lost.

Under asynchronous replication (`replication`) the master confirms by itself. A replica is then in sync if it
has caught up within a bound, and whoever is elected may lack the newest messages.

A replica is a number *and* an incarnation. The number is configured and stays; the incarnation is the
identity of what lies on the disk (`incarnation.py`). A replica that lost data comes back with a new one, so
a promise of the disk that was lost is never taken for a promise of the disk that is there now.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from rocketq.model import ReplicationMode
from rocketq_broker.replication.errors import CorruptGroupRecord

FORMAT: Final = 1


class ReplicaId(NamedTuple):
    """One replica of a group: its broker number, from 1 on, and the incarnation of its storage."""

    number: int
    incarnation: str


class Member(msgspec.Struct, frozen=True):
    """A replica that has joined the group, in sync or not, and where the others reach it."""

    replica: ReplicaId
    address: str


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One state of a group. `group` names its log: logs of two groups are never mixed."""

    group: str
    epoch: int
    master: ReplicaId
    in_sync: frozenset[ReplicaId]
    eligible: frozenset[ReplicaId] = frozenset()
    members: tuple[Member, ...]
    #: How many replicas, the master included, must be in sync for anything to be confirmed.
    min_in_sync: int
    #: The last epoch that began with an unclean election; what was confirmed before may be lost. 0: none.
    unclean_epoch: int = 0
    #: What the founder of the group was told; it stays.
    replication: ReplicationMode = ReplicationMode.SYNC
    format: int = FORMAT

    @property
    def waits(self) -> bool:
        """Whether the master waits for its slaves before it confirms."""
        return self.replication is ReplicationMode.SYNC

    def member(self, number: int) -> Member | None:
        """Return the member of a number."""
        return next((member for member in self.members if member.replica.number == number), None)

    def has_joined(self, replica: ReplicaId) -> bool:
        """Whether a replica is a member, in the incarnation that it has now."""
        member = self.member(replica.number)
        return member is not None and member.replica == replica


class Known(NamedTuple):
    """A record with its version in the register; versions are given in order, from 1 on."""

    version: int
    record: GroupRecord


_DECODER: Final = msgspec.json.Decoder(GroupRecord)


def encode(record: GroupRecord) -> bytes:
    """Return the record as it lies in the register; equal records have equal bytes."""
    return msgspec.json.encode(record, order="deterministic")


def decode(data: bytes) -> GroupRecord:
    """Read a record back and check it; raise CorruptGroupRecord."""
    try:
        record = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptGroupRecord(f"it cannot be read: {error}") from error
    why = fault_of(record)
    if why:
        raise CorruptGroupRecord(why)
    return record


def fault_of(record: GroupRecord) -> str:
    """Say what no sequence of changes can have made; empty if the record is sound."""
    numbers = [member.replica.number for member in record.members]
    faults = (
        (record.format != FORMAT, f"its format is {record.format}, this version knows {FORMAT}"),
        (record.epoch < 1, f"its epoch is {record.epoch}"),
        (record.min_in_sync < 1, f"it wants {record.min_in_sync} replicas in sync"),
        (
            not record.waits and record.min_in_sync > 1,
            f"it wants {record.min_in_sync} replicas in sync under asynchronous replication",
        ),
        (record.master not in record.in_sync, "its master is not in sync"),
        (bool(record.in_sync & record.eligible), "a replica is both in sync and eligible"),
        (
            bool(record.eligible) and len(record.in_sync) >= record.min_in_sync,
            "replicas are eligible although enough are in sync",
        ),
        (
            len({replica.number for replica in record.in_sync}) < len(record.in_sync),
            "a number is in sync in two incarnations",
        ),
        (len(set(numbers)) < len(numbers), "a number is a member twice"),
        (not 0 <= record.unclean_epoch <= record.epoch, f"its unclean epoch is {record.unclean_epoch}"),
    )
    return next((why for is_so, why in faults if is_so), "")
