"""What goes wrong with a transaction."""

from __future__ import annotations

from rocketq.errors.base import ClientError, RemoteError

# --- raised on the client's side -------------------------------------------------


class TransactionMisused(ClientError):
    """A transaction was used in a way that it cannot be; nothing was sent."""

    code = "TRANSACTION_MISUSED"
    status = 400

    def __init__(self, what: str, why: str, hint: str = "") -> None:
        super().__init__(f"{what}: {why}.", hint=hint, facts={"what": what, "why": why})


# --- a server's answer -----------------------------------------------------------


class TransactionNotFound(RemoteError):
    """This broker has no such transaction, and does not remember one."""

    code = "TRANSACTION_NOT_FOUND"
    status = 404

    def __init__(self, transaction: str, broker: str) -> None:
        super().__init__(
            f"Broker {broker} has no transaction {transaction[:200]!r}.",
            hint="It lies on the broker that took its first half message. One that was decided long ago is "
            "forgotten. rocketq tx list shows those that are undecided.",
            facts={"transaction": transaction[:200], "broker": broker},
        )


class TransactionDecidedOtherwise(RemoteError):
    """A committed transaction is to be rolled back, or the other way round; it stays as it is."""

    code = "TRANSACTION_DECIDED_OTHERWISE"
    status = 409

    def __init__(self, transaction: str, broker: str, outcome: str) -> None:
        super().__init__(
            f"Transaction {transaction!r} on broker {broker} was decided before, with the outcome {outcome}, "
            "and takes neither another outcome nor further messages.",
            hint="A check or an operator may have decided it. Compare what the check function says with what "
            "the local transaction did.",
            facts={"transaction": transaction, "broker": broker, "outcome": outcome},
        )


class TransactionDamaged(RemoteError):
    """Half messages of a transaction are lost, or may be; it takes no commit and no further messages."""

    code = "TRANSACTION_DAMAGED"
    status = 409

    def __init__(self, transaction: str, broker: str) -> None:
        super().__init__(
            f"Half messages of transaction {transaction!r} on broker {broker} are lost, or may be: salvage "
            "found the broker's log damaged while the transaction was open. A commit would deliver a part.",
            hint="Look at what is left (rocketq tx show), roll it back, and send its messages again in a new "
            "transaction.",
            facts={"transaction": transaction, "broker": broker},
        )


class NotTransactionOwner(RemoteError):
    """A transaction belongs to another producer group; nothing was changed."""

    code = "NOT_TRANSACTION_OWNER"
    status = 403

    def __init__(self, transaction: str, group: str, owner: str) -> None:
        super().__init__(
            f"Transaction {transaction!r} belongs to producer group {owner!r}, not to {group!r}.",
            hint=f"Decide it as a producer of group {owner!r}, or as an operator with rocketq tx.",
            facts={"transaction": transaction, "group": group, "owner": owner},
        )
