"""What replicas of a broker group, and those who ask for a change of it, refuse each other."""

from __future__ import annotations

from rocketq.errors.base import RemoteError


class StaleEpoch(RemoteError):
    """The caller speaks in an epoch that is over: it is no longer master, or follows one that is not."""

    code = "STALE_EPOCH"
    status = 409

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(
            f"Epoch {epoch} is over; this broker is in epoch {current}.",
            hint="Another broker of the group is master: ask a NameServer for the route again.",
            facts={"epoch": epoch, "current": current},
        )


class EpochAhead(RemoteError):
    """The caller speaks in an epoch that this broker has not heard of yet."""

    code = "EPOCH_AHEAD"
    status = 409
    retryable = True

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(
            f"This broker is in epoch {current} and has not heard of epoch {epoch} yet.",
            hint="Ask again: it is catching up.",
            facts={"epoch": epoch, "current": current},
        )


class NotMaster(RemoteError):
    """The broker that was asked is not the master of its group. `master` is the address of who is, or ""."""

    code = "NOT_MASTER"
    status = 409
    retryable = True

    def __init__(self, group: str, epoch: int, master: str = "") -> None:
        who = f" {master} is." if master else ""
        super().__init__(
            f"This broker is not the master of broker group {group!r} in epoch {epoch}.{who}",
            hint="Ask a NameServer for the route again; it names the master as soon as there is one.",
            facts={"group": group, "epoch": epoch, "master": master},
        )


class NotEnoughReplicas(RemoteError):
    """Too few replicas are in sync, so nothing that is sent could be confirmed; nothing was stored.

    (RocketMQ: IN_SYNC_REPLICAS_NOT_ENOUGH.)
    """

    code = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    status = 503
    retryable = True

    def __init__(self, group: str, in_sync: int, min_in_sync: int) -> None:
        super().__init__(
            f"Broker group {group!r} has {in_sync} of at least {min_in_sync} replicas in sync, "
            "the master included.",
            hint="Send again. If this stays, start the brokers of the group that are away; "
            "--min-in-sync must not be above their number.",
            facts={"group": group, "in_sync": in_sync, "min_in_sync": min_in_sync},
        )


class InSyncSetUnsettled(NotEnoughReplicas):
    """A master that waits for no slave has not heard one of them for long, and the register does not answer.

    So another replica may be master already. Nothing was stored.
    """

    code = "IN_SYNC_SET_UNSETTLED"

    def __init__(self, group: str) -> None:
        RemoteError.__init__(
            self,
            f"An in-sync replica of broker group {group!r} has fallen behind, and the register has not taken "
            "it out of the in-sync set. If it becomes master, what is sent now is lost.",
            hint="Send again. If this stays, see whether a majority of the register's NameServers (or of "
            "etcd's members) runs, and whether the master reaches it.",
            facts={"group": group},
        )


class OutcomeUnknown(RemoteError):
    """The broker left office while a call waited: another master may have what it wrote, or not."""

    code = "OUTCOME_UNKNOWN"
    status = 503
    retryable = True

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__(
            f"The broker stopped being master of broker group {group!r} in epoch {epoch}, before this was "
            "confirmed. It may or may not have taken effect.",
            hint="Send it again: a repetition by the client is stored once.",
            facts={"group": group, "epoch": epoch},
        )


class StageUnconfirmed(OutcomeUnknown):
    """What was staged lies in the master's log only: another master would not have it."""

    code = "STAGE_UNCONFIRMED"

    def __init__(self, broker: str, status: str) -> None:
        RemoteError.__init__(
            self,
            f"Broker {broker} has stored what was staged, and too few replicas have confirmed it ({status}).",
            hint="Stage them again: what no commit names is dropped. rocketq broker replicas shows who lags.",
            facts={"broker": broker, "status": status},
        )


class ReplicaUnknown(RemoteError):
    """A replica fetches that has not joined the group, or has joined in another incarnation since."""

    code = "REPLICA_UNKNOWN"
    status = 409
    retryable = True

    def __init__(self, group: str, number: int, incarnation: str) -> None:
        super().__init__(
            f"Replica {number} (incarnation {incarnation}) has not joined broker group {group!r}.",
            hint="A broker joins before it fetches. Ask again if it has just joined; "
            "otherwise check --broker-id and the name of its group.",
            facts={"group": group, "number": number, "incarnation": incarnation},
        )


class ForeignReplica(RemoteError):
    """A replica of one group fetches from a broker of another one."""

    code = "FOREIGN_REPLICA"
    status = 409

    def __init__(self, group: str, given: str) -> None:
        super().__init__(
            f"This broker has the log of broker group {group!r}, and the caller follows "
            f"broker group {given!r}.",
            hint="Two groups have the same address or name: check --cluster, --name and the register.",
            facts={"group": group, "given": given},
        )


class ElectionRefused(RemoteError):
    """A replica was to become master that may lack messages which are confirmed."""

    code = "ELECTION_REFUSED"
    status = 409

    def __init__(self, number: int, why: str) -> None:
        super().__init__(
            f"Replica {number} cannot become master: {why}.",
            hint="Start a replica that is in sync or eligible. If all of them are lost for good, an unclean "
            "election makes this one master, and what it lacks is lost.",
            facts={"number": number, "why": why},
        )


class RegisterUnavailable(RemoteError):
    """Too few acceptors of the register answered; whether a change took effect is unknown."""

    code = "REGISTER_UNAVAILABLE"
    status = 503
    retryable = True

    def __init__(self, register: str, why: str) -> None:
        super().__init__(
            f"The register {register!r} could not be asked: {why}.",
            hint="Read it again; a majority of its servers must run.",
            facts={"register": register, "why": why},
        )


class RegisterChanged(RemoteError):
    """A compare-and-set named a version that is not the present one; nothing was changed."""

    code = "REGISTER_CHANGED"
    status = 409

    def __init__(self, register: str, expected: int, version: int) -> None:
        super().__init__(
            f"The register {register!r} has version {version}, and the change names version {expected}.",
            hint="Read it and decide again.",
            facts={"register": register, "expected": expected, "version": version},
        )


class AcceptorFailed(RemoteError):
    """An acceptor could not write to its disk, and answers nothing more until it is started again."""

    code = "ACCEPTOR_FAILED"
    status = 503

    def __init__(self, register: str, why: str) -> None:
        super().__init__(
            f"This acceptor could not write register {register!r}: {why}. It answers no more calls.",
            hint="Check the disk of this NameServer and start it again; a majority of the others is enough.",
            facts={"register": register, "why": why},
        )
