"""Typed calls about message leases to one broker (docs/protocol.md, "Message leases")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import PULL_ANSWER_BYTES_MAX, path_of
from rocketq.protocol.documents.broker import JSON
from rocketq.protocol.documents.leases import (
    AckAnswer,
    AckRequest,
    InvisibleTimeAnswer,
    InvisibleTimeRequest,
    LeaseListing,
    ReceiveAnswer,
    ReceiveRequest,
)
from rocketq.protocol.json_codec import encode

_JSON_BODY: Final = {"content-type": JSON}


class LeaseApi(BrokerApi):
    """One broker process, asked for messages by receivers."""

    def receive(self, group: str, request: ReceiveRequest) -> ReceiveAnswer:
        """Lease messages; held at most `wait_ms`. What an answer that is lost leases comes again later.

        Raises TopicNotFound, NoPermission, GroupDisabled, QueuesOwned, ReceiveFilterDiffers, TooManyLeases.
        """
        answer = self._call(
            "POST",
            path_of("groups", group, "receives"),
            body=encode(request),
            headers=_JSON_BODY,
            hold_ms=request.wait_ms,
            answer_bytes_max=PULL_ANSWER_BYTES_MAX,
        )
        return self._decoded(answer, ReceiveAnswer)

    def acknowledge(self, group: str, handles: Sequence[str]) -> AckAnswer:
        """Settle messages; may be repeated. Raises LeaseExpired if not one handle is good."""
        request = AckRequest(tuple(handles))
        return self._send("POST", path_of("groups", group, "acks"), request, AckAnswer)

    def change_invisible_time(
        self, group: str, handles: Sequence[str], invisible_ms: int
    ) -> InvisibleTimeAnswer:
        """Hide messages for another time from now on. Raises LeaseExpired if not one handle is good."""
        request = InvisibleTimeRequest(tuple(handles), invisible_ms)
        return self._send("POST", path_of("groups", group, "invisible-times"), request, InvisibleTimeAnswer)

    def leases(self, group: str) -> LeaseListing:
        """Return how many messages of each queue are leased in a group."""
        return self._get(path_of("groups", group, "leases"), LeaseListing)
