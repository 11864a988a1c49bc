"""What every view stands on: the administration of the cluster, a survey of its brokers, and an observer.

Nothing here knows HTTP. `Console` is made once for a process; views are functions of it and a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rocketq.admin.cluster import ClusterAdmin
from rocketq.admin.survey import Survey
from rocketq.client import Client
from rocketq.clock import Clock, SystemClock
from rocketq.config import TransportConfig
from rocketq.console.observer import INTERVAL_MS, Observer
from rocketq.errors import InvalidConfiguration

#: A broker that does not answer holds a page up for this long at most.
TIMEOUT_MS: Final = 2_500
CONNECT_TIMEOUT_MS: Final = 1_000
DEFAULT_PORT: Final = 9080


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """The settings of a console; a console changes nothing unless `allow_changes`."""

    nameservers: str | Sequence[str]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    allow_changes: bool = False
    observe_ms: int = INTERVAL_MS
    timeout_ms: int = TIMEOUT_MS

    def __post_init__(self) -> None:
        for name in ("observe_ms", "timeout_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(name, getattr(self, name), "must be at least 1")


class Console:
    """One cluster as the console sees it. Thread-safe; making one calls nobody."""

    def __init__(self, config: ConsoleConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        transport = TransportConfig(
            timeout_ms=config.timeout_ms, connect_timeout_ms=min(CONNECT_TIMEOUT_MS, config.timeout_ms)
        )
        self.admin = ClusterAdmin(config.nameservers, transport)
        #: Searches, delayed messages, dead letters and traces.
        self.client = Client(config.nameservers, transport=transport)
        self.survey = Survey(self.admin.masters, self.clock)
        self.observer = Observer(self.survey, self.clock, config.observe_ms)

    def close(self) -> None:
        """Stop the observer, then close the connections."""
        self.observer.close()
        self.admin.close()
        self.client.close()
        self.survey.close()


@dataclass(frozen=True, slots=True)
class Call:
    """What a view is asked: names from the path, fields of the query, and fields of a form."""

    path: str
    names: dict[str, str] = field(default_factory=dict, hash=False)
    query: dict[str, str] = field(default_factory=dict, hash=False)
    form: dict[str, list[str]] = field(default_factory=dict, hash=False)

    def text(self, name: str) -> str:
        """Return a field of the form or query without spaces around it; empty if it is not given."""
        given = self.form.get(name)
        return (given[0] if given else self.query.get(name, "")).strip()

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**62) -> int:
        """Return a field that is a whole number; raise InvalidConfiguration for another text."""
        given = self.text(name)
        if not given:
            return default
        if not given.isascii() or not given.isdigit() or not least <= int(given[:20]) <= most:
            raise InvalidConfiguration(name, given[:40], f"it is no whole number from {least} to {most}")
        return int(given)


@dataclass(frozen=True, slots=True)
class Page:
    """What a view answers: a template and its values.

    `same` are commands that show the same on a terminal. `refreshes`: the page asks for itself again.
    """

    template: str
    title: str
    values: dict[str, object] = field(default_factory=dict, hash=False)
    same: tuple[str, ...] = ()
    refreshes: bool = True
    status: int = 200
