"""The NameServer's settings: one frozen value, checked when it is made, built only in `__main__` or a test.

Times are in milliseconds, sizes in bytes. Nothing here is read from the
environment, and nothing can be changed while the NameServer runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.admission import AcceptedHosts, accepted_hosts

#: RocketMQ's NameServer port.
DEFAULT_PORT: Final = 9876
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One NameServer; it knows of no other one."""

    #: What its answers call it; empty: host and port that it listens on.
    name: str = ""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    #: Further names under which this NameServer is called (`rocketq.http_server.admission`).
    allowed_hosts: tuple[str, ...] = ()
    #: Where the key-value configuration is kept; None: in memory only.
    data_dir: Path | None = None
    #: Where this NameServer keeps registers of broker groups; None: it is no acceptor.
    register_dir: Path | None = None
    #: Whether `register_dir` is to become a new acceptor if it is none yet.
    register_is_new: bool = False
    #: How often leases are looked at (RocketMQ: 5 s): a dead broker is known this much after its lease.
    scan_interval_ms: int = 1_000
    #: Show the lowest slave of a group without master as its master, to read from (as RocketMQ's option).
    support_acting_master: bool = False
    held_watches_max: int = 20_000
    #: A full registration of a broker with very many topics.
    registration_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65_535)
        _check_range("scan_interval_ms", self.scan_interval_ms, 10, 600_000)
        _check_range("held_watches_max", self.held_watches_max, 1, 1 << 24)
        _check_range("registration_bytes_max", self.registration_bytes_max, 1024, 1 << 30)
        if self.register_is_new and self.register_dir is None:
            raise InvalidConfiguration("register_is_new", True, "it needs register_dir")
        self.hosts()

    def hosts(self) -> AcceptedHosts:
        """Return what this NameServer answers to; raise InvalidConfiguration."""
        return accepted_hosts(self.host, allowed=self.allowed_hosts)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidConfiguration(name, value, f"must be from {low} to {high}")
