"""Typed calls to one acceptor of a register (docs/protocol.md, "NameServer")."""

from __future__ import annotations

from rocketq.errors import NameServersUnreachable
from rocketq.net.server_api import ServerApi
from rocketq.net.transport import Transport, TransportFailure, path_of
from rocketq.protocol.documents.meta_register import AcceptorAnswer, AcceptRequest, PrepareRequest


class RegisterApi(ServerApi):
    """One acceptor, for one register. Raises NameServersUnreachable, or the acceptor's refusal."""

    def __init__(
        self, transport: Transport, address: str, cluster: str, broker: str, *, timeout_ms: int
    ) -> None:
        super().__init__(transport, address, "the acceptor", timeout_ms)
        self._register = (cluster, broker)

    def prepare(self, request: PrepareRequest) -> AcceptorAnswer:
        return self._send("POST", path_of("registers", *self._register, "prepare"), request, AcceptorAnswer)

    def accept(self, request: AcceptRequest) -> AcceptorAnswer:
        return self._send("POST", path_of("registers", *self._register, "accept"), request, AcceptorAnswer)

    def _unreachable(self, failure: TransportFailure) -> NameServersUnreachable:
        return NameServersUnreachable({self.address: failure.why})
