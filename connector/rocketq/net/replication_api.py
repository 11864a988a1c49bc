"""Typed calls to one replica of a broker group (docs/protocol.md, "Replication")."""

from __future__ import annotations

from rocketq.errors import BrokerUnreachable
from rocketq.net.server_api import ServerApi
from rocketq.net.transport import Transport, TransportFailure, path_of
from rocketq.protocol.documents.replication import (
    HandOverRequest,
    OfficeAnswer,
    PromoteRequest,
    ReplicationStatus,
)


class ReplicationApi(ServerApi):
    """One broker process. Raises BrokerUnreachable, or the broker's refusal; NotFound if it is no replica."""

    def __init__(
        self, transport: Transport, broker: str, address: str, *, timeout_ms: int | None = None
    ) -> None:
        super().__init__(transport, address, f"broker {broker}", timeout_ms)
        self.broker = broker

    def status(self) -> ReplicationStatus:
        """Return the group as this broker sees it."""
        return self._get(path_of("replication"), ReplicationStatus)

    def promote(self, *, unclean: bool = False) -> int:
        """Make this broker master; return the epoch that has begun. Raises ElectionRefused."""
        return self._send(
            "POST", path_of("replication", "promotion"), PromoteRequest(unclean), OfficeAnswer
        ).epoch

    def hand_over(self, successor: int = 0) -> int:
        """Have this master give its office away; return the next epoch. Raises ElectionRefused, NotMaster."""
        request = HandOverRequest(successor)
        return self._send("POST", path_of("replication", "handover"), request, OfficeAnswer).epoch

    def _unreachable(self, failure: TransportFailure) -> BrokerUnreachable:
        return BrokerUnreachable(self.broker, self.address, failure.why, failure.sent)
