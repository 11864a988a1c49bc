"""The limits that a server sets its clients, and the counts of the connections that it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from rocketq.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long a client may take, and how many may be connected; times in milliseconds."""

    header_ms: int = 10_000
    request_ms: int = 30_000
    answer_ms: int = 30_000
    idle_ms: int = 120_000
    connections_max: int = 10_000
    header_bytes_max: int = 64 * 1024
    linger_ms: int = 1_000
    #: What calls under way may take once the server was asked to stop.
    shutdown_ms: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 1:
                raise InvalidConfiguration(each.name, value, "must be at least 1")


class Cut(Enum):
    """Why the server ended a connection; the value is the metric's label."""

    SILENT = "silent"
    SLOW_HEADER = "slow_header"
    SLOW_BODY = "slow_body"
    SLOW_READER = "slow_reader"
    IDLE = "idle"
    BAD_REQUEST = "bad_request"
    TOO_MANY = "too_many"


@dataclass(slots=True)
class ConnectionCounts:
    """The connections of one server, for /metrics; `refusing` were refused and are not closed yet."""

    open: int = 0
    refusing: int = 0
    cut: dict[Cut, int] = field(default_factory=lambda: dict.fromkeys(Cut, 0))
