"""Typed calls to one broker about transactional messages (docs/protocol.md, "Transactions").

As `broker_api`: one method for each endpoint; no retries, no state.
"""

from __future__ import annotations

from typing import Final

from rocketq.model import TransactionState
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import PULL_ANSWER_BYTES_MAX, Body, Query, path_of
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents.transactions import (
    ChecksAnswer,
    DecideAnswer,
    DecideRequest,
    HalfAnswer,
    HalfName,
    TransactionDocument,
    TransactionListing,
)

_OUTCOMES: Final = {TransactionState.COMMIT: "commit", TransactionState.ROLLBACK: "rollback"}


class TransactionApi(BrokerApi):
    """One broker process, asked about transactions."""

    def send_half(
        self,
        name: HalfName,
        topic: str,
        queue: int,
        body: Body,
        message: Query | None,
        *,
        timeout_ms: int | None = None,
    ) -> HalfAnswer:
        """Store half messages for a queue: one in its plain form, or an Arrow stream of one batch.

        `message` is what `plain_message.parameters_of` gives of a plain message; None: `body` is a stream. A
        part that comes again is held once. Raises what `send` raises, NotTransactionOwner,
        TransactionDamaged, TransactionDecidedOtherwise and TransactionNotFound.
        """
        media_type = calls.ARROW_STREAM if message is None else calls.OCTET_STREAM
        answer = self._call(
            "POST",
            path_of("topics", topic, "messages"),
            query={
                "queue": queue,
                "transaction": name.transaction,
                "group": name.group,
                "part": name.part,
                **(message or {}),
            },
            body=body,
            headers={"content-type": media_type, "accept": calls.JSON},
            timeout_ms=timeout_ms,
        )
        return self._decoded(answer, HalfAnswer)

    def decide(
        self, group: str, transaction: str, state: TransactionState, *, timeout_ms: int | None = None
    ) -> DecideAnswer:
        """Commit or roll back a transaction; safe to repeat.

        Raises TransactionNotFound, NotTransactionOwner, TransactionDamaged, TransactionDecidedOtherwise.
        """
        path = path_of("groups", group, "transactions", transaction, _OUTCOMES[state])
        return self._decoded(self._call("POST", path, timeout_ms=timeout_ms), DecideAnswer)

    def decide_for_operator(self, group: str, transaction: str, state: TransactionState) -> DecideAnswer:
        """Commit or roll back in the producers' place; as `decide`, with a line in the broker's audit log."""
        path = path_of("groups", group, "transactions", transaction, "outcome")
        return self._decoded(self._call_json("PUT", path, DecideRequest(state)), DecideAnswer)

    def take_checks(self, group: str, *, wait_ms: int = 0, limit: int | None = None) -> ChecksAnswer:
        """Take checks of a group that are due; held at most `wait_ms` while there are none."""
        path = path_of("groups", group, "transactions", "checks")
        answer = self._call(
            "POST",
            path,
            query={"wait_ms": wait_ms or None, "limit": limit},
            hold_ms=wait_ms,
            answer_bytes_max=PULL_ANSWER_BYTES_MAX,
        )
        return self._decoded(answer, ChecksAnswer)

    def transactions(
        self, *, group: str | None = None, page: int = 0, limit: int | None = None
    ) -> TransactionListing:
        """Return a page of the broker's undecided transactions, the oldest first."""
        query: Query = {"group": group, "page": page or None, "limit": limit}
        path = path_of("transactions")
        answer = self._call("GET", path, query=query, answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, TransactionListing)

    def transaction(self, transaction: str) -> TransactionDocument:
        """Return one undecided transaction with its messages. Raises TransactionNotFound."""
        path = path_of("transactions", transaction)
        answer = self._call("GET", path, answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, TransactionDocument)
