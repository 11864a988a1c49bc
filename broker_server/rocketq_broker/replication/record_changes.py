"""All changes of a group's record, as pure functions: from a record to the record that is proposed.

    founded              the first broker of a group, which is alone in sync
    joined               a broker becomes a member, or returns in a new incarnation; not yet in sync
    shrunk, expanded     the master changes its in-sync set
    elected              an in-sync or eligible replica takes office in a new epoch; under asynchronous
                         replication it may lack what was confirmed, so the election is an unclean one
    elected_uncleanly    any member does, at an operator's command: what was confirmed may be lost
    handed_over          the master gives its office to an in-sync replica

`fault_of_change` says what a change may never do, whoever made it; the proposer of a change asks it first.
"""

from __future__ import annotations

from collections.abc import Set

from msgspec.structs import replace

from rocketq.model import ReplicationMode
from rocketq_broker.replication.group_record import (
    GroupRecord,
    Member,
    ReplicaId,
    fault_of,
)


def founded(
    group: str,
    founder: Member,
    *,
    epoch: int,
    min_in_sync: int,
    replication: ReplicationMode = ReplicationMode.SYNC,
) -> GroupRecord:
    """Return the first record of a group."""
    me = founder.replica
    return GroupRecord(
        group=group, epoch=epoch, master=me, in_sync=frozenset({me}), members=(founder,),
        min_in_sync=min_in_sync, replication=replication,
    )  # fmt: skip


def joined(record: GroupRecord, member: Member) -> GroupRecord:
    """Put a member into the list, in place of the one with its number."""
    others = [other for other in record.members if other.replica.number != member.replica.number]
    return replace(record, members=tuple(sorted([*others, member], key=lambda each: each.replica.number)))


def shrunk(record: GroupRecord, removed: Set[ReplicaId]) -> GroupRecord:
    """Take replicas out of the in-sync set; never the master."""
    return _with_in_sync(record, record.in_sync - (removed - {record.master}))


def expanded(record: GroupRecord, added: ReplicaId) -> GroupRecord:
    """Put a replica into the in-sync set, in place of an earlier incarnation of its number."""
    others = frozenset(each for each in record.in_sync if each.number != added.number)
    return _with_in_sync(record, others | {added})


def elected(record: GroupRecord, candidate: ReplicaId) -> GroupRecord | None:
    """Return the record with a new master; None if the candidate may lack something that is confirmed.

    The former master leaves the in-sync set, and the other members stay: all hold what is confirmed. A master
    that elects itself again after a restart keeps them all. Where the master confirmed alone, another replica
    lacks the newest messages, and the epoch is marked: those who have them cut them from their logs.
    """
    if candidate in record.in_sync:
        stays = record.in_sync if candidate == record.master else record.in_sync - {record.master}
    elif candidate in record.eligible:
        stays = frozenset({candidate})
    else:
        return None
    epoch = record.epoch + 1
    is_clean = record.waits or candidate == record.master
    unclean_epoch = record.unclean_epoch if is_clean else epoch
    return _with_in_sync(replace(record, epoch=epoch, master=candidate, unclean_epoch=unclean_epoch), stays)


def elected_uncleanly(record: GroupRecord, candidate: ReplicaId) -> GroupRecord:
    """Return the record with this replica alone in sync, whatever it lacks."""
    epoch = record.epoch + 1
    return replace(
        record, epoch=epoch, master=candidate, in_sync=frozenset({candidate}), eligible=frozenset(),
        unclean_epoch=epoch,
    )  # fmt: skip


def handed_over(record: GroupRecord, successor: ReplicaId, *, leaves: bool = False) -> GroupRecord | None:
    """Return the record with an in-sync replica as the next master; None if it is not in sync.

    With `leaves` the former master is about to stop: it leaves the in-sync set if enough others are in it, so
    that no send waits for it.
    """
    if successor not in record.in_sync or successor == record.master:
        return None
    after = replace(record, epoch=record.epoch + 1, master=successor)
    others = record.in_sync - {record.master}
    return _with_in_sync(after, others) if leaves and len(others) >= record.min_in_sync else after


def _with_in_sync(record: GroupRecord, in_sync: frozenset[ReplicaId]) -> GroupRecord:
    return replace(record, in_sync=in_sync, eligible=eligible_after(record, in_sync))


def eligible_after(record: GroupRecord, in_sync: frozenset[ReplicaId]) -> frozenset[ReplicaId]:
    """Return who is eligible beside a new in-sync set: nobody, once enough are in sync.

    What is confirmed from then on, the eligible ones need not have. Until then nothing new is confirmed, so
    those who leave hold everything.
    """
    if len(in_sync) >= record.min_in_sync:
        return frozenset()
    return (record.eligible | record.in_sync) - in_sync


def fault_of_change(before: GroupRecord, after: GroupRecord) -> str:
    """Say why a change must not be proposed; empty if it may be."""
    why = fault_of(after)
    if why:
        return why
    if after.group != before.group:
        return "it is the record of another group"
    if after.epoch < before.epoch:
        return f"it goes back from epoch {before.epoch} to {after.epoch}"
    if after.epoch == before.epoch and after.master != before.master:
        return f"epoch {after.epoch} has a master"
    return ""
