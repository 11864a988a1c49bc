"""Short ways to say what a broker registers."""

from __future__ import annotations

from collections.abc import Iterable

from rocketq.model import TopicConfig
from rocketq.protocol.documents.nameserver import (
    BrokerIdentity,
    DataVersion,
    HeartbeatRequest,
    RegisterRequest,
    UnregisterRequest,
)


def identity(
    broker: str = "broker-a",
    broker_id: int = 0,
    at: str = "",
    cluster: str = "default",
    process: str = "",
) -> BrokerIdentity:
    return BrokerIdentity(cluster, broker, broker_id, f"http://{at or f'{broker}-{broker_id}'}:1", process)


def registration(
    broker: str = "broker-a",
    topics: Iterable[str | TopicConfig] = ("orders",),
    *,
    broker_id: int = 0,
    at: str = "",
    cluster: str = "default",
    version: int | DataVersion = 1,
    lease_ms: int = 12_000,
    acting: bool = False,
    ha: str = "",
    process: str = "",
    store: str = "",
    held_since_us: int = 0,
) -> RegisterRequest:
    """A full registration; `version` is the counter of its DataVersion."""
    return RegisterRequest(
        identity(broker, broker_id, at, cluster, process),
        version if isinstance(version, DataVersion) else DataVersion(0, 0, version),
        tuple(t if isinstance(t, TopicConfig) else TopicConfig(t) for t in topics),
        lease_ms,
        ha,
        acting,
        store,
        held_since_us,
    )


def heartbeat_of(request: RegisterRequest) -> HeartbeatRequest:
    return HeartbeatRequest(request.identity, request.data_version)


def farewell_of(request: RegisterRequest) -> UnregisterRequest:
    return UnregisterRequest(request.identity)
