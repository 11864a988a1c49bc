"""Undecided transactions over the whole cluster: listing them, looking at one, and deciding one."""

from __future__ import annotations

from collections.abc import Iterator

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors.transaction_errors import TransactionNotFound
from rocketq.model import TransactionState
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transaction_api import TransactionApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.transactions import (
    DecideAnswer,
    TransactionDescription,
    TransactionDocument,
    TransactionListing,
)


class TransactionAdmin:
    """Asks every live master about transactions, and decides them. Thread-safe.

    Every method raises BrokerUnreachable if a live master does not answer, and NameServersUnreachable.
    """

    def __init__(self, masters: LiveMasters, transport: Transport) -> None:
        self._masters = masters
        self._transport = transport

    def undecided(
        self, *, group: str | None = None, parked_only: bool = False
    ) -> Iterator[TransactionDescription]:
        """Yield the undecided transactions, broker by broker and the oldest first; of one group if named."""
        for api in self._apis():
            page: int | None = 0
            while page is not None:
                listing = api.transactions(group=group, page=page)
                yield from (each for each in listing.transactions if each.parked_at_ms or not parked_only)
                page = listing.next_page

    def page(self, master: BrokerApi, *, group: str | None = None, page: int = 0) -> TransactionListing:
        """Return one page of the undecided transactions of one broker, the oldest first."""
        return TransactionApi.of(master, self._transport).transactions(group=group, page=page)

    def find(self, transaction: str) -> TransactionDocument:
        """Return an undecided transaction with its messages; raise TransactionNotFound."""
        return self._found(transaction)[1]

    def decide(self, transaction: str, state: TransactionState) -> DecideAnswer:
        """Commit or roll back an undecided transaction, whatever its group. Raises TransactionNotFound."""
        api, found = self._found(transaction)
        return api.decide_for_operator(found.description.group, transaction, state)

    def _found(self, transaction: str) -> tuple[TransactionApi, TransactionDocument]:
        unknown = TransactionNotFound(transaction, "of this cluster")
        for api in self._apis():
            try:
                return api, api.transaction(transaction)
            except TransactionNotFound as error:
                unknown = error
        raise unknown

    def _apis(self) -> Iterator[TransactionApi]:
        return (TransactionApi.of(master, self._transport) for master in self._masters.apis())
