"""What stops a replica: each of these needs an operator, because to go on could lose what was confirmed.

ReplicationHalt
├── CorruptGroupRecord      the register holds what no change can have made
├── RegisterWentBack        the register has forgotten an epoch or a record that this replica has seen
├── ReplicaReplaced         another process has joined the group with this replica's number
├── ReplicaNumberTaken      another live process is the replica of this number
├── ForeignLog              the data directory belongs to another group, or to none and is not empty
└── ConfirmedDiverged       the master does not hold what this replica knows to be confirmed

Refusals between replicas, which cross the wire, are in `rocketq.errors.replication_errors`.
"""

from __future__ import annotations

from rocketq.errors import RocketqError


class ReplicationHalt(RocketqError):
    """Base: the replica serves nothing more and changes nothing."""

    code = "REPLICATION_HALTED"
    status = 503


class CorruptGroupRecord(ReplicationHalt):
    """The record of the group is damaged, or a newer version wrote it."""

    code = "CORRUPT_GROUP_RECORD"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The register's record of this broker group cannot be used: {why}.",
            hint="Start the version of rocketq that wrote it; if the register is damaged, restore it.",
            facts={"why": why},
        )


class RegisterWentBack(ReplicationHalt):
    """The register is behind what this replica has seen of it."""

    code = "REGISTER_WENT_BACK"

    def __init__(self, group: str, seen: str, found: str) -> None:
        super().__init__(
            f"The register of group {group!r} went back: this broker has seen {seen}, "
            f"the register has {found}.",
            hint="It was emptied, or restored from an old copy. Restore the newest one; nothing was changed.",
            facts={"group": group, "seen": seen, "found": found},
        )


class ReplicaReplaced(ReplicationHalt):
    """Somebody else joined under this number."""

    code = "REPLICA_REPLACED"

    def __init__(self, number: int, incarnation: str, other: str, address: str) -> None:
        super().__init__(
            f"Another process has joined as replica {number}: incarnation {other} at {address}, "
            f"this one is {incarnation}.",
            hint="Give each broker of a group a number of its own (--broker-id).",
            facts={"number": number, "incarnation": incarnation, "other": other, "address": address},
        )


class ReplicaNumberTaken(ReplicationHalt):
    """A live process is the replica of this number already; this one has not joined, and changed nothing."""

    code = "REPLICA_NUMBER_TAKEN"
    status = 409

    def __init__(self, group: str, number: int, address: str) -> None:
        super().__init__(
            f"Another live process is replica {number} of group {group!r}: the one at {address}.",
            hint="Give each broker of a group a number of its own (--broker-id).",
            facts={"group": group, "number": number, "address": address},
        )


class ForeignLog(ReplicationHalt):
    """The log here is not a log of this group."""

    code = "FOREIGN_LOG"

    def __init__(self, group: str, own_group: str, log_end: int) -> None:
        whose = f"of group {own_group!r}" if own_group else "of no group"
        super().__init__(
            f"This directory has {log_end} bytes of a log {whose}; they do not belong to group {group!r}.",
            hint="Start the broker with an empty --data-dir: it copies the log of the group's master.",
            facts={"group": group, "own_group": own_group, "log_end": log_end},
        )


class ConfirmedDiverged(ReplicationHalt):
    """To follow, this replica would have to cut off what it knows to be confirmed."""

    code = "CONFIRMED_DIVERGED"

    def __init__(self, epoch: int, keep: int, confirmed: int) -> None:
        super().__init__(
            f"The master of epoch {epoch} has this replica's log up to {keep} only, "
            f"and it is confirmed up to {confirmed}.",
            hint="A member lost data and kept its place. Nothing was cut. Compare the logs before you start "
            "this broker again.",
            facts={"epoch": epoch, "keep": keep, "confirmed": confirmed},
        )
